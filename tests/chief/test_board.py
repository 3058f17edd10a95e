"""What breaks a phase and who hears of it, what a restarted chief takes up, and what is counted afterwards."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from hybridsync.chief import chief as chief_module
from hybridsync.chief.chief import Chief
from hybridsync.chief.ledger import Ledger
from hybridsync.clock import SYSTEM_CLOCK
from hybridsync.errors import NotRegistered, PhaseBroken, RoleLost, StaleIncarnation, WaitTimeout
from hybridsync.messages import WAITING, Capture, Held, Hello, LeaseReply, Report, RoleEvent, Standing
from hybridsync.plan import Phase
from hybridsync.protocols.base import Path
from tests.chief.chiefs import SERVER, WORKLOAD, begin, collect, enter, enter_all, lease, make_chief, served, units_of
from tests.roles import hello, phase_of
from tests.telemetry.clocks import ManualClock

LONG_SECS = 30.0
"""Far longer than any answer of these tests may take."""


def worker_died(chief: Chief, worker: int) -> None:
    chief.role_lost(RoleEvent("worker", worker, 100 + worker, "exit code -9", 0.0))


def server_died(chief: Chief) -> None:
    chief.role_lost(RoleEvent("server", 0, 99, "exit code -9", 0.0))


def revoked(chief: Chief, phase: Phase, worker: int, hold_secs: float = 0.0) -> bool:
    return chief.report(Report("worker", worker, 1, phase.epoch, hold_secs=hold_secs)).revoked


def capture_of(phase: Phase, *applied: tuple[int, int], dropped: tuple[tuple[int, int], ...] = ()) -> Capture:
    units = sum(stop - start for start, stop in applied)
    return Capture(1, Held(phase.epoch, units, units, "f00d"), applied, dropped, 0, 0.0, 0.0)


# --- what breaks a phase ---


def test_a_lock_step_phase_breaks_when_it_loses_a_member_and_nobody_enters_it_any_more():
    chief = make_chief()
    phase = begin(chief, "bsp")
    enter_all(chief, phase, (0, 1))
    worker_died(chief, 2)
    assert "worker 2 was lost (exit code -9)" in chief.broken
    assert enter(chief, 3).phase is None
    assert lease(chief, phase, 0).final
    with pytest.raises(PhaseBroken, match="epoch 1 cannot go on: worker 2 was lost"):
        chief.watch(lambda: False, LONG_SECS)
    chief.raise_failure()


def test_a_heartbeat_that_the_chief_holds_back_is_answered_at_once_when_the_phase_breaks():
    chief = make_chief()
    phase = begin(chief, "bsp")
    enter_all(chief, phase)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(revoked, chief, phase, worker, LONG_SECS) for worker in (0, 1)]
        assert not any(answer.done() for answer in waiting)
        worker_died(chief, 2)
        assert [answer.result(timeout=10) for answer in waiting] == [True, True]


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
    enter(chief, 1, after=phase.epoch, failure="PhaseRevoked: worker 3 hung up")
    assert "worker 1 left it: PhaseRevoked: worker 3 hung up" in chief.broken
    assert revoked(chief, phase, 0) and revoked(chief, phase, 3)
    assert chief.missing_back() == [0, 2, 3]


def test_a_worker_that_fails_in_an_asynchronous_phase_breaks_it_only_while_units_go_out():
    chief = make_chief()
    phase = begin(chief)
    enter_all(chief, phase)
    chief.close_leases()
    enter(chief, 1, after=phase.epoch, failure="RoleLost: the server stopped")
    assert chief.broken == ""
    following = begin(chief, number=2)
    for worker in range(4):
        assert enter(chief, worker, after=phase.epoch).phase == following
    enter(chief, 1, after=following.epoch, failure="WaitTimeout: the server did not answer")
    assert "worker 1 left it: WaitTimeout" in chief.broken


def test_an_old_failure_breaks_nothing_that_came_after_it():
    chief = make_chief()
    old = begin(chief, "bsp")
    enter_all(chief, old)
    following = begin(chief, "bsp", number=2)
    assert enter(chief, 1, after=old.epoch, failure="PhaseRevoked: late").phase == following
    assert chief.broken == ""


def test_losses_after_everybody_came_back_break_nothing():
    chief = make_chief()
    phase = begin(chief, "bsp")
    enter_all(chief, phase)
    for worker in range(4):
        enter(chief, worker, after=phase.epoch, held=Held(phase.epoch, 20, 5, "f00d"))
    worker_died(chief, 2)
    assert chief.broken == "" and chief.missing_drained() == []
    assert list(chief.drained()) == [0, 1, 2, 3], "all did their part"
    assert sorted(chief.resting()) == [0, 1, 3], "what it held is gone with it"


def test_the_loss_of_a_worker_does_not_break_an_asynchronous_phase():
    chief = make_chief()
    phase = begin(chief)
    enter_all(chief, phase)
    worker_died(chief, 2)
    assert chief.broken == "" and chief.take_fenced() == [(2, 1)]
    assert not revoked(chief, phase, 0)


def test_the_loss_of_the_server_breaks_the_phase_that_it_serves_and_no_other():
    chief = make_chief()
    begin(chief, "bsp")
    server_died(chief)
    assert chief.broken == "" and chief.num_live_servers() == 0
    chief.register(hello(0, role="server", pid=199, life=1))
    phase = begin(chief, number=2, servers=(SERVER,))
    enter_all(chief, phase)
    chief.role_lost(RoleEvent("server", 0, 199, "exit code -9", 0.0))
    assert "server 0 was lost (exit code -9)" in chief.broken
    assert revoked(chief, phase, 1)
    with pytest.raises(RoleLost, match="server 0 is gone"):
        chief.address_of("server", 0)
    assert not chief.is_live(SERVER)


def test_a_phase_whose_server_is_replaced_breaks_before_anybody_hears_of_the_new_one():
    chief = make_chief()
    begin(chief, servers=(SERVER,))
    chief.register(hello(0, role="server", pid=199, life=1))
    assert "server 0 was lost (replaced by a newer process)" in chief.broken


def test_a_phase_that_lost_somebody_while_it_began_is_broken_from_the_start():
    chief = make_chief()
    worker_died(chief, 2)
    phase = begin(chief, "bsp")
    assert "workers [2] were lost while it began" in chief.broken
    assert enter(chief, 0).phase is None
    server_died(chief)
    begin(chief, number=2, servers=(SERVER,))
    assert "a server was lost while it began" in chief.broken
    assert phase.epoch.number == 1


def test_the_first_reason_stays():
    chief = make_chief()
    begin(chief, "bsp")
    worker_died(chief, 2)
    worker_died(chief, 1)
    assert "worker 2" in chief.broken and "worker 1" not in chief.broken


def test_nothing_breaks_before_the_first_phase_nor_behind_the_end():
    chief = make_chief()
    chief.break_phase("too early")
    assert chief.broken == ""
    begin(chief, "bsp")
    chief.finish()
    chief.break_phase("too late")
    assert chief.broken == ""


def test_waits_go_on_while_everybody_is_called_back_and_the_next_phase_is_whole():
    chief = make_chief()
    phase = begin(chief, "bsp")
    enter_all(chief, phase)
    worker_died(chief, 2)
    assert "worker 2" in chief.gather() and chief.gathering
    assert chief.missing_back() == [0, 1, 3]
    assert not chief.watch(lambda: False, 0.01), "a gather waits without being broken itself"
    held = Held(phase.epoch, 8, 2, "f00d")
    for worker in (0, 1, 3):
        enter(chief, worker, after=phase.epoch, held=held)
    assert chief.missing_back() == [] and chief.resting() == {0: held, 1: held, 3: held}
    following = begin(chief, "bsp", number=2, members=(0, 1, 3))
    assert (chief.broken, chief.gathering) == ("", False)
    for worker in (0, 1, 3):
        assert enter(chief, worker, after=phase.epoch).phase == following
    assert chief.resting() == {}, "who trains holds another state than it said"


def test_reports_from_a_broken_phase_do_not_count():
    """What they tell of may be lost: the newest state that is found says what was applied."""
    chief = make_chief()
    phase = begin(chief)
    collect(chief, phase, 0)
    served(chief, phase, (0, 3))
    chief.break_phase("test")
    served(chief, phase, (3, 6))
    assert chief.num_applied == 3


# --- who is given up ---


def test_an_evicted_worker_is_refused_reported_and_its_process_is_to_end():
    chief = make_chief()
    phase = begin(chief)
    units = units_of(lease(chief, phase, 2))
    chief.take_intake()
    chief.evict(2, "it hangs")
    chief.evict(2, "it hangs")
    (event,) = chief.evicted
    assert (event.role, event.id, event.pid, event.reason) == ("worker", 2, 102, "it hangs")
    assert chief.take_fenced() == [(2, 1)]
    assert [lost.reason for lost in chief.take_intake().lost] == ["it hangs"]
    with pytest.raises(StaleIncarnation):
        lease(chief, phase, 2)
    assert collect(chief, phase, 0)[: len(units)] == units
    worker_died(chief, 2)
    assert [lost.pid for lost in chief.take_intake().lost] == [102], "the record leaves out what it has"


def test_a_worker_without_a_sign_of_life_breaks_a_lock_step_phase_and_its_process_is_to_end():
    clock = ManualClock()
    chief = make_chief(clock=clock, lease_secs=3.0)
    phase = begin(chief, "bsp")
    enter_all(chief, phase)
    for _ in range(7):
        clock.advance(0.5)
        for worker in (0, 1, 3):
            chief.report(Report("worker", worker, 1, phase.epoch))
        chief.expire()
    assert "worker 2 was lost (no sign of life for 3 s)" in chief.broken
    assert [(event.id, event.pid) for event in chief.evicted] == [(2, 102)]


def test_a_server_is_given_more_time_than_a_worker():
    """Its loss costs everybody's work since the last commit."""
    clock = ManualClock()
    chief = make_chief(clock=clock, lease_secs=3.0)
    phase = begin(chief, servers=(SERVER,))
    for tick in range(31):
        for worker in range(4):
            chief.report(Report("worker", worker, 1, phase.epoch))
        chief.expire()
        assert chief.broken == "", f"after {tick / 2} s"
        clock.advance(0.5)
    chief.expire()
    assert "server 0 was lost (no sign of life for 15 s)" in chief.broken


def test_a_silent_server_is_given_up_though_nobody_but_the_workers_heartbeats_comes_to_judge_it():
    """The manager may be in a call to that server for all this time."""
    clock = ManualClock()
    chief = make_chief(clock=clock, lease_secs=3.0)
    phase = begin(chief, servers=(SERVER,))
    for _ in range(31):
        clock.advance(0.5)
        for worker in range(4):
            chief.report(Report("worker", worker, 1, phase.epoch))
    assert "server 0 was lost (no sign of life for 15 s)" in chief.broken
    assert chief.missing_workers() == []


def test_who_is_silent_is_stuck_before_those_that_speak(monkeypatch):
    monkeypatch.setattr(chief_module, "POLL_SECS", 0.0)  # this clock stands still
    clock = ManualClock()
    chief = make_chief(clock=clock, lease_secs=60.0)
    phase = begin(chief, "bsp")
    enter_all(chief, phase)
    for _ in range(4):
        clock.advance(0.5)
        chief.expire()
    for worker, doing in [(0, WAITING), (1, "compute"), (3, WAITING)]:
        chief.report(Report("worker", worker, 1, phase.epoch, doing=doing))
    assert chief.stuck(1.0) == [2]
    chief.report(Report("worker", 2, 1, phase.epoch, doing=WAITING))
    assert chief.stuck(1.0) == [1], "it speaks, but it is not waiting for the others"
    enter(chief, 1, after=phase.epoch)
    assert chief.stuck(1.0) == []


# --- what a restarted chief takes up ---


def restarted_chief(**fields) -> Chief:
    return Chief(Ledger(WORKLOAD, **fields), 2, "schema", SYSTEM_CLOCK, math.inf, restarted=True)


def standing(phase: Phase, *stream: tuple[int, int], completed: int = 0, inside: bool = True) -> Standing:
    return Standing(phase, inside, stream, completed)


def came_back(worker: int, told: Standing, role: str = "worker") -> Hello:
    return hello(worker, role=role, pid=100 + worker, standing=told)


def test_a_restarted_chief_gives_no_units_before_it_knows_what_is_going_on(monkeypatch):
    chief = restarted_chief()
    phase = phase_of(4, members=(0, 1))
    chief.register(came_back(0, standing(phase, (0, 4))))
    assert lease(chief, phase, 0) == LeaseReply((), False), "no refusal: it is to go on with what it has"
    assert enter(chief, 0).phase is None
    monkeypatch.setattr(chief_module, "POLL_SECS", LONG_SECS)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lease, chief, phase, 0, 4, 2)
        chief.adopt(phase, Path.SERVER)
        chief.open_leases()
        assert units_of(waiting.result(timeout=10))[:1] == [4], "it hears of the adoption at once"


@pytest.mark.parametrize(("spec", "broken"), [("asp", False), ("ssp", True)])
def test_a_worker_lost_beside_the_chief_breaks_a_phase_whose_rule_waits_for_it(spec, broken):
    chief = restarted_chief()
    phase = replace(phase_of(4, members=(0, 1), servers=(SERVER,), end=WORKLOAD), spec=spec)
    chief.register(came_back(0, standing(phase), role="server"))
    chief.register(came_back(0, standing(phase, (0, 4))))
    chief.adopt(phase, Path.SERVER)
    assert ("workers [1]" in chief.broken) is broken


def test_an_adopted_phase_goes_on_with_the_streams_that_its_workers_have():
    chief = restarted_chief()
    phase = phase_of(4, members=(0, 1), servers=(SERVER,), end=WORKLOAD)
    chief.register(came_back(0, standing(phase), role="server"))
    chief.register(came_back(0, standing(phase, (0, 4), completed=2)))
    chief.register(came_back(1, standing(phase, (4, 7), (9, 10), completed=3)))
    chief.adopt(phase, Path.SERVER)
    chief.record(capture_of(phase, (0, 2), (4, 7)), final=False)
    chief.open_leases()
    assert chief.ledger.holders() == {"worker 0": 2, "worker 1": 1}
    assert units_of(lease(chief, phase, 0, known=0)) == [0, 1, 2, 3], "what it has it may ask for again"
    first = collect_more(chief, phase, 0, known=4)
    second = collect_more(chief, phase, 1, known=4)
    assert sorted(first + second) == [7, 8, *range(10, WORKLOAD)]
    assert first[0] == 7, "what nobody has goes out first"
    assert enter(chief, 0).phase == phase and chief.missing_back() == [0, 1]
    worker_died(chief, 1)
    assert chief.broken == "" and chief.ledger.holders().keys() == {"worker 0"}
    chief.ledger.check()


def test_who_comes_back_after_a_phase_was_adopted_goes_on_with_its_stream_too():
    chief = restarted_chief()
    phase = phase_of(4, members=(0, 1), servers=(SERVER,), end=WORKLOAD)
    chief.register(came_back(0, standing(phase), role="server"))
    chief.adopt(phase, Path.SERVER)
    chief.open_leases()
    chief.register(hello(0, pid=100))  # late: from when its process was new
    with pytest.raises(NotRegistered, match=r"has 4 units of epoch .* knows of 0"):
        lease(chief, phase, 0, known=4, completed=2)
    chief.register(came_back(0, standing(phase, (0, 3), (7, 8), completed=2)))
    assert chief.missing_back() == [0] and chief.ledger.holders() == {"worker 0": 2}
    assert units_of(lease(chief, phase, 0, known=4, completed=2))[0] == 3, "what it has had is for others"
    chief.register(came_back(0, standing(phase, (0, 3), completed=2)))  # an older word
    assert len(units_of(lease(chief, phase, 0, known=0))) > 4


def test_what_is_reported_while_the_state_of_an_adopted_phase_is_captured_counts():
    """The capture does not hold it, and nobody tells of it again."""
    chief = restarted_chief(issued=4, applied=[(2, 4)])  # of a commit that the phase did not begin from
    phase = phase_of(4, members=(0, 1), servers=(SERVER,), end=WORKLOAD)
    chief.register(came_back(0, standing(phase), role="server"))
    chief.adopt(phase, Path.SERVER)
    served(chief, phase, (1, 2))
    chief.record(capture_of(phase, (0, 1)), final=False)
    assert chief.ledger.applied().ranges() == ((0, 2),)


def collect_more(chief: Chief, phase: Phase, worker: int, known: int) -> list[int]:
    units: list[int] = []
    while new := units_of(lease(chief, phase, worker, known + len(units), known)):
        units += new
    return units


def test_what_a_worker_was_in_before_or_has_left_is_not_adopted():
    chief = restarted_chief()
    phase = phase_of(4, members=(0, 1))
    chief.register(came_back(0, standing(phase_of(3), (0, 4))))
    chief.register(came_back(1, standing(phase, inside=False)))
    chief.adopt(phase, Path.SERVER)
    assert chief.ledger.holders() == {} and chief.missing_back() == []
    assert enter(chief, 0, after=phase_of(3).epoch).phase == phase


def test_standings_are_those_of_the_living():
    chief = restarted_chief()
    phase = phase_of(4, members=(0, 1))
    told = standing(phase, (0, 4))
    chief.register(came_back(0, told))
    chief.register(came_back(1, told))
    worker_died(chief, 1)
    assert chief.standings() == {("worker", 0): told}
    assert chief.take_intake().joined == [], "they are no new processes"


def test_who_was_replaced_while_the_chief_was_away_leaves_no_standing_to_its_successor():
    chief = restarted_chief()
    phase = phase_of(4, members=(0, 1))
    chief.register(came_back(1, standing(phase, (0, 4))))
    chief.register(came_back(0, standing(phase), role="server"))
    chief.register(hello(1, pid=500, life=1))
    chief.register(hello(0, role="server", pid=501, life=1))
    assert chief.standings() == {}
    chief.adopt(phase, Path.SERVER)
    assert chief.ledger.holders() == {} and chief.missing_back() == []


def test_a_restarted_chief_whose_run_had_not_begun_begins_it():
    chief = restarted_chief()
    for worker in range(2):
        chief.register(hello(worker, pid=100 + worker))
    chief.adopt(None, Path.SYNC)
    phase = begin(chief, "bsp", number=2)
    assert enter(chief, 0).phase == phase and units_of(lease(chief, phase, 0))


def test_a_process_that_is_lost_while_the_chief_is_away_does_not_end_the_run():
    chief = restarted_chief()
    worker_died(chief, 1)
    chief.raise_failure()


# --- what is counted afterwards ---


def test_units_that_were_counted_and_are_lost_are_done_again_and_told():
    chief = make_chief()
    phase = begin(chief)
    collect(chief, phase, 0)
    served(chief, phase, (0, 9))
    assert chief.restore(capture_of(phase, (0, 4)), rolled_back=True) == 5
    counts = chief.counts()
    assert (counts.applied, counts.outstanding, counts.rolled_back) == (4, WORKLOAD - 4, 5)
    following = begin(chief, number=2)
    assert collect(chief, following, 1) == list(range(4, WORKLOAD))


def test_units_that_were_only_reported_too_early_are_not_a_rollback():
    chief = make_chief()
    phase = begin(chief, "bsp")
    lease(chief, phase)
    chief.report(Report("worker", 0, 1, phase.epoch, completed=8))
    assert chief.restore(capture_of(phase, (0, 4)), rolled_back=False) == 0
    assert (chief.counts().applied, chief.counts().rolled_back) == (4, 0)


def test_a_wait_that_cares_for_nothing_ends_by_its_time_or_by_the_runs_failure():
    chief = make_chief()
    begin(chief, "bsp")
    worker_died(chief, 2)
    assert not chief.wait_until(lambda: False, 0.01)
    assert chief.wait_until(lambda: True, 0.0)
    chief.fail(WaitTimeout("the disk hangs"))
    with pytest.raises(WaitTimeout, match="the disk hangs"):
        chief.wait_until(lambda: False, LONG_SECS)


def test_a_server_lost_while_its_phase_is_taken_up_breaks_it():
    """Between the look at the state and the phase that goes on from it, nobody was told of any loss."""
    chief = restarted_chief()
    phase = phase_of(2, "asp", end=WORKLOAD, members=(0, 1), servers=(SERVER,))
    chief.register(replace(hello(0, role="server"), standing=standing(phase)))
    chief.role_lost(RoleEvent("server", 0, hello(0, role="server").pid, "signal SIGKILL", 0.0))
    chief.adopt(phase, Path.SERVER)
    assert "a server was lost while the phase was taken up" in chief.broken
