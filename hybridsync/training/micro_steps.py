"""The gradient of a unit in parts, one after the other: the activations of one part at a time are in memory.

Part i has the examples i, i + k, ... of the unit, so that each device of a mesh that divides the unit has its share of
every part. Sums and counts of the parts add up, so that a masked mean is the unit's. The model state goes from part to
part: BatchNorm sees the examples of a part, as in a plain loop with gradient accumulation.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from hybridsync.core.errors import TaskError
from hybridsync.training.buffer_layout import describe
from hybridsync.training.model_state import loss_and_contribution, merged

if TYPE_CHECKING:
    from hybridsync.training.task import Task

Tree = Any


def gradient_in_parts(
    task: Task, params: Tree, model_state: Tree, batch: Any, key: Any, frozen: Tree | None, micro_steps: int
) -> tuple[tuple[jax.Array, tuple[Tree, Tree]], Tree]:
    """Return what `jax.value_and_grad` of `loss_and_contribution` does, in `micro_steps` parts. Traced.

    Raises:
      TaskError: a field of the batch does not divide, or the loss is not what a task promises.
    """
    summing = dataclasses.replace(task, loss=_summed(task))
    types: list[Any] = []  # of what each of both kinds of the model state contributes

    def step(carry: Any, part: Any) -> tuple[Any, None]:
        state, grads, total, count = carry
        number, examples = part

        def loss(params: Tree) -> Any:
            part_key = jax.random.fold_in(key, number)
            found: Any = loss_and_contribution(summing, params, state, examples, part_key, frozen=frozen)
            (value, weight), moved = found
            return value, (weight, moved)

        (value, (weight, (stats, counts))), new = jax.value_and_grad(loss, has_aux=True)(params)
        types.append(jax.tree.map(lambda leaf: leaf.dtype, (stats, counts)))
        grads = jax.tree.map(lambda sum_, g: sum_ + g.astype(jnp.float32), grads, new)
        state = merged(state, stats, counts, jnp.float32(1.0))
        return (state, grads, total + value, count + weight), None

    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    nothing = jnp.float32(0.0)
    parts = jnp.arange(micro_steps), {name: _divided(name, field, micro_steps) for name, field in batch.items()}
    (state, grads, total, count), _ = jax.lax.scan(step, (model_state, zeros, nothing, nothing), parts)
    moved = (
        jax.tree.map(lambda leaf, dtype: None if dtype is None else leaf.astype(dtype), state, kind)
        for kind in types[-1]
    )
    return (total / count, (*moved,)), jax.tree.map(lambda g: g / count, grads)


def _summed(task: Task) -> Any:
    """Return the loss of a part as (sum, count); of a task without sums each part counts as one."""

    def loss(params: Tree, model_state: Tree, batch: Any, key: Any) -> Any:
        if task.sums is None:
            value, (_, after) = task.loss(params, model_state, batch, key)
            return (jnp.float32(value), jnp.float32(1.0)), ({}, after)
        sums, after = task.sums(params, model_state, batch, key)
        return (jnp.float32(sums["loss"]), jnp.float32(sums["count"])), ({}, after)

    return loss


def _divided(name: str, field: jax.Array, parts: int) -> jax.Array:
    if not field.ndim or field.shape[0] % parts:
        raise TaskError(
            f"devices.micro_steps={parts} divides the examples of a unit, and the source's augment returned the field "
            f"{name!r} as {describe(field.dtype, field.shape)}; have the examples on its first axis"
        )
    return field.reshape(-1, parts, *field.shape[1:]).swapaxes(0, 1)
