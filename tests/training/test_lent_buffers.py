"""A buffer is lent again when nobody can see its content any more, whatever its content was seen through."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridsync.training.buffer_layout import Layout
from hybridsync.training.lent_buffers import MOST_FREE, LentBuffers

NUMBERS = 1 << 14
LAYOUT = Layout.of({"w": np.zeros((NUMBERS // 4, 4), np.float32)})


def leaf(lent: np.ndarray) -> np.ndarray:
    return LAYOUT.unpack(lent)["w"]


@jax.jit
def slowly(numbers: jax.Array) -> jax.Array:
    """Read the numbers at the end of a long computation."""
    once = jnp.eye(400) / 400
    power = jax.lax.fori_loop(0, 60, lambda _, power: power @ once, once)
    return numbers + power.sum() * 0


VIEWS: dict[str, Callable[[np.ndarray], Any]] = {
    "the leaf of a tree": leaf,
    "a view of views": lambda lent: lent.view(np.float32)[1:][:-1].reshape(2, -1).T,
    "a memoryview": lambda lent: leaf(lent).data,
    "a JAX array": lambda lent: jax.device_put(leaf(lent)),
    "a JAX array by dlpack": lambda lent: jnp.from_dlpack(leaf(lent)),
    "a program that reads it": lambda lent: slowly(leaf(lent)),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_what_anybody_can_see_is_not_written_over(view: Callable[[np.ndarray], Any]):
    buffers = LentBuffers(LAYOUT.nbytes)
    jax.block_until_ready(slowly(np.zeros(LAYOUT.leaves[0].shape, np.float32)))  # it is compiled
    lent = buffers.lend()
    leaf(lent)[:] = np.arange(NUMBERS, dtype=np.float32).reshape(-1, 4)
    expected = np.array(np.asarray(jax.block_until_ready(view(lent))))
    held = view(lent)
    del lent
    for _ in range(4):
        buffers.lend()[:] = 0xFF
    np.testing.assert_array_equal(np.asarray(held), expected)


def test_a_buffer_that_nobody_sees_is_lent_again():
    buffers = LentBuffers(LAYOUT.nbytes)
    lent = buffers.lend()
    where, held = lent.ctypes.data, leaf(lent)
    del lent
    other = buffers.lend()
    assert where % 64 == 0 and other.ctypes.data != where
    del held, other
    assert where in {lent.ctypes.data for lent in [buffers.lend(), buffers.lend()]}


def test_a_jax_array_gives_the_buffer_back_when_it_is_gone():
    buffers = LentBuffers(LAYOUT.nbytes)
    held = jax.device_put(leaf(buffers.lend()))
    where = held.unsafe_buffer_pointer()
    assert buffers.lend().ctypes.data != where
    del held
    gc.collect()
    assert where in {lent.ctypes.data for lent in [buffers.lend(), buffers.lend()]}


def test_a_few_buffers_are_kept_and_no_more():
    buffers = LentBuffers(LAYOUT.nbytes)
    lent = [buffers.lend() for _ in range(MOST_FREE + 3)]
    del lent
    assert len(buffers._free) == MOST_FREE


def test_memory_that_others_map_is_used_again_however_much_is_free():
    made: list[np.ndarray] = []

    def allocate(num_bytes: int) -> np.ndarray:
        made.append(np.zeros(num_bytes, np.uint8))
        return made[-1]

    buffers = LentBuffers(LAYOUT.nbytes, allocate)
    for _ in range(2):
        lent = [buffers.lend() for _ in range(MOST_FREE + 3)]
        del lent
    assert len(made) == MOST_FREE + 3


def test_a_buffer_that_was_lent_before_all_are_freed_does_not_come_back():
    buffers = LentBuffers(LAYOUT.nbytes)
    lent = buffers.lend()
    buffers.clear()
    del lent
    assert not buffers._free
