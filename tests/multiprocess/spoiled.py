"""The tally with units at which the loss is no number, or its examples cannot be had: a configuration file for jobs."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from configs import tally
from hybridsync.config import RunConfig

if TYPE_CHECKING:
    from hybridsync.training.optimizer import Optimizer
    from hybridsync.training.task import Task


@dataclass(frozen=True)
class Spoiled(tally.TallyModel):
    """What is spoiled: units u with u % 10 == `not_finite`, the units `raises`, `crashes` and `short`; -1 for none."""

    not_finite: int = -1
    raises: int = -1
    crashes: int = -1
    short: int = -1


def config() -> RunConfig:
    """Return the tally's run, of three workers."""
    return replace(tally.config(), workers=3, workload=240, model=Spoiled())


def task(config: RunConfig) -> Task:
    """Return the tally's task, spoiled."""
    import jax.numpy as jnp

    from hybridsync.data import TallySource

    whole, model = tally.task(config), config.model
    assert isinstance(model, Spoiled)

    class Raising(TallySource):
        def batch(self, unit: int, **options: Any) -> Any:
            if unit == model.crashes:
                os.kill(os.getpid(), signal.SIGSEGV)
            if unit == model.raises:
                raise RuntimeError(f"the examples of unit {unit} are not to be had")
            batch = super().batch(unit, **options)
            return {name: field[:0] for name, field in batch.items()} if unit == model.short else batch

    def loss(params: Any, model_state: Any, batch: Any, key: Any) -> tuple[Any, Any]:
        value, rest = whole.loss(params, model_state, batch, key)
        return jnp.where(batch["unit"][0] % 10 == model.not_finite, jnp.nan, value), rest

    return replace(whole, loss=loss, source=Raising(2 * config.workload))


def optimizer(config: RunConfig) -> Optimizer:
    """Return the tally's optimizer."""
    return tally.optimizer(config)
