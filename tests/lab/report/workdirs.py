"""Workdirs as a run leaves them, written by the writers of a run, without a run."""

from pathlib import Path
from typing import Any, Literal

from hybridsync.config import RunConfig
from hybridsync.interfaces.reports import Span
from hybridsync.telemetry.metrics import Metrics
from hybridsync.telemetry.recorder import Recorder
from hybridsync.telemetry.summary import Summary, Units, write_config, write_summary
from tests.telemetry.clocks import ManualClock

Exit = Literal["completed", "preempted", "failed"]
STAGES = {"drain_secs": 0.01, "capture_secs": 0.02, "reserve_secs": 0.005, "enter_secs": 0.03}
CONFIG = RunConfig(workload=400, unit_size=8, workers=2, plan="bsp:25%,asp")


class WrittenRun:
    """A run that a test tells event by event; every step of the clock is a second."""

    def __init__(self, workdir: Path) -> None:
        workdir.mkdir()
        self.workdir, self.clock = workdir, ManualClock()
        write_config(workdir, CONFIG, "configs/story.py")
        self.recorder = Recorder.open(workdir, self.clock)
        self.number = 0

    def event(self, kind: str, **fields: Any) -> None:
        self.clock.advance(1.0)
        self.recorder.events.write(kind, phase=self.number, **fields)

    def resume(self) -> None:
        self.recorder = Recorder.open(self.workdir, self.clock)
        self.event("run_started", reason="resume")

    def start(self) -> None:
        self.event("run_started", reason="start")
        for worker in range(2):
            self.event("role_started", role="worker", id=worker, pid=1, host="here", address="")
            self.event("worker_joined", worker=worker)

    def phase(self, protocol: str, units: int, reason: str = "planned") -> None:
        self.number += 1
        fields = {"members": [0, 1], "learning_rate": 0.1, "units_per_update": 1}
        self.event("phase_entered", protocol=protocol, reason=reason, units=units, **fields)
        elapsed = self.recorder.events.elapsed
        if not elapsed.runs:
            secs = elapsed.start_up_secs(self.clock.monotonic())
            self.recorder.events.write("training_started", phase=self.number, start_up_secs=secs)
            elapsed.begin(self.clock.monotonic())

    def metrics(self, units: int, loss: float | None = 0.5, protocol: str = "bsp") -> None:
        self.clock.advance(1.0)
        staleness = {"mean": 1.0, "p95": 2, "max": 3}
        self.recorder.metrics.write(
            Metrics(units, units * 8, self.number, protocol, loss, 0.1, 80.0, staleness, {0: 50.0, 1: 30.0})
        )

    def spans(self, worker: int, *spans: Span) -> None:
        self.recorder.timeline.add("worker", worker, spans)

    def switch(self, units: int, stall_secs: float, compile_secs: float = 0.2) -> None:
        known = {"compile_secs": compile_secs, "commit_secs": 0.3, "stall_secs": stall_secs, "fingerprint": "f"}
        self.event("switch", **{"from": "bsp", "to": "asp"}, reason="planned", units=units, **STAGES, **known)

    def finish(self, how: Exit = "completed", error: str | None = None, applied: int = 400) -> None:
        units = Units(400, applied + 3, applied, 1, 2, 7)
        summary = Summary(how, units, applied * 8, 9.0, "bsp:25%,asp", [], {"accuracy": 0.9}, {}, error)
        write_summary(self.workdir, summary)
        self.event("run_finished", exit=how, error=error)
        self.close()

    def close(self) -> None:
        self.recorder.close()


def completed(workdir: Path) -> Path:
    """Leave a run of two phases with every kind of incident."""
    written_run = WrittenRun(workdir)
    written_run.start()
    written_run.phase("bsp", 0, "start")
    written_run.metrics(50, None)
    written_run.metrics(100, 2.0)
    written_run.spans(0, Span("step", "sync", 106.0, 1.0, 1, 2), Span("compute", "sync", 106.0, 0.75, 1, 2))
    written_run.event("phase_ended", units=100)
    written_run.phase("asp", 100)
    written_run.switch(100, 0.1)
    written_run.event("straggler_flagged", worker=1, rate=10.0, threshold=20.0)
    written_run.event(
        "policy_decided",
        policy="elastic",
        action="without workers [1]",
        workers=[1],
        why="the others are faster",
        rates={"0": 30.0, "1": 10.0},
        threshold=20.0,
        expected_secs=None,
        saved_secs=75.0,
        cost_secs=0.25,
        units_left=3000,
    )
    written_run.metrics(200, 0.1, "asp")
    written_run.event("straggler_cleared", worker=1, rate=30.0, threshold=20.0)
    written_run.event("role_lost", role="worker", id=1, reason="signal SIGKILL")
    written_run.event("worker_left", worker=1)
    written_run.event("role_started", role="worker", id=1, pid=2, host="here", address="")
    written_run.event("worker_joined", worker=1)
    written_run.event("role_lost", role="server", id=0, reason="exit 70")
    written_run.event("rollback", to_units=150, rolled_back=50)
    written_run.event("evaluation", examples=1600, accuracy=0.8, loss=0.3)
    written_run.metrics(400, 0.05, "asp")
    written_run.event("phase_ended", units=400)
    written_run.finish()
    return workdir
