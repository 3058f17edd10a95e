"""The tally with a data source that hangs once, or makes one worker slow: a configuration file for jobs."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from configs import tally
from hybridsync.config import RunConfig

if TYPE_CHECKING:
    from hybridsync.training.optimizer import Optimizer
    from hybridsync.training.task import Task

FIRST_UNITS = 10
"""Of a process, which nobody knows the usual time of yet: it may be compiling, and is given ten minutes."""


@dataclass(frozen=True)
class Hanging(tally.TallyModel):
    """When a worker's data source hangs.

    Args:
      flag: path of a file that the first process makes that comes to a unit from `unit` on; it alone is affected, and
        the file has its number.
      unit: see `flag`.
      secs: how long each of its units takes from then on; 0 is for ever.
    """

    flag: str = ""
    unit: int = 200
    secs: float = 0.0


def config() -> RunConfig:
    """Return the tally's run, of three workers."""
    return replace(tally.config(), workers=3, workload=600, model=Hanging())


def task(config: RunConfig) -> Task:
    """Return the tally's task, whose data hang."""
    from hybridsync.data import TallySource

    whole, model = tally.task(config), config.model
    assert isinstance(model, Hanging) and model.flag

    class Source(TallySource):
        mine, units = False, 0

        def batch(self, unit: int, **options: Any) -> Any:
            self.units += 1
            if unit >= model.unit and self.units > FIRST_UNITS and not self.mine:
                try:
                    descriptor = os.open(model.flag, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                    os.write(descriptor, str(os.getpid()).encode())
                    os.close(descriptor)
                    self.mine = True
                except FileExistsError:
                    pass
            if self.mine:
                threading.Event().wait(model.secs or None)
            return super().batch(unit, **options)

    return replace(whole, source=Source(2 * config.workload))


def optimizer(config: RunConfig) -> Optimizer:
    """Return the tally's optimizer."""
    return tally.optimizer(config)
