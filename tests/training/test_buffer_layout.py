import copy
import weakref
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import struct
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hybridsync.core.errors import SchemaMismatch, TaskError
from hybridsync.training import buffer_layout
from hybridsync.training.buffer_layout import (
    ALIGNMENT,
    BufferTrees,
    Layout,
    digest,
    fingerprint,
    first_non_finite,
    leaf_bytes,
)

DTYPES = (np.float32, np.int32, np.uint32, np.bool_, np.uint8, np.float64, ml_dtypes.bfloat16)


@struct.dataclass
class State:
    params: Any
    opt_state: Any
    counters: Any


class Pair(NamedTuple):
    first: Any
    second: Any


def example() -> State:
    rng = np.random.default_rng(0)
    params = {
        "dense": {"kernel": rng.standard_normal((5, 3)).astype(np.float32), "bias": np.float32(0.5)},
        "half": rng.standard_normal((7,)).astype(ml_dtypes.bfloat16),
        "mask": np.array([True, False, True]),
        "bits": np.arange(3, dtype=np.uint32),
        "none": np.zeros((0, 4), np.float32),
    }
    optimizer = optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3)
    opt_state = jax.tree.map(np.asarray, optimizer.init({"kernel": params["dense"]["kernel"]}))
    return State(params, (opt_state, Pair(np.int32(1), None)), {"units": np.asarray(12, np.int32)})


def assert_bit_equal(left: Any, right: Any) -> None:
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def test_a_state_survives_the_buffer_bit_for_bit():
    state = example()
    layout = Layout.of(state)
    assert_bit_equal(layout.unpack(layout.pack(state)), state)
    assert_bit_equal(layout.unpack(layout.pack(state).tobytes()), state)


@given(
    st.lists(
        st.sampled_from(DTYPES).flatmap(
            lambda dtype: hnp.arrays(np.uint8, st.integers(0, 9)).map(
                lambda raw: np.frombuffer(raw.tobytes() * np.dtype(dtype).itemsize, dtype)
            )
        ),
        max_size=6,
    )
)
def test_any_bytes_of_any_dtype_survive_the_buffer(leaves):
    layout = Layout.of(leaves)
    buffer = layout.pack(leaves)
    assert_bit_equal(layout.unpack(buffer), leaves)
    assert fingerprint(layout.unpack(buffer)) == fingerprint(leaves)


def test_leaves_lie_aligned_and_apart():
    layout = Layout.of(example())
    end = 0
    for leaf in layout.leaves:
        assert leaf.offset % ALIGNMENT == 0
        assert leaf.offset >= end
        end = leaf.offset + leaf.nbytes
    assert layout.nbytes % ALIGNMENT == 0
    assert layout.nbytes >= end
    assert layout.empty().ctypes.data % ALIGNMENT == 0
    assert not layout.empty().any()


def test_shapes_alone_give_the_same_layout_as_arrays():
    state = example()
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    assert Layout.of(shapes) == Layout.of(state)


def test_unpacked_leaves_are_views_that_keep_the_read_only_flag():
    layout = Layout.of({"w": np.zeros(4, np.float32)})
    buffer = layout.empty()
    view = layout.unpack(buffer)["w"]
    buffer[:16] = np.ones(4, np.float32).view(np.uint8)
    assert view.tolist() == [1, 1, 1, 1]
    assert view.flags.writeable
    buffer.flags.writeable = False
    assert not layout.unpack(buffer)["w"].flags.writeable
    assert not layout.unpack(bytes(layout.nbytes))["w"].flags.writeable


def test_packing_fills_the_buffer_that_is_handed_in_and_takes_device_arrays():
    half = jax.numpy.arange(6, dtype=jax.numpy.bfloat16).reshape(2, 3)
    tree = {"w": half, "t": np.arange(6.0).reshape(2, 3).T}
    layout = Layout.of(tree)
    out = layout.empty()
    assert layout.pack(tree, out) is out
    assert_bit_equal(layout.unpack(out), tree)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"w": np.zeros(3, np.float32)}, r"leaf w is float32\[3\], expected float32\[2\]"),
        ({"w": np.zeros(2, np.int32)}, r"leaf w is int32\[2\], expected float32\[2\]"),
        ({"v": np.zeros(2, np.float32)}, r"leaf w is absent, expected float32\[2\]"),
        ([np.zeros(2, np.float32)], "leaf w is absent"),
    ],
)
def test_a_tree_of_another_schema_is_refused_by_leaf_and_both_types(tree, message):
    with pytest.raises(SchemaMismatch, match=message):
        Layout.of({"w": np.zeros(2, np.float32)}).pack(tree)


@pytest.mark.parametrize("buffer", [np.zeros(63, np.uint8), np.zeros(16, np.float32), np.zeros(128, np.uint8)[::2]])
def test_a_buffer_of_another_size_or_kind_is_refused(buffer):
    with pytest.raises(SchemaMismatch, match=r"contiguous uint8\[64\]"):
        Layout.of({"w": np.zeros(2, np.float32)}).unpack(buffer)


def test_a_read_only_buffer_cannot_be_packed():
    with pytest.raises(SchemaMismatch, match="leaf w: the buffer is read-only"):
        Layout.of({"w": np.zeros(2)}).pack({"w": np.zeros(2)}, np.frombuffer(bytes(64), np.uint8))


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (jax.random.key(0), "leaf model/x is a PRNG key array.*key_data"),
        (jax.eval_shape(lambda: jax.random.key(0)), "leaf model/x is a PRNG key array"),
        (3, "leaf model/x is a int, not an array"),
        (np.array(["text"]), "leaf model/x has dtype <U4"),
        (np.zeros(2, ">f4"), "leaf model/x has dtype >f4.*native"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused_by_name(leaf, message):
    with pytest.raises(TaskError, match=message):
        Layout.of({"model": {"x": leaf}})


def test_two_leaves_of_one_path_are_refused():
    with pytest.raises(TaskError, match="both called 'a/b'"):
        Layout.of({"a": {"b": np.zeros(1)}, "a/b": np.zeros(1)})


def test_the_fingerprint_changes_with_every_bit_dtype_shape_and_name():
    base = {"a": np.zeros(4, np.float32), "b": np.zeros((), np.int32)}
    variants = [
        base,
        {"a": np.array([0, 0, 0, -0.0], np.float32), "b": np.zeros((), np.int32)},
        {"a": np.zeros((2, 2), np.float32), "b": np.zeros((), np.int32)},
        {"a": np.zeros(4, np.int32), "b": np.zeros((), np.int32)},
        {"a": np.zeros(4, np.float32), "c": np.zeros((), np.int32)},
        {"a": np.zeros(4, np.float32)},
    ]
    assert len({fingerprint(tree) for tree in variants}) == len(variants)
    assert fingerprint(jax.tree.map(jax.numpy.asarray, base)) == fingerprint(base)


def test_fingerprints_and_digests_are_the_same_in_every_release():
    tree = {"w": np.arange(4, dtype=np.float32), "n": (np.int32(3),)}
    assert Layout.of(tree).schema_hash == "222717ff9844961bcacf350cb197e4a4"
    assert fingerprint(tree) == "d600c9ce7e5a852b4c8948c0baf71616"
    assert digest(leaf_bytes(tree["w"]).data) == "8852304960645e65c790ab1c20deb2f0"


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_entry_that_is_not_finite_is_found_and_large_ones_are_not_taken_for_it(dtype, value):
    large = np.full((3, 5), np.finfo(dtype).max, dtype)
    tree = {"n": np.arange(3), "w": large}
    assert first_non_finite(tree) is None
    spoiled = large.copy()
    spoiled[1, 4] = value
    assert first_non_finite({**tree, "w": spoiled}) == "leaf w, first index [1, 4]"
    assert first_non_finite({**tree, "w": np.where(np.isfinite(spoiled), 0, spoiled)}) is not None


class Away:
    """An array on an accelerator, as far as `first_non_finite` sees."""

    def __init__(self, array, device="gpu 0"):
        self.array, self.dtype, self.shape, self.is_copied = array, array.dtype, array.shape, False
        self._devices = {Device(device, device.split()[0])}

    def devices(self):
        return self._devices

    def __array__(self, *_args, **_options):
        self.is_copied = True
        return np.asarray(self.array)


class Device(NamedTuple):
    name: str
    platform: str


@pytest.fixture
def away(monkeypatch):
    are_finite = buffer_layout._are_finite
    monkeypatch.setattr(buffer_layout, "_are_finite", lambda leaves: are_finite([leaf.array for leaf in leaves]))
    monkeypatch.setattr(jax, "Array", Away)
    return Away


@pytest.mark.parametrize("dtype", [np.float16, np.float32, jnp.bfloat16])
def test_what_lies_on_an_accelerator_is_copied_from_there_only_where_an_entry_is_not_finite(dtype, away):
    large = np.full((3, 5), jnp.finfo(dtype).max, dtype)
    tree = {"n": away(jnp.arange(3)), "w": away(jnp.asarray(large))}
    assert first_non_finite(tree) is None and not tree["w"].is_copied
    assert first_non_finite({"n": tree["n"]}) is None, "integers are finite"
    spoiled = large.copy()
    spoiled[1, 4] = np.nan
    tree["w"] = away(jnp.asarray(spoiled))
    assert first_non_finite(tree) == "leaf w, first index [1, 4]" and tree["w"].is_copied


@pytest.mark.parametrize(
    "other",
    [
        lambda ones: ones,
        lambda ones: Away(jnp.asarray(ones), "cpu 0"),
        lambda ones: Away(jnp.asarray(ones), "gpu 1"),
    ],
    ids=["NumPy", "a CPU device", "another GPU"],
)
def test_what_lies_elsewhere_too_is_looked_at_here(other, away):
    for first in (True, False):
        leaves = [other(np.ones(3, np.float32)), away(jnp.ones(3))]
        assert first_non_finite(leaves if first else leaves[::-1]) is None and leaves[1].is_copied
    assert first_non_finite([]) is None and first_non_finite([np.float32(np.inf)]) is not None


def test_a_buffer_that_comes_again_has_the_tree_that_it_had():
    trees = BufferTrees(Layout.of({"w": np.zeros(3, np.float32)}))
    first, second = (np.zeros(64, np.uint8) for _ in range(2))
    tree = trees.of(first).tree
    trees.of(second).pack({"w": np.ones(3, np.float32)})
    assert trees.of(first).tree is tree and trees.of(second).tree is not tree
    assert not tree["w"].any() and trees.of(second).tree["w"].all()


@pytest.mark.parametrize("most", [8, 1])
def test_few_buffers_are_kept_alive(most: int):
    trees = BufferTrees(Layout.of({"w": np.zeros(3, np.float32)}), most)
    alive: list[weakref.ref[np.ndarray]] = []

    def come_once() -> None:
        buffer = np.zeros(64, np.uint8)
        trees.of(buffer)
        alive.append(weakref.ref(buffer))

    for _ in range(100):
        come_once()
    assert 0 < sum(each() is not None for each in alive) <= most
    trees.clear()
    assert not any(each() is not None for each in alive)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_seen_at_a_glance_in_every_leaf(wrong: float):
    tree = {
        "a": np.ones(3, np.float32),
        "b": {"c": np.ones((2, 40), np.float32), "n": np.int32(-1)},
        "d": np.float32(1),
    }
    layout = Layout.of(tree)
    assert layout.is_finite(layout.pack(tree))
    for name in ("a", "c", "d"):
        broken = copy.deepcopy(tree)
        place = broken["b"] if name == "c" else broken
        place[name] = np.full_like(place[name], 1)
        place[name].reshape(-1)[-1] = wrong
        assert not layout.is_finite(layout.pack(broken)), name


def test_integers_and_other_types_do_not_pass_for_floats_at_a_glance():
    as_float_nan = np.array([-1], np.int32)
    layout = Layout.of({"n": as_float_nan, "w": np.ones(2, np.float32)})
    assert layout.is_finite(layout.pack({"n": as_float_nan, "w": np.ones(2, np.float32)}))
    doubles = Layout.of({"w": np.ones(2)})
    assert not doubles.is_finite(doubles.pack({"w": np.ones(2)})), "only float32 is summed: it has to be looked at"


def test_what_lies_between_leaves_proves_nothing():
    layout = Layout.of({"a": np.ones(3, np.float32), "b": np.ones(2, np.float32)})
    buffer = layout.pack({"a": np.ones(3, np.float32), "b": np.ones(2, np.float32)})
    buffer[12:16] = 255  # padding behind a: not a number
    assert not layout.is_finite(buffer)
    assert first_non_finite(layout.unpack(buffer)) is None


def test_a_structure_is_described_once_and_another_apart():
    tree = {"a": np.zeros(3, np.float32), "b": np.zeros((2, 2), np.int32)}
    first = Layout.of(tree)
    assert Layout.of(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)) is first
    for other in (
        {**tree, "b": tree["b"].astype(np.uint32)},
        {**tree, "a": tree["a"][:2]},
        {"a": tree["a"], "c": tree["b"]},
    ):
        assert Layout.of(other) != first
    assert [leaf.path for leaf in Layout.of({"a": tree["a"], "c": tree["b"]}).leaves] == ["a", "c"]


def test_no_more_layouts_are_kept_than_a_process_has_use_for():
    for size in range(2 * buffer_layout.MOST_LAYOUTS):
        Layout.of({"only": np.zeros(size + 1, np.int8)})
    assert len(buffer_layout._LAYOUTS) <= buffer_layout.MOST_LAYOUTS


def test_programs_read_the_arrays_in_a_buffer_as_it_is_when_they_are_called():
    layout = Layout.of({"w": np.zeros((3, 4), np.float32), "n": np.int32(0)})
    there = layout.over(layout.empty())
    arguments, doubled = there.arguments, jax.jit(lambda tree: jax.tree.map(lambda leaf: 2 * leaf, tree))
    for value in (1, 7):
        there.pack({"w": np.full((3, 4), value, np.float32), "n": np.int32(value)})
        found = jax.device_get(doubled(arguments))
        assert (found["w"] == 2 * value).all() and found["n"] == 2 * value
    assert there.arguments is arguments and all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(arguments))
