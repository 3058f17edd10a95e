"""Merges the model state that a loss returns for several units: each leaf by its path, by the rule of its type.

    a leaf that the loss returns as it got it       stays as it is, whatever its type; it does not travel
    float32, bfloat16, float16                      mean over the units of an update, computed in float32
    int8, int16, int32, uint8, uint16               maximum over the units of an update

A leaf that a transformation inside the loss only hands on counts as unchanged (see `forwarding`).

No other type may change, because no rule gives what a plain loop gives: the error names the leaf and says what to keep
instead. So do a leaf that is missing or new, and one of another type or shape than before.

A server takes only a share of a mean into its own statistics where an update has a share of the workers' units, and it
never lets an integer fall then. In lock-step what the units give replaces what was there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from hybridsync.core.errors import TaskError
from hybridsync.training.buffer_layout import describe
from hybridsync.training.forwarding import changed
from hybridsync.training.frozen import joined

if TYPE_CHECKING:
    from hybridsync.data.source import HostBatch
    from hybridsync.training.task import Task

Tree = Any

_MEANS = tuple(map(jnp.dtype, (jnp.float32, jnp.bfloat16, jnp.float16)))
_MAXIMA = tuple(map(jnp.dtype, (jnp.int8, jnp.int16, jnp.int32, jnp.uint8, jnp.uint16)))
"""All of them fit into the int32 that travels."""


def check_model_state(task: Task, batch: HostBatch) -> None:
    """Check what a task's loss returns as model state, by shapes alone: nothing is computed.

    Args:
      task: task that is checked.
      batch: a unit of its source.

    Raises:
      TaskError: a leaf is missing, new, of another type or shape than in `init`, or changes in a type without a rule.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    params, model_state = jax.eval_shape(task.init, key)
    shapes = {name: jax.ShapeDtypeStruct(field.shape, field.dtype) for name, field in batch.items()}

    def once(params: Tree, model_state: Tree, batch: Any, key: Any, frozen: Tree) -> Any:
        return loss_and_contribution(task, params, model_state, task.source.augment(batch, key), key, frozen=frozen)

    jax.eval_shape(once, params, model_state, shapes, key=key, frozen=task.abstract_frozen)


def loss_and_contribution(
    task: Task, params: Tree, model_state: Tree, batch: Any, key: Any, frozen: Tree | None = None
) -> tuple[jax.Array, tuple[Tree, Tree]]:
    """Return a unit's loss and what it contributes to the model state: float32 statistics, int32 counts. Traced.

    Args:
      task: task of the loss.
      params: trained parameters.
      model_state: model state before the unit.
      batch: the unit's examples.
      key: the loss's key.
      frozen: parameters that are not trained.

    Returns:
      The loss, and two trees of the structure of `model_state`, with None in place of the leaves not of the kind.

    Raises:
      TaskError: see `check_model_state`.
    """
    expected = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(model_state)}

    def call(leaves: list[Any], params: Tree, batch: Any, key: Any, frozen: Tree) -> tuple[list[Any], Any]:
        before = jax.tree.unflatten(jax.tree.structure(model_state), leaves)
        value, (_, after) = task.loss(joined(params, frozen), before, batch, key)
        return _in_order(expected, after), value

    if not expected:  # a second way through a loss of many leaves would be a third of a start
        value, (_, after) = task.loss(joined(params, frozen), model_state, batch, key)
        _in_order(expected, after)
        return jnp.asarray(value), (model_state, model_state)

    # The loss is traced alone, since only a program shows what a transformation inside it hands on. Then it is run.
    inputs = list(expected.values()), params, batch, key, frozen
    program, returned = jax.make_jaxpr(call, return_shape=True)(*inputs)
    results = jaxpr_as_fun(program)(*jax.tree.leaves(inputs))
    leaves, value = jax.tree.unflatten(jax.tree.structure(returned), map(jnp.asarray, results))
    moves = changed(program.jaxpr, inputs[0], leaves)
    for path, moved in zip(expected, moves, strict=True):
        if moved and (dtype := jnp.result_type(expected[path])) not in _MEANS + _MAXIMA:
            raise TaskError(
                f"the loss changes the model state's leaf {path}, {_type(expected, path)}, and several workers' values "
                f"of that type cannot be merged: {_advice(dtype)}"
            )

    def of_kind(kind: tuple[Any, ...], dtype: Any) -> Tree:
        new = [
            leaf.astype(dtype) if moved and jnp.result_type(old) in kind else None
            for old, leaf, moved in zip(inputs[0], leaves, moves, strict=True)
        ]
        return jax.tree.unflatten(jax.tree.structure(model_state), new)

    return value, (of_kind(_MEANS, jnp.float32), of_kind(_MAXIMA, jnp.int32))


def _in_order(expected: dict[str, Any], after: Tree) -> list[Any]:
    """Return the leaves of a returned model state in the order of those expected.

    Raises:
      TaskError: a leaf is missing or new, or of another type or shape.
    """
    found = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(after)}
    for path in [*expected, *found]:
        there, wanted = _type(found, path), _type(expected, path)
        if there != wanted:
            raise TaskError(
                f"the loss returns the model state's leaf {path} as {there}, init as {wanted}: return every leaf of "
                "the model state that it got, of the same type and shape, and no other"
            )
    return [found[path] for path in expected]


def merged(model_state: Tree, stats: Tree, counts: Tree, blend: jax.Array) -> Tree:
    """Return the model state after an update. Traced.

    Args:
      model_state: model state before it.
      stats: mean over the update's units, a tree as `loss_and_contribution` returns it.
      counts: maximum over them, likewise.
      blend: share of the new values: 1 under lock-step, 1/n from one of n asynchronous workers.
    """

    def merge(leaf: jax.Array, stat: jax.Array | None, count: jax.Array | None) -> jax.Array:
        if stat is not None:
            old = leaf.astype(jnp.float32)
            # An infinite start (of a running extreme) times 0 is not a number.
            return jnp.where(jnp.isfinite(old), (1.0 - blend) * old + blend * stat, stat).astype(leaf.dtype)
        if count is not None:
            new = count.astype(leaf.dtype)
            # A worker may have computed on an older version: its count must not undo those of others.
            return jnp.where(blend == 1.0, new, jnp.maximum(leaf, new))
        return leaf

    return jax.tree.map(merge, model_state, stats, counts)


def moving(model_state: Tree, like: Tree) -> Tree:
    """Return a model state with None in place of the leaves that the loss never changes.

    Args:
      model_state: the model state.
      like: `(stats, counts)` of a contribution, or their shapes.
    """
    stats, counts = like
    return jax.tree.map(
        lambda leaf, stat, count: None if stat is None and count is None else leaf, model_state, stats, counts
    )


def restored(model_state: Tree, moved: Tree) -> Tree:
    """Return a model state with the leaves of `moved`, as `moving` returns it."""
    return jax.tree.map(lambda own, new: own if new is None else new, model_state, moved)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _type(leaves: dict[str, Any], path: str) -> str:
    """Return a leaf's type as messages show it."""
    if path not in leaves:
        return "absent"
    leaf = leaves[path]
    try:
        return describe(jnp.result_type(leaf), jnp.shape(leaf))
    except TypeError:
        return f"a {type(leaf).__name__}"


def _advice(dtype: Any) -> str:
    if jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jnp.uint32:
        return "take random numbers from the loss's key, which every unit has of its own, and count in int32"
    if jnp.issubdtype(dtype, jnp.bool_):
        return "keep an int32, of which the maximum is taken, or a float32, which is averaged"
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return "keep its real and imaginary parts as two leaves of float32, which are averaged"
    if jnp.issubdtype(dtype, jnp.integer):
        return "keep an int32, of which the maximum is taken"
    return "keep a float32, which is averaged"
