"""Averages of replicas: what is averaged, in which order and type, and what stays each one's own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridsync.interfaces.messages import GroupReply
from hybridsync.training.averaging import AveragedPart, averaged, copied, mean, part_of
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.state import TrainState, initial_state
from tests.tasks import batchnorm_task, momentum_sgd


def state_of(seed: int):
    return initial_state(batchnorm_task(), momentum_sgd(), seed)


def test_floats_become_the_mean_in_member_order_and_integers_the_maximum() -> None:
    parts = [
        AveragedPart({"w": jnp.float32([value, value / 4])}, {"steps": jnp.int32(value)}, ()) for value in (1, 2, 5)
    ]
    average = mean(tuple(parts))
    np.testing.assert_allclose(average.params["w"], [8 / 3, 2 / 3], rtol=1e-7)
    assert int(average.model_state["steps"]) == 5


def test_half_precision_is_averaged_in_single_and_keeps_its_type() -> None:
    parts = [AveragedPart({"w": jnp.bfloat16(value)}, {}, ()) for value in (256, 1, 1, 1)]
    average = mean(tuple(parts)).params["w"]
    assert average.dtype == jnp.bfloat16 and float(average) == 65.0, "256 + 1 is 256 in half precision, and the mean 64"


@pytest.mark.parametrize("optimizer", [False, True])
def test_a_mixed_replica_has_the_groups_parameters_and_statistics_and_its_own_momentum(optimizer: bool) -> None:
    states = [state_of(seed) for seed in (1, 2)]
    states = [
        TrainState(s.params, jax.tree.map(lambda a, n=n: a + n, s.opt_state), s.model_state, {}, s.counters)
        for n, s in enumerate(states)
    ]
    parts = tuple(part_of(state, optimizer=optimizer) for state in states)
    reply = GroupReply((0, 1), sequence=7, units=12, optimizer=optimizer)
    after = averaged(states[0], mean(parts), reply)
    assert {name: int(value) for name, value in after.counters.items()} == {"units": 12, "updates": 7}
    assert fingerprint(after.params) == fingerprint(mean(parts).params) != fingerprint(states[0].params)
    assert fingerprint(after.opt_state) == fingerprint(mean(parts).opt_state if optimizer else states[0].opt_state)
    assert fingerprint(states[0].opt_state) != fingerprint(states[1].opt_state)


def test_one_mean_is_the_same_bits_for_all_and_a_copy_shares_no_memory() -> None:
    state = state_of(1)
    copy = copied(state)
    assert fingerprint(copy) == fingerprint(state)
    ours, theirs = jax.tree.leaves(state), jax.tree.leaves(copy)
    for left, right in zip(ours, theirs, strict=True):
        assert left.unsafe_buffer_pointer() != right.unsafe_buffer_pointer()
