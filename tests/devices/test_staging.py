"""Leaves on their way to the host through pinned memory, which CPU devices have, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from hybridsync.devices import staging
from hybridsync.training.buffer_layout import Layout
from tests.compilations import count_compilations

TREE = {
    "bias": jnp.arange(3, dtype=jnp.bfloat16),
    "count": jnp.int32(7),
    "empty": jnp.zeros((0, 4)),
    "kernel": jnp.linspace(0.0, 1.0, 6).reshape(2, 3),
}


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have arrays of CPU devices go the way of those of GPUs."""
    monkeypatch.setattr(staging, "STAGED_PLATFORMS", frozenset({"cpu"}))


def test_leaves_come_through_pinned_memory_bit_for_bit_and_are_read_in_place(staged: None) -> None:
    leaves = jax.tree.leaves(TREE)
    pinned = staging._to_pinned(tuple(leaf.sharding for leaf in leaves))(leaves)
    assert {leaf.sharding.memory_kind for leaf in pinned} == {"pinned_host"}
    assert np.asarray(pinned[-1]).ctypes.data == pinned[-1].unsafe_buffer_pointer()
    for leaf, array in zip(leaves, staging.host_arrays(leaves), strict=True):
        assert array.dtype == leaf.dtype and array.shape == leaf.shape
        assert array.tobytes() == np.asarray(leaf).tobytes()


def test_a_buffer_holds_the_same_bytes_with_and_without_staging(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout.of(TREE)
    direct = layout.pack(TREE)
    monkeypatch.setattr(staging, "STAGED_PLATFORMS", frozenset({"cpu"}))
    assert layout.pack(TREE).tobytes() == direct.tobytes()


def test_the_same_leaves_are_compiled_for_once(staged: None) -> None:
    staging.host_arrays(jax.tree.leaves(TREE))
    others = jax.tree.leaves(jax.tree.map(lambda leaf: leaf + leaf, TREE))
    with count_compilations() as compiled:
        staging.host_arrays(others)
    assert compiled == []


def test_arrays_of_a_cpu_and_of_numpy_are_read_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(shardings: Any) -> Any:
        raise AssertionError("arrays of a CPU go through no other memory")

    monkeypatch.setattr(staging, "_to_pinned", fail)
    kernel = TREE["kernel"]
    (array,) = staging.host_arrays([kernel])
    assert array.ctypes.data == kernel.unsafe_buffer_pointer()
    own = np.ones(3, ml_dtypes.bfloat16)
    assert staging.host_arrays([own, kernel])[0] is own and staging.host_arrays([]) == []


def test_leaves_of_numpy_among_others_are_taken_as_they_are(staged: None) -> None:
    own = np.ones(3, np.float32)
    assert staging.host_arrays([own, TREE["kernel"]])[0] is own


def test_divided_leaves_come_whole(on_devices: Callable[..., Any]) -> None:
    assert on_devices("staged_shards") == {"kinds": ["pinned_host"], "equal": True}


def test_scalars_of_jax_and_of_numpy_become_numbers_with_their_bits() -> None:
    found = staging.host_numbers([jnp.float32(1.1), jnp.int32(-3), np.float32(2.5), np.array(7, np.int32)])
    assert found == [np.float32(1.1), -3, 2.5, 7]
    assert [type(number) for number in found] == [np.float32, np.int32, np.float32, np.int32]
