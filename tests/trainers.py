"""Trainers of small runs, in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hybridsync import CheckpointConfig, TelemetryConfig, Trainer
from hybridsync.chief.run_state import RunState
from hybridsync.emulation.device import Emulation
from hybridsync.telemetry.metrics import Metrics
from hybridsync.trainer import FitResult
from hybridsync.training.optimizer import Optimizer
from tests.tasks import UNIT_SIZE, mlp_task, momentum_sgd, plain_sgd, tally_task

NEVER = CheckpointConfig(secs=3600.0)
"""Saves at the start, at switches and at the end only."""


def tally_trainer(plan: str = "asp", workload: int = 64, **options: Any) -> Trainer:
    """Return a run whose parameters count how often each unit was applied."""
    options = {"workers": 4, "progress": False, "checkpoint": NEVER, **options}
    return Trainer(tally_task(workload), plain_sgd(1.0), workload=workload, unit_size=1, plan=plan, **options)


def mlp_trainer(plan: str = "asp", workload: int = 64, optimizer: Optimizer | None = None, **options: Any) -> Trainer:
    """Return a run of a small MLP."""
    options = {"workers": 4, "progress": False, "checkpoint": NEVER, "unit_size": UNIT_SIZE, **options}
    return Trainer(mlp_task(), optimizer or momentum_sgd(0.02), workload=workload, plan=plan, **options)


ALL_UNITS = 1 << 40
HELD_SECS = 60.0
"""The longest that a unit is held: the test has failed by then."""


@contextmanager
def units_held(first: int, then: Callable[[], int] | None = None) -> Iterator[Callable[[int], None]]:
    """Finish no unit from `first` on before it is let go: what is to happen among the units may come late.

    The runs have to emulate a device. Yields what names another first unit that is held.

    Args:
      first: number of the first unit that is held.
      then: the first unit that is held once the chief has closed the leases of a phase, and gives none out any more.
    """
    held, changed = [first], threading.Condition()
    finish, close = Emulation.finish, RunState.close_leases

    def let_go(first: int) -> None:
        with changed:
            held[0] = first
            changed.notify_all()

    def finish_when_let_go(self: Emulation, worker: int, unit: int, *rest: Any) -> None:
        finish(self, worker, unit, *rest)
        with changed:
            changed.wait_for(lambda: unit < held[0], HELD_SECS)

    def close_and_let_go(self: RunState) -> None:
        close(self)
        if then is not None:
            let_go(then())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Emulation, "finish", finish_when_let_go)
        patch.setattr(RunState, "close_leases", close_and_let_go)
        yield let_go


@contextmanager
def goes_on_until_asked(trainer: Trainer, units: int) -> Iterator[None]:
    """Have a run, whose trainer emulates a device, end behind so many applied units only where it is asked to stop."""
    first = units + 2 * trainer._run.config.workers  # of whole steps, and where the accounts are wrong
    with units_held(first, lambda: ALL_UNITS if trainer._preempted else first):
        yield


def fit_and_stop(trainer: Trainer, units: int) -> FitResult:
    """Train, emulating a device, and have the run save and stop when so many units are applied; it does not end before.

    It may end with several steps more. A run that is resumed behind so many stops after its first units.
    """

    def stop(metrics: Metrics) -> None:
        if metrics.units >= units:
            trainer.preempt()

    trainer.add_hook(stop, every=1)
    with goes_on_until_asked(trainer, units):
        return trainer.fit()


def is_exact(final: Any) -> bool:
    """Tell whether a tally says that every unit was applied once and nothing else was."""
    return dict(final) == {"min_count": 1, "max_count": 1, "stray": 0}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def events_of(workdir: Path, kind: str | None = None) -> list[dict[str, Any]]:
    return [event for event in lines_of(workdir / "events.jsonl") if kind in (None, event["kind"])]


LOGGED = TelemetryConfig(apply_log=True)
