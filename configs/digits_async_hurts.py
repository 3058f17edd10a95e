"""A job that asynchrony hurts, on scikit-learn's handwritten digits: what policies are tried on.

The MLP of `digits_mlp`, with SGD and momentum .9; a unit's gradient is clipped to a norm of .25, so that a stale model
swings instead of blowing up. The rate is that of a whole lock-step update, LOCKSTEP_RATE, divided by the workers: n
workers whose gradients are n updates old swing at about the same share of it. It falls to a tenth and a hundredth at
half and three quarters of the work, as in the Sync-Switch paper.

`python -m benchmarks.hybrid_accuracy` says what lock-step, asynchrony and hybrids come to; with another number of
workers give `--set optimizer.learning_rate` too.
"""

from __future__ import annotations

from configs import digits_mlp
from hybridsync.config import OptimizerConfig, RunConfig, ScheduleConfig

LOCKSTEP_RATE = 1.0
CLIP = 0.25
WORKERS = 8

task = digits_mlp.task
optimizer = digits_mlp.optimizer


def config() -> RunConfig:
    """Return the run: 8 workers, an eighth in lock-step, then asynchronous."""
    return RunConfig(
        workload=8000,
        unit_size=32,
        workers=WORKERS,
        servers=1,
        plan="bsp:12.5%,asp",
        optimizer=OptimizerConfig(
            name="sgd",
            learning_rate=rate(WORKERS),
            momentum=0.9,
            clip=CLIP,
            schedule=ScheduleConfig("piecewise", boundaries=(0.5, 0.75), factors=(0.1, 0.01)),
        ),
        model=digits_mlp.MlpConfig(),
        data=digits_mlp.DigitsConfig(),
    )


def rate(workers: int) -> float:
    """Return the rate of a unit's gradient with so many workers."""
    return LOCKSTEP_RATE / workers
