"""The tally: a run whose parameters count how often each unit was applied, an oracle for every fault test.

Parameters are a vector of 2W zeros, the gradient of unit u is one-hot(u) and the optimizer is plain SGD of
rate 1: after any run `-params[u]` is the number of times u was applied. The second half is for fresh units
that replace dropped ones. With `--set=model.copies=N` there are N such vectors, so that each of several parameter
servers counts for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridsync.config import OptimizerConfig, RunConfig
from hybridsync.core.errors import ConfigError

if TYPE_CHECKING:
    from hybridsync.core.units import UnitSet
    from hybridsync.training.optimizer import Optimizer
    from hybridsync.training.task import Task


@dataclass(frozen=True)
class TallyModel:
    """What counts: `copies` vectors, each of which counts every unit."""

    copies: int = 1

    def __post_init__(self) -> None:
        if self.copies < 1:
            raise ConfigError(f"model.copies is {self.copies}; count with 1 vector or more")


def config() -> RunConfig:
    """Return the run: 4 workers, lock-step for an eighth of it, then asynchronous."""
    return RunConfig(
        workload=6000,
        unit_size=1,
        workers=4,
        servers=1,
        plan="bsp:12.5%,asp",
        model=TallyModel(),
        optimizer=OptimizerConfig(name="sgd", learning_rate=1.0, momentum=0.0),
    )


def task(config: RunConfig) -> Task:
    """Return the task: its loss is the unit's own entry, so its gradient is one-hot."""
    import jax.numpy as jnp

    from hybridsync.data import TallySource
    from hybridsync.training.task import Task

    num_units = 2 * config.workload
    copies = getattr(config.model, "copies", 1)
    names = ["tally", *(f"tally{copy}" for copy in range(2, copies + 1))]

    def init(key: Any) -> tuple[Any, Any]:
        del key
        return {name: jnp.zeros(num_units, jnp.float32) for name in names}, {}

    def loss(params: Any, model_state: Any, batch: Any, key: Any) -> tuple[Any, Any]:
        del key
        return sum(params[name][batch["unit"][0]] for name in names), ({}, model_state)

    return Task(init, loss, TallySource(num_units), summarize=summarize)


def summarize(params: Any, model_state: Any, applied: UnitSet) -> dict[str, int]:
    """Return how often units were applied, read from the parameters.

    Args:
      params: the run's final parameters.
      model_state: none.
      applied: the units that the ledger calls applied.

    Returns:
      `min_count` and `max_count` over the applied units (both 1 after a correct run, 0 where nothing was
      applied), and `stray`, the largest count of any other unit in size (0 after a correct run); of all copies.
    """
    del model_state
    counts = np.rint(-np.stack([np.asarray(vector, np.float64) for vector in params.values()])).astype(np.int64)
    inside = np.zeros(counts.shape, bool)
    for start, stop in applied.ranges():
        inside[:, start:stop] = True
    return {
        "min_count": int(counts[inside].min(initial=counts.max(initial=0))),
        "max_count": int(counts[inside].max(initial=0)),
        "stray": int(np.abs(counts[~inside]).max(initial=0)),
    }


def optimizer(config: RunConfig) -> Optimizer:
    """Return the optimizer the configuration names."""
    from hybridsync.training.optimizer import from_config

    return from_config(config.optimizer, config.workload, config.unit_size)
