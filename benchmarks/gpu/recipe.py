"""The models of the benchmark on GPUs, as a configuration file; `--set model.name=...` chooses one.

Parameters and what is computed are float32, in which an H100 multiplies matrices as TF32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hybridsync.config import OptimizerConfig, RunConfig

if TYPE_CHECKING:
    from hybridsync.training.optimizer import Optimizer
    from hybridsync.training.task import Task

DECODERS = {"decoder25m": (512, 8, 8), "decoder124m": (1024, 10, 16), "tinydecoder": (16, 1, 2)}
"""Width, blocks and heads; the names say the parameters."""
LENGTH = 256
"""Tokens of a window."""
UNIT_SIZES = {"digits": 32, "resnet32": 128, "decoder25m": 32, "decoder124m": 16, "tinydecoder": 4}


@dataclass(frozen=True)
class ModelConfig:
    """The model.

    Args:
      name: one of the models above.
    """

    name: Literal["digits", "resnet32", "decoder25m", "decoder124m", "tinydecoder"] = "digits"


def config() -> RunConfig:
    """Return a run of one worker; the benchmark sets what it measures."""
    return RunConfig(
        workload=1000,
        unit_size=32,
        workers=1,
        plan="bsp",
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.02, momentum=0.9),
        model=ModelConfig(),
    )


def task(config: RunConfig) -> Task:
    """Return the task; images and tokens are made, so that nothing has to be there."""
    from hybridsync.data import DigitsSource, SyntheticSource
    from hybridsync.data.arrays import ArraySource
    from hybridsync.losses import language_model
    from hybridsync.models import MLP, DecoderLM, resnet
    from hybridsync.training.task import Task

    name = config.model.name
    if name == "digits":
        return Task.from_nnx(lambda rngs: MLP((64, 128, 10), rngs=rngs), DigitsSource())
    if name == "resnet32":
        return Task.from_nnx(lambda rngs: resnet(32, 10, rngs=rngs), SyntheticSource(num_test=512))
    import numpy as np

    dim, blocks, heads = DECODERS[name]
    steps = np.random.default_rng(0).integers(1, 4, (2048, LENGTH + 1), np.int32)
    tokens = np.cumsum(steps, axis=1, dtype=np.int32) % 256  # of each token one of three follows
    source = ArraySource("walks", {"tokens": tokens[64:]}, {"tokens": tokens[:64]})

    def make(rngs):
        return DecoderLM(256, dim=dim, num_layers=blocks, num_heads=heads, max_length=LENGTH, rngs=rngs)

    return Task.from_nnx(make, source, language_model)


def optimizer(config: RunConfig) -> Optimizer:
    """Return the optimizer the configuration names."""
    from hybridsync.training.optimizer import from_config

    return from_config(config.optimizer, config.workload, config.unit_size)
