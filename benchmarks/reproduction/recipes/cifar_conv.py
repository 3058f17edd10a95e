"""A small conv net on CIFAR-10, for what has to see images at a few milliseconds a unit.

Two 3x3 convolutions of stride 2 with 16 and 32 channels, group normalisation, and a dense layer: 25,674 parameters. The
data are those of `configs/cifar_resnet8.py`.

The rate is lock-step's best of .1 and its halvings, 8 workers, seed 90: .10, .10, .30, .31, .45, .50, .49 and .44.
Asynchrony and hybrids were not tried before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hybridsync.config import OptimizerConfig, RunConfig, ScheduleConfig, load_config

if TYPE_CHECKING:
    from hybridsync.training.task import Task

cifar_resnet8 = load_config(Path(__file__).parents[3] / "configs" / "cifar_resnet8.py").module
optimizer = cifar_resnet8.optimizer


@dataclass(frozen=True)
class ConvConfig:
    """The network.

    Args:
      channels: of the two convolutions; multiples of 8.
    """

    channels: tuple[int, int] = (16, 32)


def config() -> RunConfig:
    """Return the run: two passes over the training images by 8 workers."""
    return RunConfig(
        workload=3200,
        unit_size=32,
        workers=8,
        plan="bsp:12.5%,asp",
        optimizer=OptimizerConfig(
            name="sgd",
            learning_rate=0.003125,
            momentum=0.9,
            schedule=ScheduleConfig("piecewise", boundaries=(0.5, 0.75), factors=(0.1, 0.01)),
        ),
        model=ConvConfig(),
        data=cifar_resnet8.CifarConfig(),
    )


def task(config: RunConfig) -> Task:
    """Return the task: class scores from augmented images."""
    from flax import nnx

    from hybridsync.data.cifar import CIFAR10, CifarSource
    from hybridsync.training.task import Task

    class ConvNet(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            first, second = config.model.channels
            self.conv1 = nnx.Conv(3, first, (3, 3), strides=2, rngs=rngs)
            self.norm1 = nnx.GroupNorm(first, num_groups=8, rngs=rngs)
            self.conv2 = nnx.Conv(first, second, (3, 3), strides=2, rngs=rngs)
            self.norm2 = nnx.GroupNorm(second, num_groups=8, rngs=rngs)
            self.scores = nnx.Linear(8 * 8 * second, 10, rngs=rngs)

        def __call__(self, image):
            x = nnx.relu(self.norm1(self.conv1(image)))
            x = nnx.relu(self.norm2(self.conv2(x)))
            return self.scores(x.reshape(x.shape[0], -1))

    data = config.data
    source = CifarSource(data.folder, CIFAR10, num_train=data.num_train, num_test=data.num_test)
    return Task.from_nnx(lambda rngs: ConvNet(rngs), source)
