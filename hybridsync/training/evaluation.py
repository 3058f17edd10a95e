"""Evaluation of a captured state on the held-out examples, in whole batches, away from the training."""

from __future__ import annotations

from typing import Any

import jax

from hybridsync.core.units import UnitSet
from hybridsync.core.work_deadlines import UNWATCHED, Watching
from hybridsync.training.state import TrainState
from hybridsync.training.task import Task

BATCH_EXAMPLES = 512


class Evaluator:
    """Measures a task's states.

    Args:
      task: task of the states; its `summarize` is used if it has one, else `evaluate` summed over the held-out batches.
      watchdog: watchdog of the process; each batch is progress.
    """

    def __init__(self, task: Task, watchdog: Watching = UNWATCHED) -> None:
        self._task, self._watchdog = task, watchdog
        self._sums = jax.jit(self._evaluate) if task.evaluate is not None else None

    def evaluate(self, state: TrainState, applied: UnitSet) -> dict[str, float] | None:
        """Return the task's figures ({"accuracy", "loss"} for classifiers), None where it has nothing to measure."""
        if self._task.summarize is not None:
            return self._task.summarize(state.params, state.model_state, applied)
        if self._sums is None:
            return None
        totals: dict[str, float] = {}
        for batch in self._task.source.test_batches(BATCH_EXAMPLES):
            for name, value in jax.device_get(self._sums(state.params, state.model_state, batch)).items():
                totals[name] = totals.get(name, 0.0) + float(value)
            self._watchdog.progress()
        count = totals.get("count", 0.0)
        if not count:
            return None
        figures = {name: value / count for name, value in totals.items() if name != "count"}
        if "correct" in figures:
            figures["accuracy"] = figures.pop("correct")
        return figures

    def _evaluate(self, params: Any, model_state: Any, batch: Any) -> dict[str, Any]:
        assert self._task.evaluate is not None
        return self._task.evaluate(params, model_state, self._task.source.prepare(batch))
