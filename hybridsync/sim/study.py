"""Several simulations beside each other: plans, and seeds of each plan."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hybridsync.config import RunConfig
from hybridsync.durable import make_directory, write_durable
from hybridsync.errors import ConfigError, WorkdirError
from hybridsync.plan import Plan
from hybridsync.run import Run
from hybridsync.sim.cluster import Scenario
from hybridsync.sim.simulation import Gradients, Result, simulate
from hybridsync.telemetry.lines import encode
from hybridsync.telemetry.metrics import Metrics
from hybridsync.telemetry.report.reading import SIMULATION_FILE


@dataclass(frozen=True)
class Study:
    """What is simulated.

    Args:
      config: of every run, but for plan and seed.
      plans: as the plan's grammar writes them.
      num_seeds: seeds of each plan; the first is the configuration's.
      scenario: the cluster, and what happens to it.
      about: what the scenario is called.
      gradients: "real" or "none".

    Raises:
      ConfigError: there is no seed or no plan, a plan is there twice, or the scenario names a role that is not.
      PlanError: a plan does not parse, or gives a stage no unit.
    """

    config: RunConfig
    plans: tuple[str, ...]
    num_seeds: int
    scenario: Scenario
    about: str
    gradients: Gradients

    def __post_init__(self) -> None:
        if self.num_seeds < 1:
            raise ConfigError(f"--seeds must be at least 1, got {self.num_seeds}; raise it")
        if self.config.seed + self.num_seeds > 2**32:
            raise ConfigError(f"{self.num_seeds} seeds from {self.config.seed} on end above 2**32 - 1; lower one")
        if not self.plans:
            raise ConfigError("there is no plan to simulate; name one, for example asp")
        plans = [str(Plan.parse(plan)) for plan in self.plans]
        for plan in plans:
            if plans.count(plan) > 1:
                raise ConfigError(f"plan {plan!r} is there twice; compare different plans")
        self.scenario.check(self.config.workers, self.config.servers)
        _ = self.configs

    @property
    def configs(self) -> dict[str, list[RunConfig]]:
        """The configurations of each plan, one a seed."""
        first = self.config.seed
        return {
            plan: [dataclasses.replace(self.config, plan=plan, seed=first + i) for i in range(self.num_seeds)]
            for plan in self.plans
        }

    def folder(self, workdir: Path, plan: str, seed: int) -> Path:
        """Return where a run's record goes: the workdir itself where there is but one."""
        if len(self.plans) > 1:
            workdir = workdir / re.sub(r"[^\w.=-]+", "-", plan).strip("-")
        return workdir / f"seed{seed}" if self.num_seeds > 1 else workdir


@dataclass(frozen=True)
class Column:
    """The results of one plan, a seed each."""

    plan: str
    results: Sequence[Result]

    def over_seeds(self, figure: Callable[[Result], float]) -> tuple[float, float]:
        """Return a figure's mean over the seeds, and its standard deviation: 0 of one."""
        values = [figure(result) for result in self.results]
        return math.fsum(values) / len(values), statistics.stdev(values) if len(values) > 1 else 0.0

    def finals(self) -> list[str]:
        """Return the names of what was measured of the final states."""
        return [name for name, value in self.results[0].summary.final.items() if isinstance(value, int | float)]


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
      study: what to simulate.
      run_of: a configuration -> its run.
      workdir: gets simulation.json and the record of every run; None leaves nothing.
      events: file that takes every decision; one that is there is replaced.
      terminal: where to draw a progress bar; None for nowhere.

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


def to_json(study: Study, columns: Sequence[Column]) -> dict[str, Any]:
    """Return what simulation.json holds: nothing in it depends on the machine or the time of day."""
    return {
        "scenario": study.about,
        "gradients": study.gradients,
        "workers": study.config.workers,
        "servers": study.config.servers,
        "cluster": asdict(study.scenario.cluster),
        "plans": [{"plan": column.plan, "runs": list(_runs(column))} for column in columns],
    }


def _runs(column: Column) -> Iterator[dict[str, Any]]:
    for result in column.results:
        summary = result.summary
        yield {
            "seed": result.seed,
            "seconds": result.seconds,
            "units_per_sec": result.units_per_sec,
            "examples_per_sec": result.examples_per_sec,
            "units": asdict(summary.units),
            "staleness": summary.staleness,
            "bytes": result.num_bytes,
            "stall_secs": result.stall_secs,
            "final": summary.final,
            "fingerprint": result.fingerprint,
        }


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

    def note(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass
