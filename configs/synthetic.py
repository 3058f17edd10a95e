"""An MLP of any size on synthetic images of any number: for measuring, with nothing to download.

`--set model.hidden=4096,3072` makes it 25 million parameters.
"""

from __future__ import annotations

import math
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
    """

    hidden: tuple[int, ...] = (256,)


@dataclass(frozen=True)
class SyntheticConfig:
    """The data.

    Args:
      num_examples: training images in one pass; they take no memory.
      shape: of one image.
      num_classes: labels, at most 256.
      num_test: held-out images.
      seed: which data set it is, apart from the run's seed.
    """

    num_examples: int = 1_000_000
    shape: tuple[int, ...] = (32, 32, 3)
    num_classes: int = 10
    num_test: int = 1_000
    seed: int = 0


def config() -> RunConfig:
    """Return the run."""
    return RunConfig(
        workload=1000,
        unit_size=64,
        workers=4,
        servers=1,
        plan="bsp:12.5%,asp",
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.001, momentum=0.9),
        model=MlpConfig(),
        data=SyntheticConfig(),
    )


def task(config: RunConfig) -> Task:
    """Return the task: class scores from flattened images."""
    from hybridsync.data import SyntheticSource
    from hybridsync.models import MLP
    from hybridsync.training.task import Task

    data = config.data
    source = SyntheticSource(
        data.num_examples, data.shape, data.num_classes, num_test=data.num_test, data_seed=data.seed
    )
    sizes = (math.prod(data.shape), *config.model.hidden, data.num_classes)
    return Task.from_nnx(lambda rngs: MLP(sizes, rngs=rngs), source)


def optimizer(config: RunConfig) -> Optimizer:
    """Return the optimizer the configuration names."""
    from hybridsync.training.optimizer import from_config

    return from_config(config.optimizer, config.workload, config.unit_size)
