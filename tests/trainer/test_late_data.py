"""Waiting for data is a figure of its own, and no part of computing."""

from __future__ import annotations

import dataclasses
import statistics
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hybridsync import Callback, EmulationConfig, TelemetryConfig, Trainer
from hybridsync.lab.report.page import page
from hybridsync.lab.report.reading import shown_records
from tests.tasks import UNIT_SIZE, mlp_task, plain_sgd
from tests.trainers import NEVER, lines_of

READ_SECS = 0.03


class Late:
    """A source that takes its time for each unit."""

    def __init__(self, source: Any, secs: float, threads: int) -> None:
        self.source, self.secs, self.threads = source, secs, threads

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def batch(self, unit: int, **options: Any) -> Any:
        threading.Event().wait(self.secs)
        return self.source.batch(unit, **options)


class Following(Callback):
    def __init__(self) -> None:
        self.lines: list[Mapping[str, Any]] = []

    def on_metrics(self, run, metrics) -> None:
        self.lines.append(metrics)


def trained(workdir: Path, plan: str, secs: float, threads: int, **options: Any) -> Path:
    task = mlp_task()
    options = {"workload": 60, "unit_size": UNIT_SIZE, "workers": 2, "progress": False, "checkpoint": NEVER, **options}
    options["telemetry"] = TelemetryConfig(log_secs=0.2, timeline=True)
    late = dataclasses.replace(task, source=Late(task.source, secs, threads))
    Trainer(late, plain_sgd(0.01), plan=plan, workdir=workdir, **options).fit()
    return workdir


def share(line: Mapping[str, Any]) -> float:
    """Return the share of reading in what workers did by themselves in an interval."""
    read, computed = (sum(line[name].values()) for name in ("read_secs", "compute_secs"))
    return read / (read + computed)


@pytest.mark.parametrize("threads", [0, 1], ids=["when needed", "ahead"])
@pytest.mark.parametrize("plan", ["bsp", "asp", "localsgd(steps=2)", "preduce"])
def test_late_data_are_reading_and_not_computing(plan: str, threads: int, tmp_path: Path) -> None:
    follows = Following()
    workdir = trained(tmp_path / "run", plan, READ_SECS, threads, callbacks=[follows])
    lines = [line for line in lines_of(workdir / "metrics.jsonl") if sum(line["compute_secs"].values())]
    shares = [share(line) for line in lines[1:]]
    assert max(shares) >= 0.8, "without the first line, in which programs are compiled"
    assert statistics.median(shares) >= 0.5, "on a busy machine a unit of a millisecond waits for a processor"
    assert follows.lines == lines_of(workdir / "metrics.jsonl")
    (record,) = shown_records([workdir])
    spans = {name: [span for span in record.trace if span["name"] == name] for name in ("read", "compute")}
    read, computed = ([span["dur"] / 1e6 for span in found] for found in spans.values())
    assert statistics.median(read) >= 0.8 * READ_SECS and min(computed) < READ_SECS / 4
    text = page([record])
    assert "waiting for data" in text and 'title="read ' in text


def test_data_that_are_there_take_no_time_of_the_workers(tmp_path: Path) -> None:
    workdir = trained(tmp_path / "run", "asp", 0.0, 1, emulation=EmulationConfig(compute_secs=READ_SECS))
    lines = [line for line in lines_of(workdir / "metrics.jsonl") if sum(line["compute_secs"].values())]
    assert statistics.median(map(share, lines)) < 0.2
