"""A worker that is left out measures itself: how often, on what, and what is told of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hybridsync.config import EmulationConfig
from hybridsync.emulation.device import Emulation
from hybridsync.storage.apply_log import NullApplyLog
from hybridsync.worker.replica import Replica
from hybridsync.worker.self_probe import BURST, DUTY, Measuring, Rhythm
from hybridsync.worker.stats import WorkerRecorder
from tests.roles import Start, phase_of, tally_programs
from tests.telemetry.clocks import ManualClock


class Timed:
    """The tally's programs, on a device that takes its time; notes what was computed, and on what."""

    def __init__(self, clock: ManualClock, secs: float) -> None:
        self._programs, self._clock, self.secs = tally_programs(), clock, secs
        self.computed: list[tuple[int, np.ndarray]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._programs, name)

    def gradient(self, parameters: Any, unit: int, *, worker: int) -> Any:
        self._clock.advance(self.secs)
        self.computed.append((unit, np.asarray(parameters.params["tally"])))
        return self._programs.gradient(parameters, unit, worker=worker)


class Harness:
    def __init__(self, secs: float = 0.1) -> None:
        self.clock, self.start = ManualClock(), Start()
        self.programs: Any = Timed(self.clock, secs)
        self.replica = Replica(self.programs, self.start.reader_at, self.clock, NullApplyLog())
        self.recorder = WorkerRecorder(2, self.clock, keep_spans=True, keep_unit_secs=True)
        self.measuring = Measuring(2, self.programs, self.replica, self.recorder, Emulation(EmulationConfig(), 8))


def test_what_is_computed_is_timed_and_told_and_nothing_is_applied():
    harness = Harness()
    harness.replica.enter(phase_of(1, "bsp", end=8, snapshot=harness.start.snapshot), 0)
    before = harness.replica.held()
    harness.measuring.measure(5)
    report = harness.recorder.take_report()
    assert report.unit_secs == pytest.approx((0.1,)) and [span.name for span in report.spans] == ["probe"]
    assert (report.completed, report.applied, report.num_losses, report.compute_secs) == (0, (), 0, 0.0)
    assert harness.replica.held() == before
    ((unit, parameters),) = harness.programs.computed
    assert unit == 5 and not parameters.any()


def test_who_holds_no_state_measures_itself_on_zeros():
    harness = Harness()
    harness.measuring.measure(3)
    ((unit, parameters),) = harness.programs.computed
    assert unit == 3 and not parameters.any()
    assert len(harness.recorder.take_report().unit_secs) == 1


def test_it_rests_after_the_first_ones_and_not_when_it_takes_part_again():
    harness = Harness()
    for _ in range(BURST):
        harness.measuring.measure(0)
        assert harness.measuring.rest_secs == 0.0
    harness.measuring.measure(0)
    assert harness.measuring.rest_secs == pytest.approx(0.1 * (1 / DUTY - 1))
    harness.clock.advance(0.2)
    assert harness.measuring.rest_secs == pytest.approx(0.1 * (1 / DUTY - 1) - 0.2)
    harness.measuring.begin()
    assert harness.measuring.rest_secs == 0.0


def told(secs: list[float]) -> list[bool]:
    """Return behind which measures a worker rests, after its first ones took 0.2 s."""
    rhythm = Rhythm()
    for _ in range(BURST):
        assert rhythm.rest_secs(0.2) == 0.0
    return [rhythm.rest_secs(each) > 0.0 for each in secs]


def test_as_soon_as_it_is_better_it_measures_itself_at_a_stretch_for_a_while():
    assert told([0.2, 0.19, 0.1, 0.1, 0.2]) == [True, True, False, False, True]
    assert told([0.1] * (BURST + 2)) == [False] * BURST + [True] * 2


def test_one_measure_that_took_long_by_chance_makes_the_others_no_better():
    assert told([2.0, 0.2, 0.2]) == [True, True, True]


def test_who_is_slow_only_later_is_noticed_when_that_is_over_all_the_same():
    rhythm = Rhythm()
    for _ in range(BURST):
        rhythm.rest_secs(0.1)
    assert [rhythm.rest_secs(secs) > 0.0 for secs in (0.1, 0.3, 0.3, 0.3, 0.1)] == [True, True, True, True, False]
