"""An MLP on scikit-learn's handwritten digits: the first run, a few seconds of training.

The rate is one that momentum .9 bears at the staleness of several asynchronous workers. Test accuracy after
4,000 units with gradients that are k updates old (measured in one process, two seeds): rate .005, .97 to .99
for k = 0, 3, 6 and 9; rate .02, .97 for k = 3 and .08 for k = 6; rate .05, .98 for k = 0 and .08 for k = 3.
Lock-step phases of n workers use n times the rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridsync.config import OptimizerConfig, RunConfig

if TYPE_CHECKING:
    from hybridsync.training.optimizer import Optimizer
    from hybridsync.training.task import Task


@dataclass(frozen=True)
class MlpConfig:
    """The network.

    Args:
      hidden: features of each hidden layer.
      dropout: share of them dropped in training.
    """

    hidden: tuple[int, ...] = (128, 64)
    dropout: float = 0.0


@dataclass(frozen=True)
class DigitsConfig:
    """The data.

    Args:
      path: the digits' table; empty for scikit-learn's own.
    """

    path: str = ""


def config() -> RunConfig:
    """Return the run: 4 workers, lock-step for an eighth of it, then asynchronous."""
    return RunConfig(
        workload=4000,
        unit_size=32,
        workers=4,
        servers=1,
        plan="bsp:12.5%,asp",
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.005, momentum=0.9),
        model=MlpConfig(),
        data=DigitsConfig(),
    )


def task(config: RunConfig) -> Task:
    """Return the task: class scores from 64 pixels."""
    from hybridsync.data import DigitsSource
    from hybridsync.models import MLP
    from hybridsync.training.task import Task

    model = config.model
    sizes = (64, *model.hidden, 10)
    source = DigitsSource(config.data.path or None)
    return Task.from_nnx(lambda rngs: MLP(sizes, rngs=rngs, dropout=model.dropout), source)


def optimizer(config: RunConfig) -> Optimizer:
    """Return the optimizer the configuration names."""
    from hybridsync.training.optimizer import from_config

    return from_config(config.optimizer, config.workload, config.unit_size)
