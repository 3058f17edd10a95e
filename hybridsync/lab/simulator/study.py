"""Simulates plans beside each other, several seeds of each, and compares the results. Loads no jax."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hybridsync import protocols
from hybridsync.config import RunConfig
from hybridsync.core.errors import ConfigError
from hybridsync.core.plan import Plan
from hybridsync.lab.simulator.cluster import Scenario

if TYPE_CHECKING:
    from hybridsync.lab.simulator.simulation import Result

Gradients = Literal["real", "compiled", "none"]


@dataclass(frozen=True)
class Study:
    """Describes which plans to simulate, how often, and on which cluster.

    Args:
      config: configuration of every run, except plan and seed.
      plans: plans, in the plan's grammar.
      num_seeds: number of seeds of each plan; the first is the configuration's.
      scenario: the cluster, and the incidents of the run.
      about: name of the scenario.
      gradients: "real", "compiled" or "none".

    Raises:
      ConfigError: there is no seed or no plan, a plan is there twice, or the scenario names an absent role.
      PlanError: a plan does not parse, names an unknown protocol, or gives a stage no unit.
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
        for config in self.configs.values():
            for stage in Plan.parse(config[0].plan).stages:
                protocols.resolve(stage)
        self.scenario.check(self.config.workers, self.config.servers)

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
