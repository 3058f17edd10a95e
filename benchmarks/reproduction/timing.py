"""A cell that measures time alone: nothing is computed, so the published workload takes seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from benchmarks.reproduction.clusters import Conditions
from benchmarks.reproduction.definition import Given, Row
from benchmarks.virtual import SIZES, quiet, simulated
from configs import tally
from hybridsync.config import RunConfig, apply_overrides
from hybridsync.lab.simulator.arithmetic import Weightless
from hybridsync.training.run import Run


@dataclass(frozen=True)
class Timing:
    """Simulates a plan's time.

    Args:
      plan: the plan.
      conditions: the simulated cluster.
      seed: of every draw.
      workers: how many.
      workload: units.
      sets: values of the configuration, path=value.
    """

    plan: str
    conditions: Conditions
    seed: int
    workers: int = 8
    workload: int = 64_000
    sets: tuple[str, ...] = ()

    def definition(self) -> Any:
        return self

    def needs(self, given: Given) -> str:
        return ""

    def measure(self, given: Given) -> Row:
        config = RunConfig(workload=self.workload, unit_size=1, workers=self.workers, plan=self.plan, seed=self.seed)
        config = quiet(apply_overrides(config, self.sets))
        run = Run(config, tally.task(config), tally.optimizer(config), None)  # neither is looked at
        summary = simulated(run, self.conditions.scenario(self.workers, SIZES), Weightless(SIZES))
        changes = [switch for switch in summary.switches if switch["reason"] == "policy"]
        return {
            "seconds": round(summary.seconds, 2),
            "changes": len(changes),
            "stall_secs": round(math.fsum(switch["stall_secs"] or 0.0 for switch in summary.switches), 3),
        }
