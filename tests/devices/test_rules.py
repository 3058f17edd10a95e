"""One resolver for nnx and linen: the places that Flax gives, on a mesh that has all axes."""

from __future__ import annotations

from flax import linen
from hypothesis import given
from hypothesis import strategies as st

from hybridsync.devices.rules import resolve

AXES = ("fsdp", "tensor", "data", "context")
NAMES = ("embed", "mlp", "heads", "vocab")
to = st.one_of(st.none(), st.sampled_from(AXES), st.lists(st.sampled_from(AXES), max_size=2, unique=True).map(tuple))
tables = st.lists(st.tuples(st.sampled_from(NAMES), to), min_size=1, max_size=8)
leaves = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).map(tuple)


@given(leaves, tables)
def test_rules_hold_as_flax_reads_them(names: tuple[str, ...], rules: list) -> None:
    expected = linen.logical_to_mesh_axes(names, rules)
    assert expected is not None
    found = resolve(names, rules, dict.fromkeys(AXES, 2)) or ((),) * len(names)
    assert found == tuple((axes,) if isinstance(axes, str) else tuple(axes or ()) for axes in expected)


@given(leaves, tables)
def test_axes_that_a_mesh_lacks_are_left_out_of_what_holds_on_one_that_has_all(names: tuple, rules: list) -> None:
    everywhere = resolve(names, rules, dict.fromkeys(AXES, 2)) or ((),) * len(names)
    here = resolve(names, rules, {"fsdp": 2}) or ((),) * len(names)
    assert here == tuple(tuple(axis for axis in axes if axis == "fsdp") for axes in everywhere)
