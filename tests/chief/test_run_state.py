"""What breaks a phase and who hears of it, who is given up, and what is counted afterwards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from hybridsync.chief import service
from hybridsync.chief.membership import Doing
from hybridsync.chief.run_state import RunState
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import PhaseBroken, RoleLost, StaleIncarnation, WaitTimeout
from hybridsync.interfaces.messages import RoleEvent, StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import COMPUTING, WAITING, Report
from tests.chief.chiefs import (
    LONG_SECS,
    SERVER,
    WORKLOAD,
    Chief,
    begin,
    collect,
    enter,
    enter_all,
    lease,
    make_chief,
    served,
    snapshot_of,
    units_of,
    worker_died,
)
from tests.roles import hello
from tests.telemetry.clocks import ManualClock


def server_died(chief: Chief) -> None:
    chief.service.role_lost(RoleEvent("server", 0, 99, "exit code -9", 0.0))


def revoked(chief: Chief, phase: Phase, worker: int, hold_secs: float = 0.0) -> bool:
    return chief.service.report(Report("worker", worker, 1, phase.id, hold_secs=hold_secs)).revoked


# --- what breaks a phase ---


def test_a_lock_step_phase_breaks_when_it_loses_a_member_and_nobody_enters_it_any_more():
    chief = make_chief()
    phase = begin(chief, "bsp")
    enter_all(chief, phase, (0, 1))
    worker_died(chief, 2)
    assert "worker 2 was lost (exit code -9)" in chief.state.phase_members.broken
    assert enter(chief, 3).phase is None
    assert lease(chief, phase, 0).final
    with pytest.raises(PhaseBroken, match="phase 1 cannot go on: worker 2 was lost"):
        chief.control.watch(lambda state: False, LONG_SECS)
    chief.state.waits.raise_failure()


def test_a_heartbeat_that_the_chief_holds_back_is_answered_at_once_when_the_phase_breaks():
    chief = make_chief()
    phase = begin(chief, "bsp")
    enter_all(chief, phase)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(revoked, chief, phase, worker, 60.0) for worker in (0, 1)]
        assert not any(answer.done() for answer in waiting)
        worker_died(chief, 2)
        assert [answer.result(timeout=45) for answer in waiting] == [True, True]


def test_who_was_told_of_a_broken_phase_is_not_answered_early_a_second_time():
    """A worker that waits for the next phase reports on: it would ask without a pause."""
    chief = make_chief()
    phase = begin(chief, "bsp")
    enter_all(chief, phase)
    worker_died(chief, 2)
    assert revoked(chief, phase, 0, LONG_SECS)
    started = SYSTEM_CLOCK.monotonic()
    assert revoked(chief, phase, 0, 0.1), "it is true still"
    assert SYSTEM_CLOCK.monotonic() - started >= 0.09
    begin(chief, "bsp", number=2, members=(0, 1, 3))
    assert revoked(chief, phase, 0, LONG_SECS), "who has missed it must not wait in it for ever"


def test_a_failure_that_a_worker_tells_of_breaks_the_phase():
    chief = make_chief()
    phase = begin(chief, "bsp")
    enter_all(chief, phase)
    enter(chief, 1, after=phase.id, failure="PhaseRevoked: worker 3 hung up")
    assert "worker 1 left it: PhaseRevoked: worker 3 hung up" in chief.state.phase_members.broken
    assert revoked(chief, phase, 0) and revoked(chief, phase, 3)
    assert chief.state.missing_back() == [0, 2, 3]


def test_a_worker_that_fails_in_an_asynchronous_phase_breaks_it_only_while_units_go_out():
    chief = make_chief()
    phase = begin(chief)
    enter_all(chief, phase)
    with chief.control.turn() as state:
        state.close_leases()
    enter(chief, 1, after=phase.id, failure="RoleLost: the server stopped")
    assert chief.state.phase_members.broken == ""
    following = begin(chief, number=2)
    for worker in range(4):
        assert enter(chief, worker, after=phase.id).phase == following
    enter(chief, 1, after=following.id, failure="WaitTimeout: the server did not answer")
    assert "worker 1 left it: WaitTimeout" in chief.state.phase_members.broken


def test_an_old_failure_breaks_nothing_that_came_after_it():
    chief = make_chief()
    old = begin(chief, "bsp")
    enter_all(chief, old)
    following = begin(chief, "bsp", number=2)
    assert enter(chief, 1, after=old.id, failure="PhaseRevoked: late").phase == following
    assert chief.state.phase_members.broken == ""


def test_losses_after_everybody_came_back_break_nothing():
    chief = make_chief()
    phase = begin(chief, "bsp")
    enter_all(chief, phase)
    for worker in range(4):
        enter(chief, worker, after=phase.id, held=StateVersion(phase.id, 20, 5, "f00d"))
    worker_died(chief, 2)
    assert chief.state.phase_members.broken == "" and chief.state.missing_drained() == []
    assert list(chief.state.phase_members.back) == [0, 1, 2, 3], "all did their part"
    assert sorted(chief.state.members.held_states()) == [0, 1, 3], "what it held is gone with it"


def test_the_loss_of_a_worker_does_not_break_an_asynchronous_phase():
    chief = make_chief()
    phase = begin(chief)
    enter_all(chief, phase)
    worker_died(chief, 2)
    assert chief.state.phase_members.broken == "" and chief.state.take_fenced() == [(2, 1)]
    assert not revoked(chief, phase, 0)


def test_the_loss_of_the_server_breaks_the_phase_that_it_serves_and_no_other():
    chief = make_chief()
    begin(chief, "bsp")
    server_died(chief)
    assert chief.state.phase_members.broken == "" and len(chief.state.members.servers.ids()) == 0
    chief.service.register(hello(0, role="server", pid=199, restart_count=1))
    phase = begin(chief, number=2, servers=(SERVER,))
    enter_all(chief, phase)
    chief.service.role_lost(RoleEvent("server", 0, 199, "exit code -9", 0.0, restart_count=1))
    assert "server 0 was lost (exit code -9)" in chief.state.phase_members.broken
    assert revoked(chief, phase, 1)
    with pytest.raises(RoleLost, match="server 0 is gone"):
        chief.state.members.address_of("server", 0)
    assert not chief.state.members.is_live(SERVER)


def test_a_phase_whose_server_is_replaced_breaks_before_anybody_hears_of_the_new_one():
    chief = make_chief()
    begin(chief, servers=(SERVER,))
    chief.service.register(hello(0, role="server", pid=199, restart_count=1))
    assert "server 0 was lost (replaced by a newer process)" in chief.state.phase_members.broken


def test_a_phase_that_lost_somebody_while_it_began_is_broken_from_the_start():
    chief = make_chief()
    worker_died(chief, 2)
    phase = begin(chief, "bsp")
    assert "workers [2] were lost while it began" in chief.state.phase_members.broken
    assert enter(chief, 0).phase is None
    server_died(chief)
    begin(chief, number=2, servers=(SERVER,))
    assert "a server was lost while it began" in chief.state.phase_members.broken
    assert phase.id.number == 1


def test_the_first_reason_stays():
    chief = make_chief()
    begin(chief, "bsp")
    worker_died(chief, 2)
    worker_died(chief, 1)
    assert "worker 2" in chief.state.phase_members.broken and "worker 1" not in chief.state.phase_members.broken


def test_whoever_starts_roles_hears_of_the_end_once_and_first_while_others_may_ask_the_chief():
    chief, seen = make_chief(), list[bool]()
    with ThreadPoolExecutor(1) as other:
        chief.state.leave = lambda: seen.append(other.submit(lambda: chief.state.over).result(LONG_SECS))
        chief.control.finish()
        chief.control.finish()
    assert seen == [False] and chief.state.over


def test_nothing_breaks_before_the_first_phase_nor_behind_the_end():
    chief = make_chief()
    with chief.control.turn() as state:
        state.break_phase("too early")
    assert chief.state.phase_members.broken == ""
    begin(chief, "bsp")
    chief.control.finish()
    with chief.control.turn() as state:
        state.break_phase("too late")
    assert chief.state.phase_members.broken == ""


def test_waits_go_on_while_everybody_is_called_back_and_the_next_phase_is_whole():
    chief = make_chief()
    phase = begin(chief, "bsp")
    enter_all(chief, phase)
    worker_died(chief, 2)
    with chief.control.turn() as state:
        assert "worker 2" in state.gather() and state.phase_members.gathering
    assert chief.state.missing_back() == [0, 1, 3]
    assert not chief.control.watch(lambda state: False, 0.01), "a gather waits without being broken itself"
    held = StateVersion(phase.id, 8, 2, "f00d")
    for worker in (0, 1, 3):
        enter(chief, worker, after=phase.id, held=held)
    assert chief.state.missing_back() == [] and chief.state.members.held_states() == {0: held, 1: held, 3: held}
    following = begin(chief, "bsp", number=2, members=(0, 1, 3))
    assert (chief.state.phase_members.broken, chief.state.phase_members.gathering) == ("", False)
    for worker in (0, 1, 3):
        assert enter(chief, worker, after=phase.id).phase == following
    assert chief.state.members.held_states() == {}, "who trains holds another state than it said"


def test_reports_from_a_broken_phase_do_not_count():
    """What they tell of may be lost: the newest state that is found says what was applied."""
    chief = make_chief()
    phase = begin(chief)
    collect(chief, phase, 0)
    served(chief, phase, (0, 3))
    with chief.control.turn() as state:
        state.break_phase("test")
    served(chief, phase, (3, 6))
    assert chief.state.ledger.num_applied == 3


# --- who is given up ---


def test_an_evicted_worker_is_refused_reported_and_its_process_is_to_end():
    chief = make_chief()
    phase = begin(chief)
    units = units_of(lease(chief, phase, 2))
    chief.state.take_reports()
    with chief.control.turn() as state:
        state.evict("worker", 2, "it hangs")
    with chief.control.turn() as state:
        state.evict("worker", 2, "it hangs")
    (event,) = chief.evicted
    assert (event.role, event.id, event.pid, event.reason) == ("worker", 2, 102, "it hangs")
    assert chief.state.take_fenced() == [(2, 1)]
    assert [lost.reason for lost in chief.state.take_reports().lost] == ["it hangs"]
    with pytest.raises(StaleIncarnation):
        lease(chief, phase, 2)
    assert collect(chief, phase, 0)[: len(units)] == units
    worker_died(chief, 2)
    assert [lost.pid for lost in chief.state.take_reports().lost] == [102], "the record leaves out what it has"


def test_a_worker_without_a_sign_of_life_breaks_a_lock_step_phase_and_its_process_is_to_end():
    clock = ManualClock()
    chief = make_chief(clock=clock, lease_secs=3.0)
    phase = begin(chief, "bsp")
    enter_all(chief, phase)
    for _ in range(7):
        clock.advance(0.5)
        for worker in (0, 1, 3):
            chief.service.report(Report("worker", worker, 1, phase.id))
        with chief.control.turn() as state:
            state.expire()
    assert "worker 2 was lost (no sign of life for 3 s (hang.silent_secs))" in chief.state.phase_members.broken
    assert [(event.role, event.id, event.pid) for event in chief.evicted] == [("worker", 2, 102), ("server", 0, 99)]


def test_a_silent_server_breaks_its_phase_when_its_lease_is_over_and_not_before():
    clock = ManualClock()
    chief = make_chief(clock=clock, lease_secs=3.0)
    phase = begin(chief, servers=(SERVER,))
    for tick in range(7):
        for worker in range(4):
            chief.service.report(Report("worker", worker, 1, phase.id))
        with chief.control.turn() as state:
            state.expire()
        assert chief.state.phase_members.broken == "", f"after {tick / 2} s"
        clock.advance(0.5)
    with chief.control.turn() as state:
        state.expire()
    assert "server 0 was lost (no sign of life for 3 s " in chief.state.phase_members.broken


def test_a_silent_server_is_given_up_though_nobody_but_the_workers_heartbeats_comes_to_judge_it():
    """The controller may be in a call to that server for all this time."""
    clock = ManualClock()
    chief = make_chief(clock=clock, lease_secs=3.0)
    phase = begin(chief, servers=(SERVER,))
    for _ in range(7):
        clock.advance(0.5)
        for worker in range(4):
            chief.service.report(Report("worker", worker, 1, phase.id))
    assert "server 0 was lost (no sign of life for 3 s " in chief.state.phase_members.broken
    assert chief.state.members.missing_workers() == []


def test_what_a_worker_does_is_known_also_while_it_is_in_an_older_phase_and_until_it_is_back(monkeypatch):
    monkeypatch.setattr(service, "POLL_SECS", 0.0)
    chief = make_chief()
    older = begin(chief, "asp")
    chief.service.report(Report("worker", 1, 1, older.id, doing=COMPUTING, doing_secs=3.0, usual_secs=0.2))
    phase = begin(chief, "ssp", number=2)
    assert chief.state.doing(0.5) == {}, "it has said nothing since the phase was announced"
    enter(chief, 0, after=older.id)
    chief.service.report(Report("worker", 0, 1, phase.id, doing=WAITING, doing_secs=1.0))
    chief.service.report(Report("worker", 1, 1, older.id, doing=COMPUTING, doing_secs=4.0, usual_secs=0.2))
    assert chief.state.doing(4.0) == {}, "nobody has been at it for longer"
    doing = chief.state.doing(3.9)
    assert doing[0] == Doing(WAITING, 1.0, 0.0, phase.id)
    assert doing[1] == Doing(COMPUTING, 4.0, 0.2, older.id)
    assert doing[2] == Doing()
    enter(chief, 0, after=phase.id)
    assert 0 not in chief.state.doing(3.9)
    with chief.control.turn() as state:
        state.evict("worker", 1, "hung")
    assert not {0, 1} & set(chief.state.doing(0.5))


# --- what is counted afterwards ---


def test_units_that_were_counted_and_are_lost_are_done_again_and_told():
    chief = make_chief()
    phase = begin(chief)
    collect(chief, phase, 0)
    served(chief, phase, (0, 9))
    assert chief.state.restore(snapshot_of(phase, (0, 4)), rolled_back=True) == 5
    counts = chief.state.ledger.counts()
    assert (counts.applied, counts.outstanding, counts.rolled_back) == (4, WORKLOAD - 4, 5)
    following = begin(chief, number=2)
    assert collect(chief, following, 1) == list(range(4, WORKLOAD))


def test_units_that_were_only_reported_too_early_are_not_a_rollback():
    chief = make_chief()
    phase = begin(chief, "bsp")
    lease(chief, phase)
    chief.service.report(Report("worker", 0, 1, phase.id, completed=8))
    assert chief.state.restore(snapshot_of(phase, (0, 4)), rolled_back=False) == 0
    assert (chief.state.ledger.counts().applied, chief.state.ledger.counts().rolled_back) == (4, 0)


def test_a_wait_that_cares_for_nothing_ends_by_its_time_or_by_the_runs_failure():
    chief = make_chief()
    begin(chief, "bsp")
    worker_died(chief, 2)
    assert not chief.control.wait_until(lambda state: False, 0.01)
    assert chief.control.wait_until(lambda state: True, 0.0)
    with chief.control.turn() as state:
        state.waits.fail(WaitTimeout("the disk hangs"))
    with pytest.raises(WaitTimeout, match="the disk hangs"):
        chief.control.wait_until(lambda state: False, LONG_SECS)


# --- what has come back ---


def came_back(spec: str, *held: int | None) -> tuple[RunState, Phase]:
    """Return the state of a chief from whose phase so many workers have come back, with how many units each."""
    chief = make_chief()
    phase = begin(chief, spec, servers=() if spec == "bsp" else (SERVER,))
    enter_all(chief, phase)
    for worker, units in enumerate(held):
        state = None if units is None else StateVersion(phase.id, units, units, "f00d")
        enter(chief, worker, after=phase.id, held=state)
    return chief.state, phase


def test_a_lock_step_phase_is_over_when_everybody_is_back_and_another_when_its_units_are_applied():
    for num_back in (3, 4):
        state, phase = came_back("bsp", *[WORKLOAD] * num_back)
        assert state.is_over(phase) == (num_back == 4)
    state, phase = came_back("asp")
    assert not state.is_over(phase)
    state.ledger.record_applied([(0, WORKLOAD)])
    assert state.is_over(phase)


def test_a_lock_step_phase_is_short_by_what_the_furthest_of_those_who_are_back_holds():
    for held, reached in (((WORKLOAD - 1, None), WORKLOAD - 1), ((WORKLOAD, WORKLOAD - 1), WORKLOAD), ((), -1)):
        state, phase = came_back("bsp", *held)
        assert state.phase_members.units_reached() == reached
        assert phase.mode.is_short(WORKLOAD, reached) == (0 <= reached < WORKLOAD)
        assert not came_back("asp")[1].mode.is_short(WORKLOAD, reached), "the count decides there"


def test_a_phase_is_drained_when_nobody_is_missing_or_it_has_broken():
    for num_back in (3, 4):
        state, _ = came_back("bsp", *[1] * num_back)
        assert state.is_drained() == (num_back == 4)
    chief = make_chief()
    enter_all(chief, begin(chief, "bsp"))
    worker_died(chief, 1)
    assert chief.state.is_drained()
