"""Carries out a study: every plan with every seed, with a progress bar, into folders that the report can read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hybridsync.config import RunConfig
from hybridsync.core.errors import ConfigError, WorkdirError
from hybridsync.lab.report.reading import SIMULATION_FILE
from hybridsync.lab.simulator.simulation import simulate
from hybridsync.lab.simulator.study import Column, Study, to_json
from hybridsync.storage.durable import make_directory, write_durable
from hybridsync.storage.jsonl import encode
from hybridsync.telemetry.metrics import Metrics
from hybridsync.training.run import Run


def carry_out(
    study: Study,
    run_of: Callable[[RunConfig], Run],
    *,
    workdir: Path | None = None,
    events: Path | None = None,
    terminal: TextIO | None = None,
) -> list[Column]:
    """Simulate every plan with every seed.

    Args:
      study: study to simulate.
      run_of: a configuration -> its run.
      workdir: gets simulation.json and the record of every run; None leaves nothing.
      events: file that takes every decision; one that is there is replaced.
      terminal: stream to draw a progress bar on; None for none.

    Raises:
      ConfigError: the file of events cannot be written.
      HybridSyncError: as `simulate`.
    """
    if workdir is not None:
        _take(workdir)
    columns = []
    with _opened(events) as file, _bar(terminal) as progress:
        bar = _Bar(progress, study.config.workload * len(study.plans) * study.num_seeds)
        for plan, configs in study.configs.items():
            results = []
            for config in configs:
                bar.begin(plan)
                folder = None if workdir is None else study.folder(workdir, plan, config.seed)
                run = run_of(config)
                made = simulate(
                    run, study.scenario, gradients=study.gradients, workdir=folder, events=file, progress=bar
                )
                if folder is not None:
                    _write(folder, study, [Column(plan, [made])])
                results.append(made)
            columns.append(Column(plan, results))
    if workdir is not None:
        _write(workdir, study, columns)
    return columns


def _take(workdir: Path) -> None:
    """Make the folder of a study.

    Raises:
      WorkdirError: it holds one already, or cannot be made.
    """
    if (workdir / SIMULATION_FILE).exists():
        raise WorkdirError(f"{workdir} holds a simulation already; name a fresh workdir")
    try:
        make_directory(workdir)
    except OSError as error:
        raise WorkdirError(f"cannot create {workdir}: {error.strerror}; name another workdir") from None


def _opened(path: Path | None) -> AbstractContextManager[TextIO | None]:
    try:
        return nullcontext() if path is None else path.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigError(f"cannot write --events={path}: {error.strerror}; name another file") from None


def _write(workdir: Path, study: Study, columns: Sequence[Column]) -> None:
    write_durable(workdir / SIMULATION_FILE, json.dumps(json.loads(encode(to_json(study, columns))), indent=2) + "\n")


def _bar(terminal: TextIO | None) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("units"),
        TimeRemainingColumn(),
        console=Console(file=terminal, stderr=terminal is None),
        transient=True,
        disable=terminal is None or not terminal.isatty(),
    )


class _Bar:
    """Moves one bar on through several simulations (see `hybridsync.telemetry.progress.ProgressSink`)."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._done, self._units = progress, 0, 0
        self._task = progress.add_task("simulating", total=total)

    def begin(self, plan: str) -> None:
        """Go on with the next simulation."""
        self._done, self._units = self._done + self._units, 0
        self._progress.update(self._task, description=f"simulating {plan}", completed=self._done)

    def update(self, metrics: Metrics, stragglers: Sequence[int] = ()) -> None:
        self._units = metrics.units
        self._progress.update(self._task, completed=self._done + metrics.units)

    def show_line(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass
