"""Averages of replicas: parameters and model state, and where it is wanted the optimizer's state too.

Floats become their mean, computed in float32 in the order of the members; integers (step counts) become their maximum.
Each replica keeps its own values of everything else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hybridsync.interfaces.messages import GroupReply
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
    return TrainState(part.params, opt_state, part.model_state, state.protocol_state, counters)


def averaged_on_one_device(states: list[TrainState], reply: GroupReply) -> list[TrainState]:
    """Return the replicas of all members after their average; what they share is not to be donated."""
    if len(states) == 1:
        return [averaged(states[0], part_of(states[0], optimizer=reply.optimizer), reply)]
    average = mean(tuple(part_of(state, optimizer=reply.optimizer) for state in states))
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
