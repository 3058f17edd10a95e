"""Keys whose rounds are written out give what JAX's own give, to the bit."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridsync.lab.simulator.unrolled_random import unrolled

DRAWS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "normal": lambda key: jax.random.normal(key, (5, 3, 2)),
    "one number": lambda key: jax.random.uniform(key),
    "folded and split": lambda key: jax.random.bits(jax.random.split(jax.random.fold_in(key, 9))[1], (4,)),
    "several keys at once": lambda key: jax.vmap(jax.random.normal)(jax.random.split(key, 3)),
    "bytes": lambda key: jax.random.bits(key, (9,), jnp.uint8),
    "order": lambda key: jax.random.permutation(key, 11),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("partitionable", [True, False])
def test_bits_are_those_of_the_key_itself(draw: Callable[[jax.Array], jax.Array], partitionable: bool) -> None:
    key = jax.random.key(2**31 + 5)
    assert unrolled(key).dtype != key.dtype
    with jax.threefry_partitionable(partitionable):
        assert np.array_equal(jax.jit(draw)(unrolled(key)), jax.jit(draw)(key))


def test_a_key_of_another_kind_is_left_as_it_is() -> None:
    key = jax.random.key(1, impl="rbg")
    assert unrolled(key) is key
