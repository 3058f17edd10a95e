"""Digests of programs: what changes them, what does not, and that no operation refuses a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from hybridsync.training.program_digest import digest

X = jax.ShapeDtypeStruct((4,), jnp.float32)


def of(function: Callable[..., Any]) -> str:
    return digest(jax.make_jaxpr(function)(X))


def gradient_of(function: Callable[[jax.Array], jax.Array]) -> Callable[..., Any]:
    return jax.grad(lambda x: function(x) @ x)


def twice(read: Any, write: Any) -> None:
    write[...] = read[...] * 2


WITH_TYPES = {
    "callback": lambda x: jax.pure_callback(lambda a: a, X, x),
    "foreign function": lambda x: jax.ffi.ffi_call("named", X)(x),
    "kernel": lambda x: pallas.pallas_call(twice, out_shape=X)(x),
}


@pytest.mark.parametrize("name", WITH_TYPES)
def test_operations_that_carry_types_of_arrays_have_a_digest(name):
    assert of(WITH_TYPES[name]) not in ("", of(lambda x: x))
    assert of(WITH_TYPES[name]) == of(WITH_TYPES[name])


@pytest.mark.parametrize("within", [jax.jit, jax.checkpoint, lambda f: jax.jit(jax.checkpoint(f))])
def test_a_part_that_is_compiled_or_computed_again_by_itself_changes_nothing(within):
    for wrap in (lambda f: f, gradient_of):
        assert of(wrap(within(jnp.sin))) == of(wrap(jnp.sin)) != of(wrap(within(jnp.cos)))


def test_where_values_lie_changes_nothing():
    def placed(x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x * 2, PartitionSpec("fsdp"))

    found = set()
    for axes, sizes in ((("fsdp", "tensor"), (2, 2)), (("fsdp",), (4,))):
        with jax.sharding.use_abstract_mesh(AbstractMesh(sizes, axes, axis_types=(AxisType.Auto,) * len(axes))):
            found.add(of(placed))
    assert found == {of(lambda x: x * 2)}


def test_a_program_that_cannot_be_read_has_no_digest(monkeypatch):
    monkeypatch.setattr("hybridsync.training.program_digest._of_value", lambda value: 1 / 0)
    assert of(lambda x: x + 1) == ""
