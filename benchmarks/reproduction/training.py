"""A cell that trains in virtual time with real gradients: accuracy, time, and what came in between."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax

from benchmarks.grid.runs import STRIDE, WINDOW, Watched, curve
from benchmarks.reproduction.clusters import Conditions
from benchmarks.reproduction.definition import Given, Row, essence
from benchmarks.reproduction.jobs import Job, evaluator_of
from benchmarks.reproduction.parameters import BSP
from benchmarks.virtual import simulated
from hybridsync import protocols
from hybridsync.core.clock import Clock
from hybridsync.core.errors import ConfigError, Diverged
from hybridsync.core.plan import Plan
from hybridsync.lab.simulator.arithmetic import Unreplayable
from hybridsync.lab.simulator.deferred import DeferredArithmetic
from hybridsync.lab.simulator.event_loop import Loop
from hybridsync.lab.simulator.study import Gradients
from hybridsync.protocols.server_protocol import ServerProtocol
from hybridsync.telemetry.events import NullEventLog
from hybridsync.training.run import Run

TICK_SECS = 0.1
"""Of virtual time: evaluations on the way are no finer."""


@dataclass(frozen=True)
class Training:
    """Trains a job once.

    Args:
      job: what is trained.
      plan: how.
      conditions: the simulated cluster.
      seed: of the model's start, the order of examples and every draw of the cluster.
      workers: how many.
      sets: values of the configuration beside the job's own, path=value.
      evaluations: of the held-out set on the way; 0 for the end's alone.
      gradients: "real", or "compiled" for a job without a loss to come to: faster, and other last bits.
    """

    job: Job
    plan: str
    conditions: Conditions
    seed: int
    workers: int = 8
    sets: tuple[str, ...] = ()
    evaluations: int = 40
    gradients: Gradients = "real"

    def __post_init__(self) -> None:
        assert self.gradients == "real" or self.job.loss is None, "no losses are noted in compiled blocks"

    def definition(self) -> Any:
        config = dataclasses.replace(self.job.config(self.workers, self.sets), plan=BSP, seed=self.seed)
        how = [] if self.gradients == "real" else [self.gradients]
        return [config, self.plan, _protocols(self.plan), self.conditions, self.job.loss, self.evaluations, *how]

    def needs(self, given: Given) -> str:
        return "--cifar" if self.job.images and given.cifar is None else ""

    def measure(self, given: Given) -> Row:
        """Return seconds (virtual), accuracy, loss, staleness and the way there; `way` is second:accuracy pairs.

        Raises:
          HybridSyncError: the run could not go on for another reason than that it diverged.
        """
        run, arithmetic = _compiled(self.job, self.workers, self.sets, self.gradients, given)
        every = run.config.workload // self.evaluations if self.evaluations else 0
        telemetry = dataclasses.replace(run.config.telemetry, evaluate_units=every)
        config = dataclasses.replace(run.config, plan=self.plan, seed=self.seed, telemetry=telemetry)
        run = dataclasses.replace(run, config=config)
        arithmetic, loop, losses = arithmetic.of_seed(run), Loop(), []
        if isinstance(arithmetic, Watched):
            arithmetic.loop, arithmetic.losses = loop, losses
        evaluate = evaluator_of(self.job, self.workers, given)
        heard: list[_Way] = []

        def listen(clock: Clock) -> _Way:
            heard.append(_Way(clock))
            return heard[0]

        scenario = self.conditions.scenario(self.workers, arithmetic.sizes)
        try:
            summary = simulated(run, scenario, arithmetic, evaluate, loop, listen, TICK_SECS)
        except Diverged:
            return {"accuracy": self.job.guessing, "diverged": 1, "way": heard[0].told()}
        except Unreplayable:  # a unit is to be dropped, which compiled blocks cannot
            return dataclasses.replace(self, gradients="real").measure(given)
        reached = _reached(losses, self.job.loss)
        return {
            "accuracy": round(summary.final["accuracy"], 4),
            "loss": round(summary.final["loss"], 4),
            "seconds": round(summary.seconds, 3),
            "units_per_sec": round(summary.units.applied / summary.seconds, 3),
            "secs_to_loss": reached[0],
            "units_to_loss": reached[1],
            "staleness_mean": round(summary.staleness["mean"], 2),
            "staleness_max": summary.staleness["max"],
            "switches": len(summary.switches),
            "dropped": summary.units.dropped,
            "diverged": 0,
            "way": heard[0].told(),
        }


class _Way(NullEventLog):
    """Keeps the accuracies on the way."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.points: list[tuple[float, float]] = []

    def write(self, kind: str, *, phase: int, wall: float | None = None, **fields: Any) -> dict[str, Any]:
        event = super().write(kind, phase=phase, wall=wall, **fields)
        if kind == "evaluation":
            self.points.append((event["t"], fields["accuracy"]))
        return event

    def told(self) -> str:
        return " ".join(f"{at:.1f}:{accuracy:.4f}" for at, accuracy in self.points)


@lru_cache(maxsize=1)
def _compiled(
    job: Job, workers: int, sets: tuple[str, ...], gradients: Gradients, given: Given
) -> tuple[Run, Watched | DeferredArithmetic]:
    run = job.run(job.config(workers, sets), given)
    return run, Watched(run) if gradients == "real" else DeferredArithmetic(run)


def _reached(losses: Sequence[tuple[float, Any]], loss: float | None) -> tuple[float | None, int | None]:
    """Return the second, and the units begun, at which the running mean of the training loss came down to `loss`."""
    if loss is None:
        return None, None
    points = curve([(at, float(value)) for at, value in jax.device_get(losses)])
    for number, (secs, value) in enumerate(points):
        if value <= loss:
            return secs, WINDOW + number * STRIDE
    return None, None


def _protocols(plan: str) -> list[list[Any]]:
    """Return each protocol of a plan with all its own values, so that another default is another definition.

    A plan that this version cannot read has none: its cells fail when they are run.
    """
    shared = {field.name for field in dataclasses.fields(ServerProtocol)}
    told = []
    try:
        specs = [protocols.parse(stage.spec) for stage in Plan.parse(plan).stages]
    except ConfigError:
        return []
    for parsed in specs:
        own = {name: held for name, held in vars(parsed).items() if name not in shared}
        told.append([essence(parsed), own])
    return told


def way_of(row: Row) -> list[tuple[float, float]]:
    """Return second and accuracy of a row's evaluations.

    >>> way_of({"way": "1.5:0.2 3.0:0.9"})
    [(1.5, 0.2), (3.0, 0.9)]
    """
    pairs = (point.split(":") for point in str(row["way"] or "").split())
    return [(float(at), float(accuracy)) for at, accuracy in pairs]


def secs_to(row: Row, accuracy: float) -> float | None:
    """Return the first second at which a run was so accurate and stayed so to the end; None where it never did.

    >>> secs_to({"way": "1:0.9 2:0.7 3:0.95 4:0.9"}, 0.85)
    3.0
    """
    since = None
    for at, held in way_of(row):
        if held < accuracy:
            since = None
        elif since is None:
            since = at
    return since
