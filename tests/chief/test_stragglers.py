"""The chief judges its workers by what they report of themselves, in the phase that is active."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunState, RunStateSpec
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.plan import NO_PHASE
from hybridsync.interfaces.messages import PhaseReply, PhaseRequest
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Report
from hybridsync.policies.straggler_detector import WINDOW, Decision, Detector
from tests.chief.chiefs import WORKLOAD, Chief, begin
from tests.roles import hello, phase_of


def judging_chief() -> Chief:
    chief = Chief(
        RunState(Ledger(WORKLOAD), 4, "schema", SYSTEM_CLOCK, RunStateSpec(lease_secs=math.inf, detector=Detector()))
    )
    for worker in range(4):
        chief.service.register(hello(worker, pid=100 + worker))
    chief.service.register(hello(0, role="server", pid=99))
    return chief


def report_windows(
    chief: Chief, phase: Phase, num_windows: int, slow: int = 2, workers: Sequence[int] = range(4)
) -> list[Decision]:
    for worker in workers:
        secs = 0.2 if worker == slow else 0.1
        chief.service.report(Report("worker", worker, 1, phase.id, unit_secs=(secs,) * WINDOW * num_windows))
    return chief.state.take_reports().decisions


def test_a_slow_worker_is_flagged_by_what_it_reports_of_itself():
    chief = judging_chief()
    (decision,) = report_windows(chief, begin(chief, "bsp"), 4)
    assert (decision.worker, decision.flagged) == (2, True) and chief.state.detector.flagged == (2,)


def test_who_is_flagged_stays_so_in_the_next_phase_which_measures_anew():
    chief = judging_chief()
    report_windows(chief, begin(chief, "bsp"), 4)
    assert not report_windows(chief, begin(chief, "asp", number=2), 2, slow=1)
    assert chief.state.detector.flagged == (2,)


def test_what_is_said_of_an_earlier_phase_is_not_judged():
    chief = judging_chief()
    earlier = begin(chief, "bsp")
    begin(chief, "asp", number=2)
    assert not report_windows(chief, earlier, 8) and chief.state.detector.flagged == ()


def test_a_straggler_that_is_lost_is_one_no_longer():
    chief = judging_chief()
    report_windows(chief, begin(chief, "asp"), 4)
    with chief.control.turn() as state:
        state.evict("worker", 2, "it said nothing")
    assert chief.state.detector.flagged == ()


def test_a_chief_without_a_detector_flags_nobody():
    chief = judging_chief()
    deaf = Chief(RunState(Ledger(WORKLOAD), 4, "schema", SYSTEM_CLOCK, RunStateSpec(lease_secs=math.inf)))
    for worker in range(4):
        deaf.service.register(hello(worker, pid=100 + worker))
    assert not report_windows(deaf, begin(deaf, "bsp"), 8)
    assert report_windows(chief, begin(chief, "bsp"), 8)


def on_gpus(gpus: Sequence[str]) -> Chief:
    """Return a chief whose workers compute on these GPUs of a host."""
    chief = Chief(
        RunState(Ledger(WORKLOAD), 4, "schema", SYSTEM_CLOCK, RunStateSpec(lease_secs=math.inf, detector=Detector()))
    )
    for worker, gpu in enumerate(gpus):
        chief.service.register(hello(worker, pid=100 + worker, devices=(gpu,)))
    chief.service.register(hello(0, role="server", pid=99))
    return chief


def test_workers_that_share_a_device_are_not_judged_and_the_others_are():
    chief = on_gpus(["0", "1", "2", "2"])
    assert chief.state.take_reports().sharers == {2, 3}
    phase = begin(chief, "bsp")
    assert not report_windows(chief, phase, 8, slow=2)
    assert chief.state.judged().units_per_sec == pytest.approx({0: 10.0, 1: 10.0})
    (decision,) = report_windows(chief, phase, 8, slow=1)
    assert (decision.worker, decision.flagged, decision.workers) == (1, True, 2)


def test_a_worker_is_judged_again_once_it_has_its_device_for_itself():
    chief = on_gpus(["0", "1", "2", "2"])
    phase = begin(chief, "asp")
    assert not report_windows(chief, phase, 8, slow=2)
    with chief.control.turn() as state:
        state.evict("worker", 3, "it said nothing")
    found = [decision for _ in range(8) for decision in report_windows(chief, phase, 1, workers=range(3))]
    assert [(decision.worker, decision.flagged) for decision in found] == [(2, True)]


def test_a_flagged_worker_that_gets_to_share_its_device_is_flagged_no_longer():
    chief = on_gpus(["0", "1", "2", "3"])
    report_windows(chief, begin(chief, "asp"), 4, slow=2)
    assert chief.state.detector.flagged == (2,)
    chief.service.register(hello(3, pid=204, restart_count=1, devices=("2",)))
    assert chief.state.detector.flagged == ()


def leave_out(chief: Chief, worker: int) -> Phase:
    """Have a lock-step phase begin without one of four workers."""
    phase = phase_of(1, "bsp", end=WORKLOAD, members=tuple(other for other in range(4) if other != worker))
    with chief.control.turn() as state:
        state.begin(phase, left_out=(worker,))
        state.open_leases()
    return phase


def ask(chief: Chief, worker: int, rest_secs: float = 0.0) -> PhaseReply | None:
    return chief.service.phase_for(PhaseRequest(worker, 1, NO_PHASE, None, rest_secs=rest_secs))


def test_who_is_left_out_is_told_to_measure_itself_by_the_newest_unit_applied_but_not_while_it_rests():
    chief = judging_chief()
    phase = leave_out(chief, 2)
    assert ask(chief, 2) is None, "no unit is known to be one that can be computed"
    chief.service.report(Report("worker", 0, 1, phase.id, applied=((0, 6),)))
    assert ask(chief, 2) == PhaseReply(None, probe=5)
    assert ask(chief, 2, rest_secs=0.3) is None
    assert ask(chief, 0) == PhaseReply(phase)


def test_what_is_left_out_says_of_itself_is_judged_though_it_is_in_no_phase():
    chief = judging_chief()
    report_windows(chief, begin(chief, "bsp"), 4)
    phase = leave_out(chief, 2)
    for _ in range(4):
        for worker in range(4):
            phase_id = NO_PHASE if worker == 2 else phase.id
            chief.service.report(Report("worker", worker, 1, phase_id, unit_secs=(0.1,) * WINDOW))
    (decision,) = chief.state.take_reports().decisions
    assert (decision.worker, decision.flagged) == (2, False) and chief.state.judged().units_per_sec[2] == pytest.approx(
        10.0
    )


def test_nobody_waits_for_the_measures_of_who_is_left_out():
    chief = judging_chief()
    phase = leave_out(chief, 2)
    for _ in range(4):
        for worker in (0, 1, 3):
            secs = 0.15 if worker == 3 else 0.1
            chief.service.report(Report("worker", worker, 1, phase.id, unit_secs=(secs,) * WINDOW))
    assert [decision.worker for decision in chief.state.take_reports().decisions] == [3]


def test_a_worker_that_is_no_longer_left_out_is_called_to_the_next_phase():
    chief = judging_chief()
    leave_out(chief, 2)
    phase = begin(chief, "bsp", number=2)
    assert ask(chief, 2) == PhaseReply(phase)


def test_nobody_measures_itself_while_a_phase_ends_or_breaks():
    for end in (RunState.close_leases, lambda state: state.break_phase("a test")):
        chief = judging_chief()
        leave_out(chief, 2)
        with chief.control.turn() as state:
            end(state)
        assert ask(chief, 2) is None


def test_the_rate_of_a_mesh_is_its_members_and_nobody_elses():
    chief = judging_chief()
    leave_out(chief, 2)
    leases = chief.state.leases
    for at, done in ((1.0, 0), (2.0, 12)):
        leases.record_progress("mesh", done, at)
    assert chief.state.worker_rates() == pytest.approx({0: 4.0, 1: 4.0, 2: 0.0, 3: 4.0})
