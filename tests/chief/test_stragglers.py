"""The chief judges its workers by what they report of themselves, in the phase that is active."""

from __future__ import annotations

import math

from hybridsync.chief.chief import Chief
from hybridsync.chief.ledger import Ledger
from hybridsync.clock import SYSTEM_CLOCK
from hybridsync.messages import Report
from hybridsync.plan import Phase
from hybridsync.policies.stragglers import WINDOW, Decision, Detector
from tests.chief.chiefs import WORKLOAD, begin
from tests.roles import hello


def judging_chief() -> Chief:
    chief = Chief(Ledger(WORKLOAD), 4, "schema", SYSTEM_CLOCK, math.inf, detector=Detector())
    for worker in range(4):
        chief.register(hello(worker, pid=100 + worker))
    chief.register(hello(0, role="server", pid=99))
    return chief


def report_windows(chief: Chief, phase: Phase, num_windows: int, slow: int = 2) -> list[Decision]:
    for worker in range(4):
        secs = 0.2 if worker == slow else 0.1
        chief.report(Report("worker", worker, 1, phase.epoch, unit_secs=(secs,) * WINDOW * num_windows))
    return chief.take_intake().decisions


def test_a_slow_worker_is_flagged_by_what_it_reports_of_itself():
    chief = judging_chief()
    (decision,) = report_windows(chief, begin(chief, "bsp"), 4)
    assert (decision.worker, decision.flagged) == (2, True) and chief.stragglers() == (2,)


def test_who_is_flagged_stays_so_in_the_next_phase_which_measures_anew():
    chief = judging_chief()
    report_windows(chief, begin(chief, "bsp"), 4)
    assert not report_windows(chief, begin(chief, "asp", number=2), 3, slow=1)
    assert chief.stragglers() == (2,)


def test_what_is_said_of_an_earlier_phase_is_not_judged():
    chief = judging_chief()
    earlier = begin(chief, "bsp")
    begin(chief, "asp", number=2)
    assert not report_windows(chief, earlier, 8) and chief.stragglers() == ()


def test_a_straggler_that_is_lost_is_one_no_longer():
    chief = judging_chief()
    report_windows(chief, begin(chief, "asp"), 4)
    chief.evict(2, "it said nothing")
    assert chief.stragglers() == ()


def test_a_chief_without_a_detector_flags_nobody():
    chief = judging_chief()
    deaf = Chief(Ledger(WORKLOAD), 4, "schema", SYSTEM_CLOCK, math.inf)
    for worker in range(4):
        deaf.register(hello(worker, pid=100 + worker))
    assert not report_windows(deaf, begin(deaf, "bsp"), 8)
    assert report_windows(chief, begin(chief, "bsp"), 8)
