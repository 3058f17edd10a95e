"""The decoder of these tests as a configuration file; `data.kind` is "nnx" or "linen"."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybridsync.config import DeviceConfig, RunConfig

if TYPE_CHECKING:
    from hybridsync.training.optimizer import Optimizer
    from hybridsync.training.task import Task


@dataclass(frozen=True)
class Model:
    """Which of both decoders is trained."""

    kind: str = "nnx"


def config() -> RunConfig:
    """Return a run of two workers with a mesh of four devices each."""
    from tests.devices.decoders import RULES

    devices = DeviceConfig(mesh={"fsdp": 2, "tensor": 2}, rules=RULES)
    return RunConfig(workload=240, unit_size=8, workers=2, plan="bsp", devices=devices, model=Model())


def task(config: RunConfig) -> Task:
    """Return the decoder's task, whose log names the processes that measure it."""
    from absl import logging

    from tests.devices.decoders import decoder

    task = decoder(config.model.kind)
    evaluate = task.evaluate
    assert evaluate is not None

    def measured(*args: Any) -> Any:
        logging.warning("this process measures the states")
        return evaluate(*args)

    return dataclasses.replace(task, evaluate=measured)


def optimizer(config: RunConfig) -> Optimizer:
    """Return SGD with momentum."""
    from tests.tasks import momentum_sgd

    return momentum_sgd(0.02)
