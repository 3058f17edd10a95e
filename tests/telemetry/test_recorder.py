import errno
import json
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from hybridsync.interfaces.reports import Span
from hybridsync.telemetry.events import read_events
from hybridsync.telemetry.metrics import Metrics
from hybridsync.telemetry.recorder import Recorder
from tests.telemetry.clocks import ManualClock

METRICS = Metrics(1, 1, 1, "asp", None, 0.1, 1.0, {"mean": 0.0, "p95": 0, "max": 0}, {})


def _record(recorder: Recorder) -> None:
    recorder.events.write("run_started", phase=0)
    recorder.metrics.write(METRICS)
    recorder.timeline.add("chief", 0, [Span("drain", "switch", 100.0, 0.1, 1, 0)])
    recorder.progress.update(METRICS)
    recorder.board.metrics(METRICS)
    recorder.close()


def test_a_workdir_gets_events_metrics_and_timeline(tmp_path: Path) -> None:
    _record(Recorder.open(tmp_path, ManualClock()))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "events.jsonl",
        "metrics.jsonl",
        "tensorboard",
        "timeline.json",
    ]
    assert len(read_events(tmp_path)) == 1


def test_the_timeline_can_be_left_out(tmp_path: Path) -> None:
    _record(Recorder.open(tmp_path, ManualClock(), timeline=False))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "events.jsonl",
        "metrics.jsonl",
        "tensorboard",
    ]


def test_a_run_without_a_workdir_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _record(Recorder.null(ManualClock()))
    assert list(tmp_path.iterdir()) == []


def test_a_workdir_has_no_tensorboard_where_its_package_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    _record(Recorder.open(tmp_path, ManualClock()))
    assert not (tmp_path / "tensorboard").exists()


def test_a_killed_life_leaves_its_spans_to_the_next_one(tmp_path: Path) -> None:
    clock = ManualClock()
    killed = Recorder.open(tmp_path, clock)
    killed.events.write("run_started", phase=0)
    killed.events.write("training_started", phase=1, start_up_secs=0.0)
    killed.events.elapsed.begin(clock.monotonic())
    killed.timeline.add("worker", 0, [Span("step", "sync", 101.0, 0.5, 1, 4)])
    killed.board.close()  # its file alone is Python's, and would be missed
    clock.advance(8.0)
    second = Recorder.open(tmp_path, clock, restarted=True)
    second.timeline.add("worker", 0, [Span("step", "sync", 104.0, 0.5, 1, 4)])
    second.close()
    trace = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert [event["ts"] for event in trace if event["ph"] == "X"] == [1e6, 4e6], "in the outage the run went on"
    assert not (tmp_path / "timeline.part").exists()


def test_a_disk_that_refuses_one_file_at_the_end_does_not_keep_the_others_from_being_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    recorder, closed = Recorder.open(tmp_path, ManualClock()), []
    monkeypatch.setattr(recorder.timeline, "write", refuse)
    monkeypatch.setattr(recorder.metrics, "close", refuse)
    monkeypatch.setattr(recorder.events, "close", lambda: closed.append("events"))
    _record(recorder)
    assert closed == ["events"]
    assert caplog.text.count("the run's record is incomplete: [Errno 28] No space left on device") == 2
