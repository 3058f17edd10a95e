"""An MLP with batch normalisation on CIFAR-10 at 16x16, for what needs many passes over real images on a CPU.

Dense layers 768-96-96-10 with BatchNorm in front of each ReLU. Images are averaged over 2x2 pixels, and normal noise of
.3 of a normalised pixel varies them in training. Weight decay and normalisation together bound how far a high rate can
drive the weights, as in the published ResNet: without BatchNorm, asynchrony ends in no numbers from a rate of .02 on.

The rate is .05 a unit of 64: of .1, .05 and .02 the one at which pure lock-step and pure asynchrony of seed 1 both
learned and differed, by a trainer with a fixed delay of 7 updates. Hybrids were tried afterwards, on seeds 1 to 3.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hybridsync.config import OptimizerConfig, RunConfig, load_config

if TYPE_CHECKING:
    from hybridsync.training.task import Task

cifar_resnet8 = load_config(Path(__file__).parents[3] / "configs" / "cifar_resnet8.py").module
optimizer = cifar_resnet8.optimizer


@dataclass(frozen=True)
class NormedConfig:
    """The network, and how its images vary.

    Args:
      hidden: features of the hidden layers.
      noise: standard deviation of the noise on a normalised pixel, in training.
    """

    hidden: tuple[int, ...] = (96, 96)
    noise: float = 0.3


def config() -> RunConfig:
    """Return the run: twenty passes over the training images by 8 workers."""
    return RunConfig(
        workload=16_000,
        unit_size=64,
        workers=8,
        plan="bsp:6.25%,asp",
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.05, momentum=0.9, weight_decay=1e-4),
        model=NormedConfig(),
        data=cifar_resnet8.CifarConfig(),
    )


def task(config: RunConfig) -> Task:
    """Return the task: class scores from noisy images."""
    import jax
    from flax import nnx

    from hybridsync.data.cifar import CHANNELS, CIFAR10, SIDE, CifarSource
    from hybridsync.training.task import Task

    class Halved(CifarSource):
        """Serves images of half the side, made once, with noise in training."""

        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            for split in (self._train, self._test):
                blocks = split["image"].reshape(-1, CHANNELS, SIDE // 2, 2, SIDE // 2, 2)
                split["image"] = blocks.mean((3, 5), dtype="float32").round().astype("uint8")

        def augment(self, batch, key):
            batch = self.prepare(batch)
            noise = jax.random.normal(key, batch["image"].shape)
            return {**batch, "image": batch["image"] + config.model.noise * noise}

    class NormedMLP(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            sizes = (CHANNELS * (SIDE // 2) ** 2, *config.model.hidden)
            linear = partial(nnx.Linear, kernel_init=nnx.initializers.he_normal(), rngs=rngs)
            self.layers = nnx.List([linear(a, b, use_bias=False) for a, b in itertools.pairwise(sizes)])
            self.norms = nnx.List([nnx.BatchNorm(b, momentum=0.9, epsilon=1e-5, rngs=rngs) for b in sizes[1:]])
            self.scores = linear(sizes[-1], CIFAR10.num_classes)

        def __call__(self, image):
            x = image.reshape(image.shape[0], -1)
            for layer, norm in zip(self.layers, self.norms, strict=True):
                x = nnx.relu(norm(layer(x)))
            return self.scores(x)

    data = config.data
    source = Halved(data.folder, CIFAR10, num_train=data.num_train, num_test=data.num_test)
    return Task.from_nnx(lambda rngs: NormedMLP(rngs), source)
