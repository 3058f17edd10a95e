"""Evaluation of a captured state on the held-out examples, in whole batches, away from the training."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from operator import index
from typing import Any

import jax
import numpy as np

from hybridsync.core.errors import TaskError, WaitTimeout
from hybridsync.core.units import UnitSet
from hybridsync.core.user_code import end_if_forked, ends_forks
from hybridsync.devices.placement import SHARED_DEVICE, Placement
from hybridsync.interfaces.commands import Evaluation, Figure
from hybridsync.interfaces.messages import EvaluationRequest
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.frozen import Frozen, joined
from hybridsync.training.snapshot import ReaderAt, fetch
from hybridsync.training.state import TrainState
from hybridsync.training.task import Task

BATCH_EXAMPLES = 512


class Evaluator:
    """Measures a task's states.

    Args:
      task: task of the states; its `summarize` is used if it has one, else `evaluate` summed over the held-out batches.
      placement: where the workers of this process compute: it is measured where worker 0 does.
      progress: called after each batch.
      frozen: leaves of the task that are not trained, at that placement; None for a task that trains all.
    """

    def __init__(
        self,
        task: Task,
        placement: Placement = SHARED_DEVICE,
        progress: Callable[[], object] = lambda: None,
        frozen: Frozen | None = None,
    ) -> None:
        self._task, self._placement, self._progress = task, placement, progress
        self._frozen = frozen
        self._sums = placement.jit(self._evaluate) if task.evaluate is not None else None

    @ends_forks
    def evaluate(self, state: TrainState, applied: UnitSet) -> Any:
        """Return what the task measures ({"accuracy", "loss"} for classifiers), None where it has nothing to measure.

        It is what the user's functions make of it: see `numbers`.

        Raises:
          TaskError: the functions do not return what a task promises.
          Exception: the functions' own errors.
        """
        if self._task.summarize is not None:
            params = joined(state.params, self._frozen_leaves())
            found = self._task.summarize(params, state.model_state, applied)
            return check_figures(found, "Task.summarize")
        if self._sums is None:
            return None
        totals: dict[str, float] = {}
        at, pid = self._placement, os.getpid()
        params, model_state = at.at_worker((state.params, state.model_state), 0)
        frozen = self._frozen_leaves()
        for batch in self._task.source.test_batches(BATCH_EXAMPLES):
            end_if_forked(pid)
            sums = jax.device_get(self._sums(params, model_state, at.batch(batch, 0), frozen))
            found, wrong = numbers(check_figures(sums, "Task.evaluate"))
            if wrong:
                raise TaskError(f"Task.evaluate returns sums over a batch: {'; '.join(wrong)}; return numbers")
            if "count" not in found:
                raise TaskError(f"Task.evaluate returns {', '.join(found) or 'nothing'} without 'count'; add it")
            for name, value in found.items():
                totals[name] = totals.get(name, 0.0) + value
            self._progress()
        count = totals.get("count", 0.0)
        if not count:
            return None
        figures = {name: value / count for name, value in totals.items() if name != "count"}
        if "correct" in figures:
            figures["accuracy"] = figures.pop("correct")
        return figures

    def measured(self, state: TrainState) -> Evaluation:
        """Return the same figures of a task without `summarize`, as they travel."""
        figures = self.evaluate(state, UnitSet()) or {}
        return Evaluation(int(state.counters["units"]), tuple(Figure(*each) for each in figures.items()))

    def _frozen_leaves(self) -> Any:
        return None if self._frozen is None else self._frozen.at(0)

    def _evaluate(self, params: Any, model_state: Any, batch: Any, frozen: Any) -> dict[str, Any]:
        assert self._task.evaluate is not None
        return self._task.evaluate(joined(params, frozen), model_state, self._task.source.prepare(batch))


def check_figures(found: Any, what: str) -> Mapping[Any, Any]:
    """Return what a function of the user's has measured, where it is figures by name.

    Raises:
      TaskError: it is something else.
    """
    if isinstance(found, Mapping):
        return found
    raise TaskError(f"{what} returned {_kind(found)}; return numbers by name, such as {{'accuracy': .9}}")


def numbers(found: Mapping[Any, Any]) -> tuple[dict[str, float], list[str]]:
    """Return the figures that are numbers, as Python has them, and what is wrong with each of the others.

    >>> numbers({"accuracy": np.float32(0.5), "loss": float("nan"), "best": None, "per_class": np.ones(3)})
    ({'accuracy': 0.5, 'loss': nan}, ["'best' is None", "'per_class' is an array of shape (3,)"])

    Raises:
      Exception: an object of the user's raises where it is asked for its number.
    """
    figures: dict[str, float] = {}
    wrong: list[str] = []
    for name, value in found.items():
        number = _number(value)
        if not isinstance(name, str):
            wrong.append(f"a name is {_kind(name)}, not a text")
        elif number is None:
            wrong.append(f"{name!r} is {_kind(value)}")
        else:
            figures[name] = number
    return figures, wrong


def _number(value: Any) -> float | None:
    """Return a value as Python has it, None where it is no number: scalars of NumPy and JAX are numbers."""
    if value is None or isinstance(value, str | bytes | Mapping):
        return None
    try:
        if np.ndim(value):
            return None
        number = float(value)  # an integer may be too large for it, and so for whoever reads it
    except (TypeError, ValueError, OverflowError):  # as of a traced value of JAX
        return None
    try:
        return index(value)
    except TypeError:
        return number


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    shape = getattr(value, "shape", ())
    name = type(value).__name__
    return f"an array of shape {tuple(shape)}" if shape else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


BUSY_SECS = 30.0
"""How long an evaluation waits for the one before it, which a chief that is gone may have asked for."""


class StateEvaluator:
    """Measures states that other roles keep (see `Evaluate`), one at a time.

    Whoever asks while another one does not end is refused, and measures the state itself.

    Args:
      evaluator: measures a state.
      layout: layout of the states.
      reader_at: returns a reader of the role at an address that keeps a state.
    """

    def __init__(self, evaluator: Evaluator, layout: Layout, reader_at: ReaderAt) -> None:
        self._evaluator, self._layout, self._reader_at = evaluator, layout, reader_at
        self._lock = threading.Lock()

    def evaluate(self, request: EvaluationRequest) -> Evaluation:
        """See `Evaluate`."""
        if not self._lock.acquire(timeout=BUSY_SECS):
            raise WaitTimeout(f"an earlier evaluation has not ended within {BUSY_SECS:g} s here; measure elsewhere")
        try:
            state = fetch(request.source, request.snapshot_id, request.fingerprint, self._layout, self._reader_at)
            return self._evaluator.measured(state)
        finally:
            self._lock.release()
