"""The bits that JAX's default keys give on a CPU, in a quarter of the time.

JAX compiles the rounds of Threefry there as a loop over whole arrays, which compiles sooner. Written out, XLA makes one
pass of them. The bits are the same:

>>> key = jax.random.key(7)
>>> bool((jax.random.bits(unrolled(key), (3, 5)) == jax.random.bits(key, (3, 5))).all())
True

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011: Threefry-2x32, 20 rounds.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import define_prng_impl, threefry_prng_impl

NAME = "threefry2x32"
ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = 0x1BD11BDA


def unrolled(key: jax.Array) -> jax.Array:
    """Return a key that gives the same bits sooner; the key itself where it is of another kind, or not for a CPU."""
    if jax.default_backend() != "cpu" or str(jax.random.key_impl(key)) != NAME:
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_UNROLLED)


def _random_bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    size = math.prod(shape)
    partitionable: bool = jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
    if bit_width != 32 or size >= 2**32 or not partitionable:
        return threefry_prng_impl.random_bits(key, bit_width, shape)
    # Entry i is what becomes of the 64-bit counter i, whose upper half is 0 here.
    left, right = _rounds(key, jnp.zeros(shape, jnp.uint32), lax.iota(jnp.uint32, size).reshape(shape))
    return left ^ right


def _rounds(key: jax.Array, left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array]:
    keys = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(PARITY)
    left, right = left + keys[0], right + keys[1]
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            left = left + right
            right = (right << distance | right >> (32 - distance)) ^ left
        left, right = left + keys[(group + 1) % 3], right + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return left, right


_UNROLLED: Any = define_prng_impl(
    key_shape=threefry_prng_impl.key_shape,
    seed=threefry_prng_impl.seed,
    split=threefry_prng_impl.split,
    random_bits=_random_bits,
    fold_in=threefry_prng_impl.fold_in,
    name=f"{NAME}_unrolled",
    tag="fryu",
)
