"""Small tasks that compile in a second."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from configs import tally
from hybridsync.config import OptimizerConfig, RunConfig
from hybridsync.data.synthetic import SyntheticSource
from hybridsync.models import MLP, resnet
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.task import Task

UNIT_SIZE = 8


@functools.cache
def mlp_task() -> Task:
    """Return an MLP on 4x4 images of 4 classes."""
    source = SyntheticSource(512, (4, 4, 1), num_classes=4, num_test=64)
    return Task.from_nnx(lambda rngs: MLP((16, 32, 4), rngs=rngs), source)


@functools.cache
def resnet_task() -> Task:
    """Return ResNet-8 with BatchNorm on 8x8 images."""
    source = SyntheticSource(128, (8, 8, 3), num_classes=10, num_test=16)
    return Task.from_nnx(lambda rngs: resnet(8, 10, rngs=rngs), source)


class Normalized(nnx.Module):
    """Two layers with batch statistics between them."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(16, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.second = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.second(nnx.relu(self.norm(self.first(x.reshape(len(x), -1)))))


@functools.cache
def batchnorm_task() -> Task:
    """Return a small model with BatchNorm on 4x4 images of 4 classes."""
    return Task.from_nnx(Normalized, SyntheticSource(512, (4, 4, 1), num_classes=4, num_test=64))


def tally_task(workload: int) -> Task:
    """Return the task whose parameters count how often each unit was applied."""
    return tally.task(RunConfig(workload=workload, unit_size=1))


def momentum_sgd(learning_rate: float = 0.05) -> Optimizer:
    """Return SGD with momentum .9."""
    return Optimizer(
        lambda learning_rate, momentum: optax.sgd(learning_rate, momentum),
        learning_rate=learning_rate,
        momentum=0.9,
    )


def plain_sgd(learning_rate: float = 1.0) -> Optimizer:
    """Return SGD without momentum."""
    return Optimizer(lambda learning_rate: optax.sgd(learning_rate), learning_rate=learning_rate)


def adamw(learning_rate: float = 1e-3) -> Optimizer:
    """Return AdamW."""
    return Optimizer(
        lambda learning_rate, weight_decay: optax.adamw(learning_rate, weight_decay=weight_decay),
        learning_rate=learning_rate,
        weight_decay=1e-2,
    )


def programs_of(
    task: Task,
    optimizer: Optimizer,
    *,
    unit_size: int = UNIT_SIZE,
    workload: int = 400,
    seed: int = 0,
    donate_parameters: bool = False,
) -> Programs:
    """Return the compiled programs of a small run."""
    return Programs(
        task,
        optimizer,
        unit_size=unit_size,
        workload=workload,
        seed=seed,
        donate_parameters=donate_parameters,
    )


TALLY_OPTIMIZER = OptimizerConfig(name="sgd", learning_rate=1.0, momentum=0.0)


def copied(tree: Any) -> Any:
    """Return the tree in fresh memory, so that a donation of the original does no harm."""
    return jax.tree.map(jnp.copy, tree)
