"""Carries out runs of the grid of `benchmarks.protocols` in virtual time, with real gradients.

`python -m benchmarks.grid.runs` takes a cell a line on its standard input, as JSON, and answers each with a line.
Programs are compiled once for all of them.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import jax

from benchmarks.grid.cells import WORKERS, Cell, Outcome, scenario
from benchmarks.hybrid_accuracy import GUESSING
from benchmarks.virtual import quiet, simulated
from configs import digits_async_hurts as job
from hybridsync import protocols
from hybridsync.core.errors import Diverged, HybridSyncError
from hybridsync.lab.simulator.event_loop import Loop
from hybridsync.lab.simulator.gradients import RealArithmetic, evaluator
from hybridsync.protocols.base import FLOAT32
from hybridsync.storage.jsonl import encode
from hybridsync.training.compiled_programs import Parameters
from hybridsync.training.run import Run

WINDOW, STRIDE = 8 * WORKERS, 2 * WORKERS
"""A point of the loss curve is the mean of so many units; one is kept after every so many."""


class Watched(RealArithmetic):
    """Real gradients whose losses are noted when they are begun: units are alike under every protocol.

    Attributes:
      loop: virtual time of the run; set before it begins.
      losses: when each unit was begun, and its loss, an array of the device.
    """

    loop: Loop
    losses: list[tuple[float, Any]]

    def gradient(self, parameters: Parameters, unit: int, wire: str = FLOAT32) -> Any:
        made = super().gradient(parameters, unit, wire)
        self.losses.append((self.loop.now, self.loss(made)))
        return made


class Runner:
    """Simulates cells, with everything compiled once.

    Args:
      workload: units of each run; None takes the job's own.
    """

    def __init__(self, workload: int | None = None) -> None:
        config = quiet(job.config(WORKERS))
        config = dataclasses.replace(config, workload=workload or config.workload)
        self._run = Run(config, job.task(config), job.optimizer(config), None)
        self._arithmetic, self._evaluate = Watched(self._run), evaluator(self._run)

    def measure(self, cell: Cell) -> Outcome:
        """Return what comes of a cell; a run that cannot go on says why."""
        config = dataclasses.replace(self._run.config, plan=cell.protocol, seed=cell.seed)
        run = dataclasses.replace(self._run, config=config)
        arithmetic = self._arithmetic.of_seed(run)
        arithmetic.loop, arithmetic.losses = Loop(), []
        bound = protocols.parse(cell.protocol).staleness_bound(WORKERS)
        try:
            cluster = scenario(cell, arithmetic.sizes.gradient)
            summary = simulated(run, cluster, arithmetic, self._evaluate, arithmetic.loop)
        except Diverged:
            return Outcome(cell, config.workload, None, None, 0, GUESSING, 0.0, 0.0, bound, ())
        except HybridSyncError as error:
            return Outcome.failed(cell, config.workload, f"{type(error).__name__}: {error}")
        return Outcome(
            cell,
            config.workload,
            summary.seconds,
            summary.units.applied / summary.seconds,
            summary.units.dropped,
            summary.final["accuracy"],
            summary.staleness["mean"],
            summary.staleness["max"],
            bound,
            curve([(at, float(loss)) for at, loss in jax.device_get(arithmetic.losses)]),
        )


def curve(losses: Sequence[tuple[float, float]], window: int = WINDOW, stride: int = STRIDE) -> tuple:
    """Return the running mean of losses over time, in seconds from the first of them.

    Args:
      losses: second and loss of each unit, in the order of time.
      window: units of a mean.
      stride: units from one point to the next.

    >>> curve([(2.0, 4.0), (3.0, 2.0), (4.0, 0.0), (5.0, 0.0)], window=2, stride=2)
    ((1.0, 3.0), (3.0, 0.0))
    """
    points = []
    for end in range(window, len(losses) + 1, stride):
        mean = sum(loss for _, loss in losses[end - window : end]) / window
        points.append((round(losses[end - 1][0] - losses[0][0], 4), round(mean, 5)))
    return tuple(points)


def serve(asked: TextIO, answers: TextIO, workload: int | None = None) -> None:
    """Answer every line of `asked`, a cell, with a line of what came of it."""
    runner = Runner(workload)
    for line in asked:
        outcome = runner.measure(Cell(**json.loads(line)))
        print(encode(outcome.to_json()), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout, int(sys.argv[1]) if len(sys.argv) > 1 else None)
