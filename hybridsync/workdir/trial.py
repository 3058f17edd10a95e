"""Tries the user's functions before a run begins, so that a mistake in one ends the command and not role after role.

The process that opens the run does it once for all roles, while they prepare. The functions are traced and nothing is
compiled. What was traced is also what a resume compares (see `Trained`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from hybridsync.core.errors import DataError, HybridSyncError, TaskError
from hybridsync.core.user_code import explain
from hybridsync.data.source import HostBatch, UnitSource
from hybridsync.server.divisibility import check_divisible
from hybridsync.training.compiled_programs import Parameters, traced_unit_gradient
from hybridsync.training.evaluation import BATCH_EXAMPLES
from hybridsync.training.frozen import digests, frozen_leaves, joined
from hybridsync.training.program_digest import digest
from hybridsync.training.run import Run
from hybridsync.training.state import TrainState
from hybridsync.training.task import Task
from hybridsync.workdir.trained import Trained


def try_functions(run: Run, *, digests_programs: bool = True) -> Trained:
    """Trace every function of the user's that the roles will call, and return what they compute.

    Args:
      run: the run, with its configuration.
      digests_programs: whether to digest gradient and update; a run that leaves no record is compared with none.

    Raises:
      TaskError: model, loss or evaluation raises, or returns something else than its contract says.
      DataError: the source raises, or its batches cannot be trained on.
      OptimizerError: no run can train with this optimizer: see `Optimizer.check_rate`, `Optimizer.sampled_rates` and
        `check_divisible`.
    """
    config, optimizer = run.config, run.optimizer
    guarded = dataclasses.replace(run, task=_guarded(run.task))
    _check_description(guarded.task.source)
    batch = _first_unit(guarded, config.unit_size)
    state = guarded.abstract_state()
    update = optimizer.check_rate(state.params, state.opt_state)
    if config.servers > 1:
        check_divisible(optimizer, state.params, config.servers)
    rates = optimizer.sampled_rates(config.unit_size, config.workload)
    gradient = _gradient(guarded, state, batch)
    gradient_digested, update_digested = (digest(each) if digests_programs else "" for each in (gradient, update))
    _try_evaluation(guarded, state)
    functions = [name for name, value in optimizer.hyperparameters.items() if callable(value)]
    values = {name: text for name, text in optimizer.stated_values().items() if name not in functions}
    values |= {"clip": repr(optimizer.clip), "per": optimizer.per}
    values |= {"master": "True"} if optimizer.master else {}
    return Trained(
        values,
        rates,
        gradient_digested,
        update=update_digested,
        unit_size=config.unit_size,
        frozen=digests(frozen_leaves(guarded.task, config.seed)),
        optimizer=optimizer.recorded_values(config.unit_size, config.workload),
    )


def gradient_digest(run: Run, unit_size: int) -> str:
    """Return the digest of a run's gradient for units of another size."""
    guarded = dataclasses.replace(run, task=_guarded(run.task))
    return digest(_gradient(guarded, guarded.abstract_state(), _first_unit(guarded, unit_size)))


def _gradient(run: Run, state: TrainState, batch: HostBatch) -> ClosedJaxpr:
    shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in batch.items()}
    parameters = Parameters(state.params, state.model_state)
    with _trying("the gradient of Task.loss", TaskError):  # rules for its derivative are the user's, too
        arguments = run.task, run.optimizer.clip, parameters, shapes
        try:
            traced = traced_unit_gradient(*arguments)
        except TaskError:
            # A model may ask for the mesh. Others are traced without it, so that a resume may have another one.
            if not run.shared_device.axes:
                raise
            traced = run.shared_device.traced(traced_unit_gradient)(*arguments)
        if (micro_steps := run.config.devices.micro_steps) > 1:  # what they compute is the same, so they may change
            run.shared_device.traced(traced_unit_gradient)(*arguments, micro_steps)
    return traced


def _try_evaluation(run: Run, state: TrainState) -> None:
    task = run.task
    if task.evaluate is None:
        return
    try:
        batch = next(iter(task.source.test_batches(BATCH_EXAMPLES)), None)
    except (Exception, SystemExit):  # noqa: BLE001 held-out examples that cannot be read cost figures, and no training
        return
    if batch is None:
        return
    _check_fields(batch, "a batch of the source's held-out examples")
    evaluate, prepare = task.evaluate, task.source.prepare

    def sums(params: Any, model_state: Any, batch: Any, frozen: Any) -> Any:
        return evaluate(joined(params, frozen), model_state, prepare(batch))

    with _trying("Task.evaluate", TaskError):
        jax.eval_shape(run.shared_device.traced(sums), state.params, state.model_state, batch, task.abstract_frozen)


def _check_description(source: UnitSource) -> None:
    with _trying("the source's num_examples", DataError):
        number = source.num_examples
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
        raise DataError(f"the source's num_examples is {number!r}; it must be a whole number of 1 or more")
    described = source.describe()
    try:
        kept = isinstance(described, dict) and json.loads(json.dumps(described)) == described
    except (TypeError, ValueError):
        kept = False
    if not kept:
        raise DataError(
            f"the source's describe returned {described!r:.200}, which JSON does not give back as it is; return a dict "
            "of texts, numbers, lists and dicts"
        )


def _first_unit(run: Run, unit_size: int) -> HostBatch:
    batch = run.task.source.batch(0, unit_size=unit_size, seed=run.config.seed)
    _check_fields(batch, "the source's batch of unit 0", unit_size)
    return batch


def _check_fields(batch: Any, what: str, num_examples: int | None = None) -> None:
    """Check the types and lengths of a batch's fields; it may hold any number of examples if `num_examples` is None."""
    if not isinstance(batch, dict) or not batch:
        raise DataError(f"{what} is {type(batch).__name__} {batch!r:.100}; return a dict of arrays, one a field")
    for name, array in batch.items():
        dtype = getattr(array, "dtype", None)
        if dtype is None or not hasattr(array, "shape"):
            raise DataError(f"{what} has a {type(array).__name__} in the field {name!r}; make it an array of NumPy")
        if not (jnp.issubdtype(dtype, np.number) or dtype == np.bool_):
            raise DataError(
                f"{what} has the type {dtype} in the field {name!r}, which no device computes with; give numbers or "
                "booleans, such as the indices of words, and keep texts and objects out of the batch"
            )
        length = array.shape[0] if array.shape else None
        wanted = num_examples if num_examples is not None else length
        num_examples = length if num_examples is None else num_examples
        if length is None or length != wanted:
            raise DataError(
                f"{what} has the shape {tuple(array.shape)} in the field {name!r}, for {wanted} examples; every field "
                "has the examples on its first axis"
            )


def _check_loss(returned: Any) -> None:
    says = "return (loss, (metrics, model_state)), the loss one float"
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TaskError(f"Task.loss returned {_kind(returned)}; {says}")
    value, rest = returned
    is_number = isinstance(value, float) or (hasattr(value, "dtype") and not value.shape)
    if not is_number or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        raise TaskError(f"Task.loss returned a loss of {_kind(value)}; {says}")
    if not isinstance(rest, tuple) or len(rest) != 2:
        raise TaskError(f"Task.loss returned {_kind(rest)} beside the loss; {says}")


def _check_sums(returned: Any) -> None:
    if not isinstance(returned, dict) or "count" not in returned:
        raise TaskError(f"Task.evaluate returned {_kind(returned)}; return a dict of sums with at least 'count'")
    for name, value in returned.items():
        if not isinstance(value, int | float) and getattr(value, "shape", None) != ():
            raise TaskError(f"Task.evaluate returned {_kind(value)} as {name!r}; return one number, the batch's sum")


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict of {sorted(map(str, value))}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"a {type(value).__name__}"


def _guarded(task: Task) -> Task:
    """Return the task with its functions named in what they raise, and checked in what they return."""
    evaluate = task.evaluate and _named(task.evaluate, "Task.evaluate", TaskError, _check_sums)
    return dataclasses.replace(
        task,
        init=_named(task.init, "task.init", TaskError),
        frozen=task.frozen and _named(task.frozen, "task.frozen", TaskError),
        loss=_named(task.loss, "Task.loss", TaskError, _check_loss),
        source=_GuardedSource(task.source),
        evaluate=evaluate,
        sums=task.sums and _named(task.sums, "Task.sums", TaskError),
    )


class _GuardedSource:
    """A source whose methods are named in what they raise."""

    def __init__(self, source: UnitSource) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._source, name)
        return _named(found, f"the source's {name}", DataError) if callable(found) else found


def _named(
    function: Callable[..., Any],
    what: str,
    kind: type[HybridSyncError],
    check: Callable[[Any], None] = lambda returned: None,
) -> Callable[..., Any]:
    @functools.wraps(function)
    def named(*args: Any, **kwargs: Any) -> Any:
        with _trying(what, kind):
            returned = function(*args, **kwargs)
            check(returned)
        return returned

    named.inside = function  # pyright: ignore[reportAttributeAccessIssue]
    return named


@contextlib.contextmanager
def _trying(what: str, kind: type[HybridSyncError]) -> Iterator[None]:
    try:
        yield
    except HybridSyncError:
        raise
    except (Exception, SystemExit) as error:  # its author's: whatever it raises becomes one clear message
        raise kind(f"{what} raised {explain(error)}; correct it") from error
