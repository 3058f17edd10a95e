"""A run's newest figures, folded out of its own record."""

from __future__ import annotations

from pathlib import Path

from hybridsync.interfaces.commands import Figure
from hybridsync.telemetry.metrics import Metrics
from hybridsync.telemetry.recorder import Recorder
from hybridsync.telemetry.run_figures import RunFigures, follow
from tests.telemetry.clocks import ManualClock


def started(role: str, role_id: int, pid: int) -> dict:
    return {"kind": "role_started", "t": 1.0, "role": role, "id": role_id, "pid": pid}


def test_a_process_that_takes_anothers_place_is_a_restart() -> None:
    figures = RunFigures()
    for event in (started("worker", 0, 1), started("worker", 1, 2), started("worker", 0, 3), started("worker", 0, 4)):
        figures.event(event)
    assert figures.read().restarts == {("worker", 0): 2, ("worker", 1): 0}
    figures.event({"kind": "run_started", "t": 2.0, "reason": "resume"})
    figures.event(started("worker", 0, 9))  # its next session starts everybody
    assert figures.read().restarts["worker", 0] == 2


def test_a_run_that_begins_anew_knows_nothing_of_the_one_before() -> None:
    figures = RunFigures()
    figures.event({"kind": "checkpoint", "t": 1.0, "units": 5, "bytes": 10})
    figures.event({"kind": "run_started", "t": 2.0, "reason": "start"})
    assert figures.read().checkpoint_units == -1 and figures.seconds == 2.0


LINE = {"t": 9.0, "units": 90, "examples": 90, "examples_per_sec": 120.0, "loss": 0.1, "learning_rate": 0.1}
LINE |= {"staleness": {}, "workers": {"0": 60.0}, "sent_bytes": {"0": 7}}


def test_a_session_that_goes_on_has_its_own_rates_and_a_checkpoint_that_was_set_aside_counts_no_more() -> None:
    figures = RunFigures()
    events = [
        {"kind": "run_started", "t": 0.0, "reason": "start"},
        {"kind": "checkpoint", "t": 5.0, "units": 50, "bytes": 10},
        {"kind": "checkpoint", "t": 9.0, "units": 90, "bytes": 10},
        {"kind": "run_started", "t": 9.0, "reason": "resume", "quarantined": [[2, "damaged"]]},
    ]
    follow(events, [LINE], figures)
    found = figures.read()
    assert (found.figures, found.units_per_sec, found.units) == ({}, {}, -1)
    assert (found.checkpoint_units, found.checkpoint_t, found.checkpoint_bytes) == (50, 5.0, 20)
    assert found.sent_bytes == {0: 7}, "the run has sent that"
    again = RunFigures()
    follow(events, [LINE, {**LINE, "t": 10.0, "units": 60}], again)
    assert again.read().units == 60 and again.read().units_per_sec == {0: 40.0}


def test_a_rollback_forgets_the_checkpoints_of_what_it_took_back() -> None:
    figures = RunFigures()
    for units in (50, 90):
        figures.event({"kind": "checkpoint", "t": 5.0, "units": units, "bytes": 10})
    figures.event({"kind": "rollback", "t": 6.0, "to_units": 50, "rolled_back": 40})
    assert figures.read().checkpoint_units == 50


def test_what_is_not_finite_is_no_figure() -> None:
    figures = RunFigures()
    event = {"kind": "evaluation", "t": 1.0, "wall": 1.0, "phase": 1, "examples": 8, "units": 4}
    figures.event({**event, "accuracy": None, "loss": float("nan"), "spread": 0.5})
    (evaluation,) = figures.read().evaluations
    assert (evaluation.units, evaluation.figures) == (4, (Figure("spread", 0.5),))


def test_a_recorder_follows_what_it_writes_and_what_was_written_before(tmp_path: Path) -> None:
    clock = ManualClock()
    recorder = Recorder.open(tmp_path, clock)
    recorder.events.write("phase_entered", phase=2, protocol="asp", members=[0], reason="start", units=0,
                          learning_rate=0.1, units_per_update=1)  # fmt: skip
    metrics = Metrics(10, 80, 2, "asp", 0.5, 0.1, 16.0, {"mean": 1.0, "p95": 2, "max": 3}, {0: 8.0}, sent_bytes={0: 7})
    recorder.metrics.write(metrics)
    recorder.metrics.write(metrics)
    found = recorder.figures.read()
    assert (found.phase, found.protocol, found.units_per_sec, found.sent_bytes) == (2, "asp", {0: 1.0}, {0: 14})
    assert found.figures == {
        "units_per_sec": 2.0,
        "loss": 0.5,
        "learning_rate": 0.1,
        "staleness_mean": 1.0,
        "staleness_p95": 2.0,
        "staleness_max": 3.0,
    }
    recorder.close()
    again = Recorder.open(tmp_path, clock)
    assert again.figures.read().figures == found.figures and again.figures.read().phase == 2
    assert again.figures.read().sent_bytes == {0: 14}
    again.close()
