"""What the run's user orders comes before the plan and its policies, for the rest of the stage under way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridsync.chief.user_commands import Orders, OrdersInMemory
from hybridsync.core.errors import WorkdirError
from hybridsync.interfaces.commands import PENDING, Order
from hybridsync.phases.policy_driver import KEEP_AGAIN_SECS
from hybridsync.phases.schedule import Segment
from hybridsync.phases.state_machine import EndPhase
from hybridsync.policies.actions import PLANNED, ExcludeWorkers, TemporaryProtocol
from tests.phases.test_policy_driver import WORKLOAD, Harness


def test_an_order_is_a_switch_and_lasts_to_the_end_of_its_stage() -> None:
    harness = Harness("bsp:50%,asp")
    harness.control.orders.give("ssp", 40)
    assert harness.look(40) == (EndPhase(), "ordered")
    phase = harness.enter(44)
    assert (phase.spec, phase.end_units) == ("ssp", 200)
    assert harness.look(100) is None
    assert harness.policy_driver.next_segment(200) == Segment("asp", WORKLOAD, 1)


def test_a_later_order_takes_the_place_of_the_first_and_of_one_that_is_pending() -> None:
    harness = Harness("bsp:50%,asp")
    harness.control.orders.give("ssp", 40)
    harness.enter(44)
    harness.control.orders.give("gba", 60)
    harness.control.orders.give("bsp", 61)
    assert harness.look(64) == (EndPhase(), "ordered")
    assert harness.enter(64).spec == "bsp"
    assert harness.look(100) is None
    harness.enter(120)  # broken and entered again
    assert harness.phase.spec == "bsp" and harness.control.orders.pending is None


def test_an_order_waits_for_the_phase_to_have_begun_and_is_not_lost() -> None:
    harness = Harness("bsp:50%,asp")
    harness.control.orders.give("asp", 0)
    harness.control.first = 0.0
    assert harness.look(0) is None
    harness.control.first = 1.0
    assert harness.look(4) == (EndPhase(), "ordered")


def test_an_order_that_comes_with_the_end_of_its_stage_is_for_the_next_one() -> None:
    harness = Harness("bsp:50%,asp")
    harness.control.orders.give("ssp", 199)
    assert harness.look(200) is None  # the stage's own end is under way
    assert harness.policy_driver.next_segment(200) == Segment("ssp", WORKLOAD, 1, order=1)


def test_a_rolled_back_run_goes_on_under_what_was_ordered() -> None:
    harness = Harness("bsp:50%,asp")
    harness.control.orders.give("ssp", 300)
    assert harness.enter(300).spec == "ssp"
    assert harness.enter(210).spec == "ssp"  # to the last commit, in the same stage
    assert harness.enter(180).spec == "bsp"  # and in the one before it
    assert harness.policy_driver.next_segment(200) == Segment("ssp", WORKLOAD, 1, order=1)


def test_an_order_ends_a_detour_and_takes_back_who_was_left_out() -> None:
    harness = Harness("bsp:50%,asp")
    harness.policy.wants = TemporaryProtocol("asp")
    harness.look(40)
    assert harness.enter(44).spec == "asp"
    harness.control.orders.give("asp", 60)
    assert harness.look(64) == (EndPhase(), "ordered")
    made_up_for = Segment("asp", 220, 0, order=1)  # 20 units of the detour
    assert harness.policy_driver.next_segment(64) == made_up_for
    harness = Harness("bsp:50%,asp")
    harness.policy.wants = ExcludeWorkers((2,))
    harness.look(40)
    assert harness.enter(44).members == (0, 1, 3)
    harness.control.orders.give("bsp", 60)
    harness.control.orders.begin(0)
    assert harness.enter(60).members == (0, 1, 2, 3)


@pytest.mark.parametrize("wants", [PLANNED, TemporaryProtocol("asp"), ExcludeWorkers((2,))])
def test_no_policy_is_asked_while_an_order_holds(wants) -> None:
    harness = Harness("bsp:50%,asp")
    harness.control.orders.give("bsp_server", 40)
    harness.look(40)
    harness.enter(44)
    views = len(harness.policy.views)
    harness.policy.wants = wants
    assert harness.look(100) is None and len(harness.policy.views) == views


def test_what_is_ordered_and_under_way_already_changes_nothing() -> None:
    harness = Harness("bsp:50%,asp")
    harness.control.orders.give("ssp", 40)
    harness.control.orders.give("bsp", 41)  # before the first one was carried out
    assert harness.look(44) is None
    assert harness.control.orders.pending is None and harness.control.orders.bound(0) is not None


def test_an_order_of_the_protocol_under_way_takes_back_who_was_left_out_and_holds_the_policy_off() -> None:
    harness = Harness("bsp:50%,asp")
    harness.policy.wants = ExcludeWorkers((2,))
    harness.look(40)
    assert harness.enter(44).members == (0, 1, 3)
    harness.control.orders.give("bsp", 60)
    assert harness.look(64) == (EndPhase(), "ordered")
    assert harness.enter(64).members == (0, 1, 2, 3)
    views = len(harness.policy.views)
    assert harness.look(80) is None and len(harness.policy.views) == views


def test_a_restarted_chief_knows_the_order_of_the_stage_that_it_takes_up() -> None:
    harness, store = Harness("bsp:50%,asp"), OrdersInMemory()
    harness.control.orders = Orders(store)
    harness.control.orders.give("asp", 40)
    harness.look(40)
    phase = replace(harness.enter(44), applied=((0, 44),))
    again = Harness("bsp:50%,asp")
    again.control.orders = Orders(store)
    assert again.control.orders.held is None
    again.policy_driver.adopt(phase)
    assert again.control.orders.held == harness.control.orders.held


def test_a_restarted_chief_takes_an_ordered_phase_for_what_it_is() -> None:
    """It is no detour: its units do not move the stage's end."""
    harness = Harness("bsp:50%,asp")
    harness.control.orders.give("asp", 40)
    phase = harness.enter(44)
    again = Harness("bsp:50%,asp")
    again.control.orders = harness.control.orders
    again.policy_driver.adopt(phase)
    assert again.policy_driver.schedule.since is None
    again.phase = phase
    assert again.look(100) is None
    assert again.policy_driver.next_segment(200) == Segment("asp", WORKLOAD, 1)


def test_a_restarted_chief_carries_out_what_the_last_one_took() -> None:
    harness = Harness("asp:50%,bsp")
    harness.control.orders.give("gba", 40)
    again = Harness("asp:50%,bsp")
    again.control.orders = harness.control.orders
    again.policy_driver.adopt(harness.phase)
    assert again.look(50) == (EndPhase(), "ordered")


class FullDisk(OrdersInMemory):
    is_full = False

    def write(self, orders: tuple[Order, ...]) -> None:
        if self.is_full:
            raise WorkdirError("no space left")
        super().write(orders)


def test_a_disk_that_refuses_an_orders_stage_does_not_end_the_training_and_is_asked_again() -> None:
    harness, store = Harness("bsp:50%,asp"), FullDisk()
    harness.control.orders = Orders(store)
    harness.control.orders.give("bsp", 41)
    store.is_full = True
    assert harness.look(44) is None
    assert harness.control.orders.pending is None and store.read()[0].stage == PENDING
    harness.clock.advance(KEEP_AGAIN_SECS)
    assert harness.look(48) is None
    store.is_full = False
    assert harness.look(52) is None and store.read()[0].stage == PENDING, "the disk is asked once in a while"
    harness.clock.advance(KEEP_AGAIN_SECS)
    assert harness.look(56) is None
    assert store.read() == (Order(1, "bsp", 41, stage=0),)


def test_an_order_whose_stage_no_disk_kept_is_bound_by_the_next_chief_from_its_phase() -> None:
    harness, store = Harness("bsp:50%,asp"), FullDisk()
    harness.control.orders = Orders(store)
    harness.control.orders.give("ssp", 40)
    store.is_full = True
    assert harness.look(40) == (EndPhase(), "ordered")
    phase = replace(harness.enter(44), applied=((0, 44),))
    store.is_full = False
    again = Harness("bsp:50%,asp")
    again.control.orders = Orders(store)
    again.policy_driver.adopt(phase)
    assert store.read() == (Order(1, "ssp", 40, stage=0),)
    assert again.policy_driver.next_segment(200) == Segment("asp", WORKLOAD, 1)


@pytest.mark.parametrize("trigger", ["off", "knee"])
def test_an_order_whose_phase_was_about_to_be_announced_is_carried_out_by_the_next_chief(trigger: str) -> None:
    """The phase that the roles are in is an earlier order's: no detour, and no end of lock-step."""
    harness = Harness("bsp:50%,asp")
    harness.control.orders.give("asp", 40)
    harness.look(40)
    phase = replace(harness.enter(44), applied=((0, 44),))
    harness.control.orders.give("gba", 60)
    harness.control.orders.begin(0)  # the chief dies here
    again = Harness("bsp:50%,asp", trigger=trigger)
    again.control.orders = harness.control.orders
    again.policy_driver.adopt(phase)
    again.phase = phase
    assert (again.policy_driver.schedule.since, again.policy_driver.schedule.ends) == (None, ())
    assert again.look(64) == (EndPhase(), "ordered")
    assert again.policy_driver.next_segment(68) == Segment("gba", 200, 0, order=2)


def test_a_detour_stays_one_though_its_protocol_is_ordered_while_the_chief_is_replaced() -> None:
    harness = Harness("bsp:50%,asp")
    harness.policy.wants = TemporaryProtocol("asp")
    harness.look(40)
    phase = replace(harness.enter(44), applied=((0, 44),))
    harness.control.orders.give("asp", 60)
    harness.control.orders.begin(0)  # the chief dies here
    again = Harness("bsp:50%,asp")
    again.control.orders = harness.control.orders
    again.policy_driver.adopt(phase)
    again.phase = phase
    assert again.look(64) == (EndPhase(), "ordered")
    assert again.policy_driver.next_segment(64) == Segment("asp", 220, 0, order=1)
