"""Cells that predict published times: of shares of lock-step, and of stragglers."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.published_runs import read_means, read_runs
from benchmarks.reproduction.definition import Given, Row
from benchmarks.syncswitch_stragglers import CASES, SETS, STEP_SECS, UNIT_SECS, UNITS, WORKERS
from benchmarks.syncswitch_times import WORKLOAD, fitted, fitted_to, simulated
from benchmarks.virtual import seconds_of
from hybridsync.config import RunConfig
from hybridsync.lab.simulator.cluster import Cluster, Scenario


@dataclass(frozen=True)
class Share:
    """Predicts the time of a published share, on a cluster that was fitted to pure BSP and pure ASP alone.

    Args:
      percent: share of lock-step.
    """

    percent: float

    def definition(self) -> Any:
        return self

    @property
    def share(self) -> Fraction:
        """Share of lock-step."""
        return Fraction(str(self.percent)) / 100

    def needs(self, given: Given) -> str:
        if given.published is None:
            return "--published"
        if self.share in read_means(given.published):
            return ""
        return (
            f"times of such shares of BSP in {given.published}; `python -m benchmarks.syncswitch_times "
            f"--runs={given.published}` predicts whatever shares it has"
        )

    def measure(self, given: Given) -> Row:
        assert given.published is not None
        share, means, runs = self.share, read_means(given.published), read_runs(given.published)
        accuracies = [made.accuracy for made in runs[share] if made.accuracy is not None]
        return {
            "published_secs": round(means[share], 1),
            "seconds": round(simulated(_fitted(given.published), f"bsp:{self.percent:g}%,asp", WORKERS, WORKLOAD), 1),
            "published_bsp_secs": round(means[Fraction(1)], 1),
            "published_accuracy": round(sum(accuracies) / len(accuracies), 4) if accuracies else None,
            "published_runs": len(accuracies),
        }


@cache
def _fitted(path: Path) -> Cluster:
    return fitted_to(read_means(path), WORKERS, WORKLOAD)[0]


@dataclass(frozen=True)
class Latency:
    """Predicts a published slowdown by one of the models of `benchmarks.syncswitch_stragglers`.

    Args:
      model: which.
      case: which slowdown, its place in CASES.
    """

    model: str
    case: int

    def definition(self) -> Any:
        return [self, CASES[self.case]]

    def needs(self, given: Given) -> str:
        return ""

    def measure(self, given: Given) -> Row:
        case, cluster = CASES[self.case], _alike()
        config = RunConfig(workload=UNITS, unit_size=128, workers=WORKERS, plan=case.plan)
        slow = seconds_of(config, SETS[self.model](cluster, case))
        return {"slowdown": round(slow / seconds_of(config, Scenario(cluster=cluster)) - 1, 4)}


@cache
def _alike() -> Cluster:
    return fitted(STEP_SECS, UNIT_SECS, WORKERS)
