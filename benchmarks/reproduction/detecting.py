"""Cells about real detectors and real processes: draws for the straggler detector, and stalls of switches."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.detector import RULES, Kind, RuleName, Score, drawn, in_a_run
from benchmarks.jobs import DIGITS, load, train
from benchmarks.reproduction.definition import Given, Row
from benchmarks.reproduction.parameters import hybrid
from hybridsync.lab.report.stalls import read_stalls


@dataclass(frozen=True)
class Detection:
    """Judges drawn or simulated workers by one rule (see `benchmarks.detector`).

    Args:
      source: "draws", or the protocol of simulated runs.
      rule: of the detector.
      kind: whether workers stay slow.
      count: slow workers of eight.
      factor: how many times slow.
      trials: how many.
    """

    source: str
    rule: RuleName
    kind: Kind
    count: int
    factor: float
    trials: int = 50

    def definition(self) -> Any:
        return self

    def needs(self, given: Given) -> str:
        return ""

    def measure(self, given: Given) -> Row:
        score = Score()
        for seed in range(self.trials):
            what = self.count, self.factor, self.kind, seed
            draw = drawn(RULES[self.rule], *what) if self.source == "draws" else in_a_run(self.source, self.rule, *what)
            score.add(*draw)
        found = score.to_json()
        return {name: round(held, 3) if isinstance(held, float) else held for name, held in found.items()}


@dataclass(frozen=True)
class Stalls:
    """Runs a job of processes and reads what its one switch cost.

    Args:
      workers: worker processes.
      number: of the run; runs are alike.
      units: of each worker.
      compute_secs: an emulated accelerator is busy for so long with each unit.
      share: of lock-step, before the switch, in percent.
      hidden: features of each of the two hidden layers, where they are not the job's own; units are of 4 examples then.
    """

    workers: int
    number: int
    units: int = 240
    compute_secs: float = 0.05
    share: float = 6.25
    hidden: int = 0

    def definition(self) -> Any:
        return self

    def needs(self, given: Given) -> str:
        return ""

    def measure(self, given: Given) -> Row:
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            workdir = Path(folder) / "run"
            flags = [f"--workers={self.workers}", f"--plan={hybrid(self.share)}", f"--compute_secs={self.compute_secs}"]
            wide = [f"--set=model.hidden={self.hidden},{self.hidden}", "--set=unit_size=4"] if self.hidden else []
            summary = train(workdir, *flags, f"--set=workload={self.units * self.workers}", *wide, config=DIGITS)
            stalls = read_stalls(workdir)
        return {
            "stall_secs": round(sum(stall.stall_secs for stall in stalls), 3),
            "switches": len(stalls),
            "seconds": round(summary["seconds"], 2),
            "load": round(load(), 1),
        }
