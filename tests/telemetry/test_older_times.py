"""Records of versions whose time counted start-up, beside those of today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridsync.telemetry.events import EVENTS_FILE, EventLog, read_events
from hybridsync.telemetry.metrics import METRICS_FILE, MetricsLog, read_metrics
from tests.telemetry.clocks import ManualClock


def _event(t: float, kind: str, phase: int = 1, **fields: Any) -> str:
    return json.dumps({"t": t, "wall": 1000.0 + t, "kind": kind, "phase": phase, **fields}) + "\n"


OLD = (
    _event(0.0, "run_started", 0, reason="start")
    + _event(4.0, "phase_entered")
    + _event(7.0, "switch")
    + _event(7.5, "phase_entered", 2)
    + _event(9.0, "run_finished", 2)
    + _event(9.0, "run_started", 2, reason="resume")  # it leased no unit
    + _event(11.0, "role_lost", 2)
    + _event(11.0, "run_started", 2, reason="resume")
    + _event(13.0, "phase_entered", 3)
    + _event(14.0, "role_lost", 3)
)
OLD_LINES = "".join(json.dumps({"t": t, "phase": phase}) + "\n" for t, phase in ((5.0, 1), (8.0, 2), (15.0, 3)))


def _left(workdir: Path) -> None:
    (workdir / EVENTS_FILE).write_text(OLD)
    (workdir / METRICS_FILE).write_text(OLD_LINES)


def test_sessions_of_older_versions_stand_on_the_runs_time_and_say_what_they_took_to_start(tmp_path: Path) -> None:
    _left(tmp_path)
    assert [(event["t"], event["kind"]) for event in read_events(tmp_path)] == [
        (0.0, "run_started"),
        (0.0, "phase_entered"),
        (0.0, "training_started"),
        (3.0, "switch"),
        (3.5, "phase_entered"),
        (5.0, "run_finished"),
        (5.0, "run_started"),
        (5.0, "role_lost"),
        (5.0, "run_started"),
        (5.0, "phase_entered"),
        (5.0, "training_started"),
        (6.0, "role_lost"),
    ]
    assert [event["start_up_secs"] for event in read_events(tmp_path, "training_started")] == [4.0, 2.0]
    assert [line["t"] for line in read_metrics(tmp_path)] == pytest.approx([1.0, 4.0, 7.0])


def test_a_session_of_today_goes_on_after_those_of_older_versions(tmp_path: Path) -> None:
    _left(tmp_path)
    for _ in range(2):  # the second resumes what today's version has left
        clock = ManualClock()
        log = EventLog(tmp_path, clock)
        metrics = MetricsLog(tmp_path, log.elapsed)
        log.write("run_started", phase=3, reason="resume")
        log.close()
        metrics.close()
        log = EventLog(tmp_path, clock)
        metrics = MetricsLog(tmp_path, log.elapsed)
        log.write("run_started", phase=3, reason="resume")
        log.write("training_started", phase=4, start_up_secs=1.0)
        log.elapsed.begin(clock.monotonic())
        clock.advance(2.0)
        log.write("phase_ended", phase=4)
        log.close()
        metrics.close()
    times = [event["t"] for event in read_events(tmp_path)]
    assert times == sorted(times) and times[-1] == 7.0 + 2.0 + 2.0
    assert [event["t"] for event in read_events(tmp_path, "training_started")] == [0.0, 5.0, 7.0, 9.0]


@pytest.mark.parametrize("damaged", ['{"wall": 1.0}', '{"t": "soon", "wall": 1.0, "kind": "switch", "phase": 1}'])
def test_a_line_without_a_time_is_left_to_its_reader(tmp_path: Path, damaged: str) -> None:
    (tmp_path / EVENTS_FILE).write_text(OLD + damaged + "\n")
    (tmp_path / METRICS_FILE).write_text(OLD_LINES)
    assert [line["t"] for line in read_metrics(tmp_path)] == [5.0, 8.0, 15.0]
