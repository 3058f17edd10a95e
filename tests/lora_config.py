"""The decoder with LoRA as a configuration file; its base may come from a file of weights, as pretrained ones do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridsync.config import RunConfig

if TYPE_CHECKING:
    from hybridsync.training.optimizer import Optimizer
    from hybridsync.training.task import Task


@dataclass(frozen=True)
class Model:
    """Where the embedding of the base comes from: a file of NumPy, or "" for the run's seed."""

    embedding: str = ""


def config() -> RunConfig:
    """Return a run of one worker, whose order of updates is that of a plain loop."""
    return RunConfig(workload=24, unit_size=8, workers=1, plan="bsp:50%,asp", model=Model())


def task(config: RunConfig) -> Task:
    """Return the task of training LoRA leaves."""
    from tests.lora import lora_task

    return lora_task(embedding=config.model.embedding)


def optimizer(config: RunConfig) -> Optimizer:
    """Return SGD with momentum."""
    from tests.tasks import momentum_sgd

    return momentum_sgd(0.1)
