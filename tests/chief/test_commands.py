"""What a run's user asks of its chief: where the run stands, another protocol, an end."""

from __future__ import annotations

from typing import Any

import pytest

from hybridsync.chief.user_commands import Orders, OrdersInMemory
from hybridsync.core.errors import NotRunning, PlanError, WorkdirError
from hybridsync.interfaces.commands import PENDING, Order, StopRequest, SwitchRequest
from hybridsync.interfaces.messages import RoleEvent
from tests.chief.chiefs import WORKLOAD, begin, make_chief


def test_a_switch_is_an_order_that_the_controller_finds() -> None:
    chief = make_chief()
    begin(chief, "asp")
    reply = chief.service.switch(SwitchRequest("ssp(staleness=2)", "why not"))
    assert (reply.spec, reply.before, reply.phase, reply.changes) == ("ssp(staleness=2)", "asp", 1, True)
    assert chief.control.orders.pending == Order(1, "ssp(staleness=2)", 0, "why not")


def test_a_switch_that_comes_twice_is_one_order() -> None:
    chief = make_chief()
    begin(chief, "asp")
    first, second = (chief.service.switch(SwitchRequest("ssp")) for _ in range(2))
    assert first == second and len(chief.control.orders.take_news()) == 1


def test_a_switch_to_what_is_under_way_is_an_order_that_holds_and_is_told_once() -> None:
    chief = make_chief()
    begin(chief, "asp")
    chief.control.orders.begin(0)  # the stage's phase was entered without an order
    assert not chief.service.switch(SwitchRequest("asp")).changes
    pending = chief.control.orders.pending
    assert pending is not None and pending.spec == "asp"
    chief.control.orders.begin(0)
    assert not chief.service.switch(SwitchRequest("asp")).changes
    assert chief.control.orders.pending is None and len(chief.control.orders.take_news()) == 1
    chief.control.orders.begin(1)  # an order of another stage holds nothing off in this one
    chief.service.switch(SwitchRequest("asp"))
    assert chief.control.orders.pending is not None


def test_an_order_that_is_taken_back_before_it_was_carried_out_is_one_too() -> None:
    chief = make_chief()
    begin(chief, "asp")
    chief.service.switch(SwitchRequest("ssp"))
    assert not chief.service.switch(SwitchRequest("asp")).changes
    pending = chief.control.orders.pending
    assert pending is not None and pending.spec == "asp"


def test_a_switch_is_refused_before_the_first_phase_and_at_the_end() -> None:
    chief = make_chief()
    with pytest.raises(NotRunning, match="in no phase yet"):
        chief.service.switch(SwitchRequest("ssp"))
    begin(chief, "asp")
    with pytest.raises(PlanError, match="unknown protocol 'sps'"):
        chief.service.switch(SwitchRequest("sps"))
    chief.service.preempt()
    with pytest.raises(NotRunning, match="is saving and stopping"):
        chief.service.switch(SwitchRequest("ssp"))
    chief.control.finish()
    with pytest.raises(NotRunning, match="the run is over; there is nothing to stop"):
        chief.service.stop(StopRequest())
    assert chief.control.orders.pending is None


def test_a_stop_is_told_to_whoever_starts_the_next_chief_before_it_is_answered() -> None:
    chief = make_chief()
    begin(chief)
    told: list[bool] = []
    chief.state.ask_stop = lambda: told.append(chief.state.preempted)
    chief.service.stop(StopRequest("lunch"))
    chief.service.stop(StopRequest("lunch"))
    assert told == [False, True] and chief.state.preempted
    assert chief.state.take_reports().stops == ["lunch"]


def test_who_asks_after_a_callback_waits_for_no_evaluation_and_a_callback_alone_does() -> None:
    chief = make_chief()
    with chief.control.turn() as state:
        state.stop("it has converged")
    assert chief.state.preempted and not chief.state.is_leaving
    chief.service.preempt()
    assert chief.state.is_leaving and chief.state.stop_reason == "it has converged"


@pytest.mark.parametrize("by_callback", [True, False])
def test_a_stop_after_the_last_unit_is_neither_reported_nor_shown(by_callback: bool) -> None:
    chief = make_chief()
    begin(chief)
    with chief.control.turn() as state:
        state.ledger.restore([(0, WORKLOAD)], [])
        if by_callback:
            state.stop("it has converged")
    if not by_callback:
        assert chief.service.stop(StopRequest("lunch")).units == WORKLOAD
        assert chief.state.preempted, "else a last save that waits for a full disk could not be given up"
    assert chief.state.take_reports().stops == [] and chief.state.stop_reason is None
    assert not chief.service.status().is_stopping


def test_the_first_mistake_that_a_role_has_met_is_kept() -> None:
    chief = make_chief()
    begin(chief)
    chief.service.role_lost(RoleEvent("worker", 0, 100, "signal SIGKILL", 0.0))
    assert chief.state.refusal == ""
    for worker, why in ((1, "the loss raised KeyError"), (2, "the loss raised TypeError")):
        chief.service.role_lost(RoleEvent("worker", worker, 100 + worker, why, 0.0, is_refusal=True))
    assert chief.state.refusal == "worker 1 refuses to go on: the loss raised KeyError"


def test_the_status_says_who_trains_who_is_lost_and_what_is_ordered() -> None:
    chief = make_chief()
    chief.state.figures.event({"kind": "checkpoint", "t": 1.0, "units": 3, "bytes": 10})
    begin(chief, "bsp", members=(0, 1, 3))
    chief.service.role_lost(RoleEvent("worker", 1, 101, "signal SIGKILL", 0.0))
    chief.service.switch(SwitchRequest("asp"))
    status = chief.service.status()
    assert (status.phase, status.protocol, status.ordered, status.exit) == (1, "bsp", "asp", "")
    assert (status.workload, status.checkpoint_units) == (20, 3)
    states = {(member.role, member.id): member.state for member in status.members}
    assert states == {
        ("server", 0): "waiting",
        ("worker", 0): "training",
        ("worker", 1): "starting",
        ("worker", 2): "waiting",
        ("worker", 3): "training",
    }


class FullDisk(OrdersInMemory):
    def write(self, orders: tuple[Order, ...]) -> None:
        raise WorkdirError("no space")


def test_an_order_that_cannot_be_kept_is_none() -> None:
    orders = Orders(FullDisk())
    with pytest.raises(WorkdirError, match="no space"):
        orders.give("ssp", 3)
    assert orders.pending is None and orders.take_news() == []


def test_orders_are_found_again_by_whoever_reads_their_store() -> None:
    store = OrdersInMemory()
    orders = Orders(store)
    orders.give("ssp", 3)
    orders.begin(0)
    orders.give("gba", 5)
    again = Orders(store)
    bound, pending = again.bound(0), again.pending
    assert bound is not None and bound.spec == "ssp"
    assert pending is not None and (pending.spec, pending.number, pending.stage) == ("gba", 2, PENDING)
    assert [order.number for order in again.take_news()] == [1, 2]
    assert again.take_news() == []


def test_a_stage_has_the_newest_order_of_it_alone() -> None:
    orders: Any = Orders()
    for spec in ("ssp", "gba", "bsp"):
        orders.give(spec, 3)
        orders.begin(1)
    assert (orders.of(1).spec, orders.of(0), orders.bound(1).number) == ("bsp", None, 3)
