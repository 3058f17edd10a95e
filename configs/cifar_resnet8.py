"""ResNet-8 on CIFAR-10: a small run on real images, for a CPU; `--set model.depth=32` for a larger network.

The data is the official binary version (https://www.cs.toronto.edu/~kriz/cifar.html), unpacked into
`data.folder`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hybridsync.config import OptimizerConfig, RunConfig

if TYPE_CHECKING:
    from hybridsync.training.optimizer import Optimizer
    from hybridsync.training.task import Task


@dataclass(frozen=True)
class ResNetConfig:
    """The network.

    Args:
      depth: 6m+2 layers of basic blocks (8, 20, 32, ...), or 50 of bottlenecks.
    """

    depth: int = 8


@dataclass(frozen=True)
class CifarConfig:
    """The data.

    Args:
      folder: where the binary files lie.
      variant: which CIFAR they are.
      num_train: training records in them; the published number but for excerpts.
      num_test: test records.
      expected_hash: sha256 of the content; empty accepts any.
    """

    folder: str = "data/cifar-10-batches-bin"
    variant: Literal["cifar10", "cifar100"] = "cifar10"
    num_train: int = 50_000
    num_test: int = 10_000
    expected_hash: str = ""


def config() -> RunConfig:
    """Return the run: five passes over the training images."""
    return RunConfig(
        workload=3900,
        unit_size=64,
        workers=4,
        servers=1,
        plan="bsp:12.5%,asp",
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.01, momentum=0.9, weight_decay=1e-4),
        model=ResNetConfig(),
        data=CifarConfig(),
    )


def task(config: RunConfig) -> Task:
    """Return the task: class scores from augmented images."""
    from hybridsync.data.cifar import CIFAR10, CIFAR100, CifarSource
    from hybridsync.models import resnet
    from hybridsync.training.task import Task

    data, depth = config.data, config.model.depth
    layout = {"cifar10": CIFAR10, "cifar100": CIFAR100}[data.variant]
    source = CifarSource(
        data.folder,
        layout,
        num_train=data.num_train,
        num_test=data.num_test,
        expected_hash=data.expected_hash,
    )
    return Task.from_nnx(lambda rngs: resnet(depth, layout.num_classes, rngs=rngs), source)


def optimizer(config: RunConfig) -> Optimizer:
    """Return the optimizer the configuration names."""
    from hybridsync.training.optimizer import from_config

    return from_config(config.optimizer, config.workload, config.unit_size)
