"""A job of a second for searches: a configuration file, and fake runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from hybridsync.core.plan import Plan
from hybridsync.lab.tuning.job_history import Where
from hybridsync.lab.tuning.search import Made

SMALL_CONFIG = """
from hybridsync.config import CheckpointConfig, OptimizerConfig, RunConfig


def config():
    return RunConfig(
        workload=96,
        unit_size=8,
        workers=4,
        plan="bsp",
        optimizer=OptimizerConfig(learning_rate=0.02),
        checkpoint=CheckpointConfig(secs=0.2),
    )


def task(config):
    from hybridsync.data.synthetic import SyntheticSource
    from hybridsync.models import MLP
    from hybridsync.training.task import Task

    source = SyntheticSource(512, (4, 4, 1), num_classes=4, num_test=64)
    return Task.from_nnx(lambda rngs: MLP((16, 32, 4), rngs=rngs), source)


def optimizer(config):
    from hybridsync.training.optimizer import from_config

    return from_config(config.optimizer, config.workload, config.unit_size)
"""


class Stopped(Exception):
    """A fake run was stopped."""


@dataclass
class FakeRuns:
    """Runs that take no time.

    Args:
      accuracy: (share, seed) -> accuracy, None for a run that diverges.
      converged: (share, seed) -> accuracy at which a run converged; None where it does not tell.
      stops: how many runs may be made before one is stopped.
      made: (share, seed) of the runs made.
    """

    accuracy: Callable[[Fraction, int], float | None]
    stops: int = 10**9
    made: list[tuple[Fraction, int]] = field(default_factory=list)
    where: Where = field(default_factory=lambda: Where("inprocess"))
    place: str = "here"
    converged: Callable[[Fraction, int], float | None] = lambda share, seed: None

    def carry_out(self, plan: str, seed: int) -> Made:
        if self.stops == 0:
            raise Stopped
        self.stops -= 1
        share = Fraction(Plan.parse(plan).ends(1 << 20)[0], 1 << 20) if plan != "asp" else Fraction(0)
        self.made.append((share, seed))
        return Made(self.accuracy(share, seed), 10.0 + 90.0 * float(share), self.converged(share, seed))
