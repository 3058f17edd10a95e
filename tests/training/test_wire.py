"""Rounding on the way between workers and servers: the same numbers wherever they are rounded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from hybridsync.core.errors import PlanError
from hybridsync.protocols import parse
from hybridsync.protocols.base import BFLOAT16, FLOAT32
from hybridsync.server.partition import Contributions, partition
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.compiled_programs import Parameters, Programs
from hybridsync.training.state import initial_state
from hybridsync.training.wire import narrowed_contribution, narrowed_parameters, rounded
from tests.tasks import mlp_task, momentum_sgd, programs_of


@pytest.fixture(scope="module")
def programs() -> Programs:
    return programs_of(mlp_task(), momentum_sgd())


@pytest.fixture(scope="module")
def parameters(programs: Programs) -> Parameters:
    state = jax.device_get(initial_state(programs.task, programs.optimizer, 3))
    return Parameters(state.params, state.model_state)


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def equal(left: Any, right: Any) -> bool:
    pairs = zip(leaves(left), leaves(right), strict=True)
    return all(a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def test_numbers_are_rounded_alike_by_the_wire_and_by_a_program() -> None:
    numbers = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)
    numbers *= np.exp2(np.random.default_rng(1).integers(-100, 100, numbers.size)).astype(np.float32)
    numbers[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38]
    layout = Layout.of({"w": jax.ShapeDtypeStruct(numbers.shape, jax.numpy.bfloat16)})
    travelled = layout.unpack(layout.pack({"w": numbers}))["w"].astype(np.float32)
    computed = np.asarray(jax.jit(rounded)(numbers))
    assert np.array_equal(travelled, computed, equal_nan=True)
    assert travelled[5:7].tolist() == [1.0, 1 + 2**-6]  # to the even one


def test_a_gradient_is_the_same_on_parameters_that_travelled_and_on_those_that_stayed(
    programs: Programs, parameters: Parameters
) -> None:
    layout = Layout.of(narrowed_parameters(programs.parameters, BFLOAT16))
    travelled = layout.unpack(layout.pack(parameters))
    assert equal(programs.gradient(travelled, 5, BFLOAT16), programs.gradient(parameters, 5, BFLOAT16))
    assert not equal(programs.gradient(parameters, 5, BFLOAT16), programs.gradient(parameters, 5))


@pytest.mark.parametrize("num_servers", [1, 2])
def test_a_contribution_arrives_as_it_was_computed_in_half_the_bytes(
    programs: Programs, parameters: Parameters, num_servers: int
) -> None:
    contribution = jax.device_get(programs.gradient(parameters, 5, BFLOAT16))
    whole, narrow = partition(programs, num_servers), partition(programs, num_servers, BFLOAT16)
    for of_whole, of_narrow in zip(whole, narrow, strict=True):
        buffer = of_narrow.contribution.layout.pack(of_narrow.contribution.part_of(contribution))
        assert buffer.nbytes in of_whole.narrow_bytes
        assert buffer.nbytes < 0.6 * of_whole.contribution.layout.nbytes
        assert of_narrow.parameters.layout.nbytes < 0.6 * of_whole.parameters.layout.nbytes
        assert equal(Contributions(of_whole).unpack(buffer), of_whole.contribution.part_of(contribution))


@pytest.mark.parametrize("size", [1, 8, 16, 17, 32, 33])
def test_a_leaf_of_any_size_arrives_as_what_it_is(size: int) -> None:
    """Leaves of up to 16 numbers take the same bytes as either type, and the size of a buffer tells its type."""
    floats = {"grads": {"w": np.arange(1, size + 1, dtype=np.float32)}, "loss": np.float32(1), "weight": np.float32(1)}
    whole = {"floats": floats, "ints": []}
    wide, narrow = Layout.of(whole), Layout.of(narrowed_contribution(whole, BFLOAT16))
    assert (wide.nbytes == narrow.nbytes) == (wide.types == narrow.types) == (size <= 16)
    shape = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), whole)
    part: Any = SimpleNamespace(programs=SimpleNamespace(contribution=shape))
    for layout in (wide, narrow):
        assert equal(Contributions(part).unpack(layout.pack(whole)), whole)


def test_only_numbers_that_are_learned_are_rounded(programs: Programs, parameters: Parameters) -> None:
    rounded_floats = programs.gradient(parameters, 5, BFLOAT16)["floats"]
    assert float(rounded_floats["loss"]) != float(rounded(rounded_floats["loss"]))


def test_a_wire_is_one_of_two_and_not_with_a_compensation() -> None:
    assert parse("asp").wire_dtype == parse("bsp").wire_dtype == FLOAT32
    assert parse("ssp(wire=bfloat16)").wire_dtype == BFLOAT16
    with pytest.raises(PlanError, match=r"asp\(wire=int8\) is no type that travels; known: float32, bfloat16"):
        parse("asp(wire=int8)")
    with pytest.raises(PlanError, match="would compensate what rounding did"):
        parse("asp(wire=bfloat16,staleness_rule=dc)")
    with pytest.raises(PlanError, match="wire"):
        parse("bsp(wire=bfloat16)")
