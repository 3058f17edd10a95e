"""The chief between its roles: leases, phases, reports, clocks."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from hybridsync.chief import service
from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunState, RunStateSpec
from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.errors import StalePhase
from hybridsync.interfaces.messages import LeaseRequest, RoleEvent, RoleState, Snapshot, StateVersion
from hybridsync.interfaces.reports import Exchange, Report, Span
from tests.chief.chiefs import WORKLOAD, Chief, begin, collect, enter, lease, make_chief, served, units_of
from tests.roles import hello, phase_of
from tests.telemetry.clocks import ManualClock

# --- leases ---


def test_repeating_a_lease_request_extends_nothing_and_gives_the_same():
    chief = make_chief()
    phase = begin(chief)
    first = lease(chief, phase)
    assert units_of(first)
    assert lease(chief, phase) == first
    more = lease(chief, phase, known=len(units_of(first)))
    assert units_of(lease(chief, phase)) == units_of(first) + units_of(more)
    chief.state.ledger.check()


def test_asynchronous_workers_never_share_a_unit_and_together_get_all():
    chief = make_chief()
    phase = begin(chief)
    streams = [collect(chief, phase, worker) for worker in range(4)]
    assert sorted(unit for stream in streams for unit in stream) == list(range(WORKLOAD))


def test_members_of_a_mesh_get_the_same_stream_in_the_same_order():
    chief = make_chief()
    phase = begin(chief, "bsp")
    streams = [collect(chief, phase, worker) for worker in range(4)]
    assert streams == [list(range(WORKLOAD))] * 4
    assert lease(chief, phase, 2, known=WORKLOAD).final


def test_a_mesh_gets_whole_steps_of_its_shares_and_its_rate_is_divided_by_them():
    clock = ManualClock(now=1.0)
    chief = make_chief(workload=400, clock=clock)
    phase = begin(chief, "bsp", end=400, shares=(4, 4, 0, 1))
    known = len(units_of(lease(chief, phase)))
    assert known == 18, "two steps of nine, before anything is known"
    for completed in (0, 9, 18):
        chief.service.report(Report("worker", 0, 1, phase.id, completed=completed))
        clock.advance(0.1)
    more = len(units_of(lease(chief, phase, known=known, completed=18)))
    assert more == 18, "a quarter of a second of 90 units a second, in whole steps"
    assert chief.state.worker_rates() == pytest.approx({0: 40.0, 1: 40.0, 2: 0.0, 3: 10.0}, rel=0.01)


def test_an_asynchronous_phase_is_final_when_its_units_are_applied_not_when_they_are_leased():
    chief = make_chief()
    phase = begin(chief, end=8)
    units = collect(chief, phase, 0)
    assert units == list(range(8))
    assert not lease(chief, phase, known=8, completed=8).final
    served(chief, phase, (0, 8))
    assert lease(chief, phase, known=8, completed=8).final


def test_a_waiting_worker_hears_at_once_of_units_that_come_back(monkeypatch):
    monkeypatch.setattr(service, "POLL_SECS", 600.0)
    chief = make_chief(num_workers=2, workload=2)
    phase = begin(chief, end=2)
    lease(chief, phase, 0)
    lease(chief, phase, 0, known=1, completed=1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lease, chief, phase, 1)
        chief.service.role_lost(RoleEvent("worker", 0, 100, "exit code -9", 0.0))
        assert units_of(waiting.result(timeout=120)) == [0]


def test_nothing_goes_out_before_leases_open_nor_after_they_close():
    chief = make_chief()
    phase = phase_of(1, "bsp", end=WORKLOAD)
    with chief.control.turn() as state:
        state.begin(phase)
    assert lease(chief, phase) == service.LeaseReply((), False)
    with chief.control.turn() as state:
        state.open_leases()
    granted = units_of(lease(chief, phase))
    with chief.control.turn() as state:
        state.close_leases()
    assert lease(chief, phase).final
    assert units_of(lease(chief, phase, worker=3)) == granted, "the mesh stops at a common unit"


def test_a_call_of_an_older_phase_is_refused_with_both_numbers():
    chief = make_chief()
    old = begin(chief, number=1)
    new = begin(chief, number=2)
    with pytest.raises(StalePhase, match=r"phase 1 .* phase 2"):
        lease(chief, old)
    reply = served(chief, old, (0, 1))
    assert (reply.phase_id, reply.revoked) == (new.id, True), "it is over"
    assert chief.state.ledger.num_applied == 0


def test_who_is_in_a_phase_that_ended_as_planned_is_called_back_when_the_next_one_is_announced():
    """The server that would refuse its push may be gone, and the next phase's members wait for it."""
    chief = make_chief()
    old = begin(chief, number=1)
    assert not chief.service.report(Report("worker", 0, 1, old.id)).revoked
    with chief.control.turn() as state:
        state.close_leases()
    assert not chief.service.report(Report("worker", 0, 1, old.id)).revoked, "its last unit is welcome"
    new = begin(chief, "bsp", number=2)
    assert chief.service.report(Report("worker", 0, 1, old.id)).revoked
    assert not chief.service.report(Report("worker", 0, 1, new.id)).revoked


def test_who_is_in_a_phase_that_an_earlier_chief_ended_is_called_back():
    """It was stopped when that chief told of the end, and that chief is gone."""
    chief = Chief(
        RunState(Ledger(WORKLOAD), 2, "schema", SYSTEM_CLOCK, RunStateSpec(lease_secs=math.inf, restarted=True))
    )
    old, new = phase_of(2, "bsp", end=WORKLOAD, members=(0, 1)), phase_of(3, "bsp", end=WORKLOAD, members=(0, 1))
    chief.service.register(replace(hello(0, pid=100), role_state=RoleState(old, True)))
    with chief.control.turn() as state:
        state.adopt(new)
    assert chief.service.report(Report("worker", 0, 1, old.id)).revoked
    assert not chief.service.report(Report("worker", 0, 1, new.id)).revoked


# --- phases ---


def test_a_worker_enters_each_phase_once_and_says_when_it_is_back():
    chief = make_chief()
    assert enter(chief, 0).phase is None
    phase = begin(chief, "bsp")
    assert enter(chief, 0).phase == phase
    assert enter(chief, 0).phase == phase, "an answer that was lost is given again"
    held = StateVersion(phase.id, 20, 5, "f00d")
    assert enter(chief, 0, after=phase.id, held=held).phase is None
    assert chief.state.phase_members.back == {0: held}
    assert chief.state.missing_drained() == [1, 2, 3]
    following = begin(chief, "asp", number=2)
    assert enter(chief, 0, after=phase.id).phase == following


def test_a_preempted_lock_step_phase_lets_its_late_members_in():
    """Who has entered waits for the others in the collective: they must be let in, to the same units."""
    chief = make_chief(num_workers=2)
    phase = begin(chief, "bsp")
    assert enter(chief, 0).phase == phase
    units = units_of(lease(chief, phase, 0))
    chief.service.preempt()
    with chief.control.turn() as state:
        state.close_leases()
    assert chief.state.missing_drained() == [0, 1]
    assert enter(chief, 1).phase == phase
    reply = lease(chief, phase, 1)
    assert (units_of(reply), reply.final) == (units, True)


def test_an_asynchronous_phase_that_ends_lets_nobody_in():
    chief = make_chief(num_workers=2)
    begin(chief)
    with chief.control.turn() as state:
        state.close_leases()
    assert enter(chief, 1).phase is None


def test_everybody_hears_that_the_run_is_over():
    chief = make_chief(num_workers=2)
    phase = begin(chief)
    chief.control.finish()
    assert not chief.control.await_all_informed(0.01)
    assert enter(chief, 0, after=phase.id).done
    assert chief.service.report(Report("worker", 1, 1, phase.id)).done
    assert served(chief, phase).done
    assert chief.control.await_all_informed(0.01)


# --- what roles report ---


def test_a_mesh_counts_each_position_once_whoever_reports_it():
    chief = make_chief()
    phase = begin(chief, "bsp")
    assert len(units_of(lease(chief, phase))) >= 8
    for worker, completed in [(0, 4), (1, 4), (2, 0), (3, 8), (0, 4)]:
        chief.service.report(Report("worker", worker, 1, phase.id, completed=completed))
    assert chief.state.ledger.num_applied == 8
    assert sorted(chief.state.ledger.applied()) == list(range(8))


def test_members_a_step_apart_do_not_disturb_the_rate_of_their_mesh():
    clock = ManualClock()
    chief = make_chief(workload=10_000, clock=clock)
    phase = begin(chief, "bsp", end=10_000)
    done = granted = 0
    for tick in range(100):
        done += 2
        granted += len(units_of(lease(chief, phase, known=granted, completed=done - 2)))
        for worker in range(4):
            completed = max(0, done - worker % 2)
            chief.service.report(Report("worker", worker, 1, phase.id, completed=completed))
        clock.advance(0.1)
        assert tick < 50 or sum(chief.state.worker_rates().values()) == pytest.approx(20, rel=0.1)


def test_repeating_what_was_applied_is_harmless():
    chief = make_chief()
    phase = begin(chief)
    collect(chief, phase, 0)
    for _ in range(2):
        served(chief, phase, (0, 3), dropped=((5, "too stale"),))
    counts = chief.state.ledger.counts()
    assert (counts.applied, counts.dropped) == (3, 1)


def test_the_holders_word_is_the_truth_and_the_rest_is_outstanding_again():
    chief = make_chief()
    phase = begin(chief)
    collect(chief, phase, 0)
    snapshot = Snapshot(1, StateVersion(phase.id, 5, 5, ""), ((0, 4), (6, 7)), ((4, 5),), 0, 0.0, 0.0)
    with chief.control.turn() as state:
        state.close_leases()
        state.record_snapshot(snapshot)
    chief.state.ledger.release_all()
    begin(chief, number=2)
    counts = chief.state.ledger.counts()
    assert (counts.applied, counts.dropped, counts.outstanding) == (5, 1, WORKLOAD - 6)
    again = collect(chief, phase_of(2), 1)
    assert again == [5, *range(7, WORKLOAD), WORKLOAD]


def test_units_that_stand_still_are_offered_to_others_too():
    chief = make_chief(num_workers=2)
    phase = begin(chief, end=4)
    slow = collect(chief, phase, 0)
    assert chief.state.ledger.room(phase.end_units) == 0
    with chief.control.turn() as state:
        assert state.reclaim() == {"worker 0": 4}
    assert chief.service.units_for(LeaseRequest(0, 1, phase.id, 4, 0)) is None, "it has them still"
    assert collect(chief, phase, 1) == slow
    served(chief, phase, (0, 4))
    assert lease(chief, phase, 0, known=4).final
    assert chief.state.ledger.counts().issued == 4


# --- clocks, and what workers spend their time with ---


def test_a_role_whose_clock_is_ahead_has_its_stamps_and_spans_by_the_chiefs():
    clock = ManualClock(now=50.0)
    chief = make_chief(clock=clock)
    phase = begin(chief)
    exchange = Exchange(sent=55.0, received=50.0, replied=50.25, returned=55.25)
    span = Span("apply", "server", 56.0, 0.1, 1, 1)
    clock.advance(2.0)
    served(chief, phase, exchange=exchange, first_applied=56.0, last_applied=56.5, spans=(span,))
    assert chief.state.phase_members.first_and_last() == (51.0, 51.5)
    assert chief.state.take_reports().spans == [("server", 0, (span,), -5.0)]
    snapshot = Snapshot(1, StateVersion(phase.id, 0, 0, ""), (), (), 8, 56.0, 0.0)
    assert chief.state.stamps_of("server", 0, snapshot) == (51.0, 0.0), "and nothing applied yet stays that"
    assert chief.state.stamps_of("worker", 0, snapshot) == (56.0, 0.0), "whose clock is its own"


def test_a_new_process_in_a_role_has_a_clock_of_its_own():
    chief = make_chief()
    phase = begin(chief)
    exchange = Exchange(sent=55.0, received=50.0, replied=50.25, returned=55.25)
    told = Report("worker", 0, 1, phase.id, exchange=exchange, first_applied=56.0)
    chief.service.report(told)
    assert chief.state.stamps_of("worker", 0, told) == (51.0, 0.0)
    chief.service.register(replace(hello(0, pid=500), restart_count=1))
    assert chief.state.stamps_of("worker", 0, told) == (56.0, 0.0)


def test_an_answer_that_was_held_back_says_so():
    clock = ManualClock(now=50.0)
    chief = make_chief(clock=clock)
    phase = begin(chief, "bsp")

    def end() -> None:
        while not chief.state.take_reports().compute_secs:  # the report has not come
            pause(0.01)
        clock.advance(0.5)
        chief.control.finish()

    with ThreadPoolExecutor() as threads:
        told = Report("worker", 0, 1, phase.id, compute_secs=0.25, hold_secs=60.0)
        reply = threads.submit(chief.service.report, told)
        threads.submit(end)
        assert (reply.result(10).received, reply.result(10).replied) == (50.0, 50.5)


def test_the_time_of_each_worker_is_summed_until_it_is_taken():
    chief = make_chief()
    phase = begin(chief)
    for secs in (0.25, 0.5):
        chief.service.report(Report("worker", 2, 1, phase.id, compute_secs=secs, read_secs=secs, wait_secs=secs / 2))
    served(chief, phase)
    reports = chief.state.take_reports()
    assert (reports.compute_secs, reports.wait_secs) == ({2: 0.75}, {2: 0.375}), "a server computes for nobody"
    assert reports.read_secs == {2: 0.75}
    assert chief.state.take_reports().compute_secs == {}
