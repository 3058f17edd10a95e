"""Roles that come to the chief and go: lost, silent, replaced, too late, unknown."""

from __future__ import annotations

import dataclasses
import math

import pytest

from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunState, RunStateSpec
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import NotRegistered, SchemaMismatch, StaleIncarnation
from hybridsync.interfaces.messages import STARTED_FIRST, RoleEvent
from hybridsync.interfaces.reports import Report
from tests.chief.chiefs import WORKLOAD, Chief, begin, collect, enter, lease, make_chief, served, units_of
from tests.roles import hello, phase_of
from tests.telemetry.clocks import ManualClock


def test_a_lost_workers_units_go_to_others_first():
    chief = make_chief(num_workers=2)
    phase = begin(chief)
    lost = units_of(lease(chief, phase, 1))
    chief.service.role_lost(RoleEvent("worker", 1, 101, "exit code -9", 0.0))
    assert collect(chief, phase, 0)[: len(lost)] == lost
    assert chief.state.take_fenced() == [(1, 1)]
    with pytest.raises(StaleIncarnation, match="worker 1"):
        lease(chief, phase, 1)


def test_a_newer_process_takes_the_place_and_starts_a_stream_of_its_own():
    chief = make_chief(num_workers=2)
    phase = begin(chief)
    before = units_of(lease(chief, phase, 1))
    welcome = chief.service.register(hello(1, pid=500, restart_count=1))
    assert welcome.incarnation == 2
    with pytest.raises(StaleIncarnation, match="incarnation 2"):
        lease(chief, phase, 1)
    assert units_of(lease(chief, phase, 1, incarnation=2)) == before
    assert enter(chief, 1, incarnation=2).phase == phase
    chief.state.ledger.check()


def test_the_death_of_a_process_that_was_replaced_already_changes_nothing():
    chief = make_chief(num_workers=2)
    phase = begin(chief)
    chief.service.register(hello(1, pid=500, restart_count=1))
    units = units_of(lease(chief, phase, 1, incarnation=2))
    chief.service.role_lost(RoleEvent("worker", 1, 101, "exit code -9", 0.0))
    assert units_of(lease(chief, phase, 1, incarnation=2)) == units


def test_the_death_of_a_former_process_with_the_same_number_on_another_host_changes_nothing():
    chief = make_chief(num_workers=2)
    phase = begin(chief)
    chief.service.register(hello(1, pid=101, restart_count=1))
    units = units_of(lease(chief, phase, 1, incarnation=2))
    chief.service.role_lost(RoleEvent("worker", 1, 101, "host 1 is lost", 0.0, restart_count=0))
    assert units_of(lease(chief, phase, 1, incarnation=2)) == units


def test_a_chief_that_was_silent_itself_judges_nobody_before_it_has_listened_again():
    clock = ManualClock()
    chief = make_chief(num_workers=2, clock=clock, lease_secs=3.0)
    begin(chief)
    clock.advance(100.0)
    with chief.control.turn() as state:
        state.expire()
    assert chief.state.members.missing_workers() == []
    for _ in range(7):
        clock.advance(0.5)
        with chief.control.turn() as state:
            state.expire()
    assert chief.state.members.missing_workers() == [0, 1]


def test_a_silent_worker_is_lost_when_its_lease_runs_out_and_not_before():
    clock = ManualClock()
    chief = make_chief(num_workers=2, clock=clock, lease_secs=3.0)
    phase = begin(chief)
    lease(chief, phase, 1)
    for _ in range(5):
        clock.advance(0.5)
        with chief.control.turn() as state:
            state.expire()
    clock.advance(0.4)
    chief.service.report(Report("worker", 0, 1, phase.id))
    with chief.control.turn() as state:
        state.expire()
    assert chief.state.members.missing_workers() == []
    clock.advance(0.2)
    with chief.control.turn() as state:
        state.expire()
    assert chief.state.members.missing_workers() == [1]
    (lost,) = [lost for lost in chief.state.take_reports().lost if lost.role == "worker"]
    assert (lost.id, lost.reason) == (1, "no sign of life for 3 s (hang.silent_secs)")


def test_a_worker_that_is_lost_before_the_run_began_is_waited_for_until_its_next_process_comes():
    chief = Chief(RunState(Ledger(WORKLOAD), 2, "schema", SYSTEM_CLOCK, RunStateSpec(lease_secs=math.inf)))
    chief.service.register(hello(0, pid=100))
    chief.service.role_lost(RoleEvent("worker", 1, 101, "signal SIGKILL", 0.0))
    chief.service.role_started(RoleEvent("worker", 1, 500, "restart after signal SIGKILL", 0.0))
    chief.state.waits.raise_failure()
    assert chief.state.members.missing_workers() == [1]
    chief.service.register(hello(1, pid=500, restart_count=1))
    assert chief.state.members.missing_workers() == []


def test_a_process_in_the_place_of_another_is_news_and_a_first_one_is_not():
    chief = make_chief(num_workers=2)
    again = RoleEvent("worker", 1, 500, "restart after signal SIGKILL", 0.0)
    chief.service.role_started(RoleEvent("worker", 1, 101, STARTED_FIRST, 0.0))
    chief.service.role_started(again)
    assert chief.state.take_reports().restarted == [again]


def test_a_worker_that_is_lost_before_it_came_to_a_restarted_chief_is_waited_for():
    """The process group's first mesh was met in the earlier chief's time; there may be no phase to go on with."""
    chief = Chief(
        RunState(Ledger(WORKLOAD), 2, "schema", SYSTEM_CLOCK, RunStateSpec(lease_secs=math.inf, restarted=True))
    )
    with chief.control.turn() as state:
        state.adopt(None)
    chief.service.role_lost(RoleEvent("worker", 1, 101, "signal SIGKILL", 0.0))
    chief.state.waits.raise_failure()
    assert chief.state.members.missing_workers() == [0, 1]


def test_a_new_process_that_is_lost_before_it_came_costs_a_running_phase_nothing():
    chief = make_chief(num_workers=2)
    begin(chief)
    chief.service.role_lost(RoleEvent("worker", 1, 101, "signal SIGKILL", 0.0))
    chief.service.role_lost(RoleEvent("worker", 1, 500, "signal SIGKILL", 0.0))
    chief.state.waits.raise_failure()
    assert chief.state.members.missing_workers() == [1]
    assert [lost.pid for lost in chief.state.take_reports().lost] == [101, 500], "the record is to name both"


def test_registering_again_in_the_same_life_changes_nothing():
    """The answer to the first call was lost."""
    chief = make_chief(num_workers=2)
    phase = begin(chief)
    units = units_of(lease(chief, phase, 1))
    chief.state.take_reports()
    assert chief.service.register(hello(1, pid=101)).incarnation == 1
    assert units_of(lease(chief, phase, 1)) == units
    assert chief.state.take_reports().joined == [] and chief.state.take_fenced() == []
    chief.state.ledger.check()


def test_an_earlier_life_cannot_come_back():
    chief = make_chief(num_workers=2)
    chief.service.register(hello(1, pid=500, restart_count=2))
    with pytest.raises(StaleIncarnation, match="worker 1 speaks as incarnation 2, but incarnation 3"):
        chief.service.register(hello(1, pid=400, restart_count=1))
    chief.service.role_lost(RoleEvent("worker", 1, 500, "exit code -9", 0.0, restart_count=2))
    with pytest.raises(StaleIncarnation, match="its lease has expired"):
        chief.service.register(hello(1, pid=500, restart_count=2))


def test_a_chief_that_knows_nobody_asks_each_to_register():
    chief = Chief(RunState(Ledger(WORKLOAD), 2, "schema", SYSTEM_CLOCK, RunStateSpec(lease_secs=math.inf)))
    phase = phase_of(1)
    asking = (
        lambda: lease(chief, phase, 1),
        lambda: enter(chief, 1),
        lambda: chief.service.report(Report("worker", 1, 1, phase.id)),
        lambda: served(chief, phase),
    )
    for ask in asking:
        with pytest.raises(NotRegistered, match=r"(worker 1|server 0) has not registered with this chief"):
            ask()


def test_a_member_that_has_come_back_from_a_lock_step_phase_may_be_replaced():
    chief = make_chief()
    phase = begin(chief, "bsp")
    assert enter(chief, 2).phase == phase
    enter(chief, 2, after=phase.id)
    with chief.control.turn() as state:
        state.close_leases()
    chief.service.role_lost(RoleEvent("worker", 2, 102, "exit code -9", 0.0))
    chief.state.waits.raise_failure()
    chief.service.register(hello(2, pid=500, restart_count=1))
    assert enter(chief, 2, incarnation=2).phase is None, "it waits for the next phase"
    following = begin(chief, "bsp", number=2)
    assert enter(chief, 2, incarnation=2).phase == following


def test_a_role_of_another_model_is_refused_with_both_schemas():
    chief = make_chief()
    with pytest.raises(SchemaMismatch, match=r"worker 3 .*other.*schema"):
        chief.service.register(hello(3, schema="other"))


@pytest.mark.parametrize(
    "theirs, refusal",
    [
        (("c0ffee", "beef"), "the frozen leaf b of worker 3 has the digest beef, the chief's 0ddba11"),
        (("beef", "0ddba11"), "the frozen leaf a/kernel of worker 3 has the digest beef, the chief's c0ffee"),
        (("c0ffee",), "worker 3 has 1 leaves that are not trained, the chief 2"),
        ((), "worker 3 has 0 leaves that are not trained, the chief 2"),
    ],
)
def test_a_worker_with_another_frozen_leaf_is_refused_with_both_digests(theirs: tuple[str, ...], refusal: str):
    chief = make_chief()
    chief.state.frozen = {"b": "0ddba11", "a/kernel": "c0ffee"}
    with pytest.raises(SchemaMismatch, match=refusal):
        chief.service.register(dataclasses.replace(hello(3, pid=900), frozen=theirs))
    member = chief.state.members.of("worker").get(3)
    assert member is not None and member.hello.pid == 103


def test_a_worker_with_the_same_frozen_leaves_and_a_server_without_are_taken_in():
    chief = make_chief()
    chief.state.frozen = {"b": "0ddba11", "a/kernel": "c0ffee"}
    chief.service.register(dataclasses.replace(hello(3, pid=103), frozen=("c0ffee", "0ddba11")))
    chief.service.register(hello(0, role="server", pid=99))
