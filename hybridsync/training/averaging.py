"""Averages of replicas: parameters and model state, and where it is wanted the optimizer's state too.

Floats become their mean, computed in float32 in the order of the members; integers (step counts) become their maximum.
Each replica keeps its own values of everything else, of the model state's leaves that the loss never changes too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hybridsync.interfaces.messages import GroupReply
from hybridsync.training.model_state import restored
from hybridsync.training.state import TrainState


class AveragedPart(NamedTuple):
    """Holds what a group averages of a state; `opt_state` is () where the optimizer's state is not averaged."""

    params: Any
    model_state: Any
    opt_state: Any


def part_of(state: TrainState, *, optimizer: bool) -> AveragedPart:
    """Return what a group averages of `state`."""
    return AveragedPart(state.params, state.model_state, state.opt_state if optimizer else ())


def averaged(state: TrainState, part: AveragedPart, reply: GroupReply) -> TrainState:
    """Return `state` with what its group has averaged, and what was applied to all replicas by then.

    The learning rate follows the units of the whole run, which a replica hears of at its group rounds.

    Args:
      state: state of one replica.
      part: the group's average, or the replica's own part.
      reply: the reply to the group round's request.
    """
    counters = {"units": jnp.int32(reply.units), "updates": jnp.int32(reply.sequence)}
    opt_state = part.opt_state if reply.optimizer else state.opt_state
    model_state = restored(state.model_state, part.model_state)
    return TrainState(part.params, opt_state, model_state, state.protocol_state, counters)


def averaged_on_one_device(
    states: list[TrainState], reply: GroupReply, moving: Callable[[TrainState], TrainState]
) -> list[TrainState]:
    """Return the replicas of all members after their average; what they share is not to be donated.

    Args:
      states: state of each member's replica.
      reply: the reply to their group round's request.
      moving: `Programs.moving` of the run.
    """
    parts = tuple(part_of(moving(state), optimizer=reply.optimizer) for state in states)
    average = parts[0] if len(parts) == 1 else mean(parts)
    return [averaged(state, average, reply) for state in states]


@jax.jit
def mean(parts: tuple[AveragedPart, ...]) -> AveragedPart:
    """Return the average of the members' parts, in their order."""
    return jax.tree.map(_mean, *parts)


def copied(tree: Any) -> Any:
    """Return the same values in memory of their own, for programs that donate it."""
    return jax.tree.map(jnp.copy, tree)


def _mean(*leaves: jax.Array) -> jax.Array:
    first, *others = leaves
    if not jnp.issubdtype(first.dtype, jnp.floating):
        for other in others:
            first = jnp.maximum(first, other)
        return first
    total = first.astype(jnp.float32)
    for other in others:
        total = total + other.astype(jnp.float32)
    return (total / len(leaves)).astype(first.dtype)
