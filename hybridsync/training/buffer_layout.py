"""Lays the leaves of a pytree out in one contiguous buffer, and names a tree's content.

    >>> tree = {"b": np.zeros(3, np.float32), "a": (np.int32(7), np.ones((2, 2), np.float32))}
    >>> layout = Layout.of(tree)
    >>> [(leaf.path, str(leaf), leaf.offset) for leaf in layout.leaves]
    [('a/0', 'int32[]', 0), ('a/1', 'float32[2,2]', 64), ('b', 'float32[3]', 128)]
    >>> copy = layout.unpack(layout.pack(tree))
    >>> int(copy["a"][0]), fingerprint(copy) == fingerprint(tree)
    (7, True)

The padding between leaves is never part of a fingerprint, so a packed state and its tree have the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import xxhash

from hybridsync.core.errors import SchemaMismatch, TaskError, printable
from hybridsync.devices.staging import host_arrays

ALIGNMENT = 64
_SUMMED = (np.dtype(np.float32), np.dtype(np.float64))
MOST_LAYOUTS = 64
_LAYOUTS: dict[Any, Layout] = {}
"""Layouts by the structure and types of their trees: a process describes each once, whoever asks for it."""
BLOCK = 1 << 16
"""Numbers looked at together in the search for one that is not finite: they stay in the processor's cache."""


@dataclass(frozen=True)
class LeafSpec:
    """One leaf's place.

    Args:
      path: the keys from the root, joined by "/"; unique in its tree.
      dtype: numpy dtype, native byte order.
      shape: dimensions; () for a scalar.
      offset: first byte in the buffer, a multiple of 64.
      nbytes: bytes without padding.
    """

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    def __str__(self) -> str:
        return describe(self.dtype, self.shape)


@dataclass(frozen=True)
class Layout:
    """A bijection between trees of one structure and one contiguous buffer with 64-byte-aligned leaves.

    Args:
      leaves: leaves in the order in which jax flattens the tree.
      nbytes: size of the buffer, padding included.
      schema_hash: digest of all paths, dtypes and shapes; equal on two sides that can exchange buffers.
      treedef: jax PyTreeDef of the structure that `unpack` gives back.
    """

    leaves: tuple[LeafSpec, ...]
    nbytes: int
    schema_hash: str
    treedef: Any

    @classmethod
    def of(cls, tree: Any) -> Layout:
        """Lay out a tree of arrays or of `jax.ShapeDtypeStruct`.

        Raises:
          TaskError: a leaf is not an array of numbers (PRNG key, Python scalar), or two have one path.
        """
        leaves, treedef = jax.tree_util.tree_flatten(tree)
        # What is no array is refused by its path below.
        types = tuple((getattr(leaf, "dtype", None), getattr(leaf, "shape", None)) for leaf in leaves)
        known = _LAYOUTS.get((treedef, types))
        if known is None:
            known = _laid_out(tree)
            if len(_LAYOUTS) >= MOST_LAYOUTS:
                _LAYOUTS.clear()
            _LAYOUTS[treedef, types] = known
        return known

    def within(self, whole: Layout) -> Layout:
        """Return where this tree's leaves, found by their paths, lie in a buffer of the larger tree `whole`.

        Raises:
          SchemaMismatch: `whole` has no such leaf, or it is of another type.
        """
        places = {leaf.path: leaf for leaf in whole.leaves}
        found = {leaf.path: str(places[leaf.path]) for leaf in self.leaves if leaf.path in places}
        if difference := first_difference(found, self.types):
            raise SchemaMismatch(f"a part does not fit into the whole tree: {difference}")
        leaves = tuple(places[leaf.path] for leaf in self.leaves)
        return Layout(leaves, whole.nbytes, self.schema_hash, self.treedef)

    @functools.cached_property
    def types(self) -> dict[str, str]:
        """Each leaf's type by its path, as `float32[2,3]`."""
        return {leaf.path: str(leaf) for leaf in self.leaves}

    @functools.cached_property
    def _kinds(self) -> list[tuple[np.dtype[Any], tuple[int, ...]]]:
        return [(leaf.dtype, leaf.shape) for leaf in self.leaves]

    def arrays_of(self, tree: Any) -> list[np.ndarray]:
        """Return a tree's leaves as arrays of the host that fit into this layout, as `BufferTree.copy` takes them.

        Raises:
          SchemaMismatch: the tree does not fit; names the leaf and both values.
        """
        leaves, treedef = jax.tree_util.tree_flatten(tree)
        if treedef != self.treedef:
            difference = first_difference(Layout.of(tree).types, self.types)
            raise SchemaMismatch(f"cannot pack: {difference or f'{treedef} is not {self.treedef}'}")
        arrays = host_arrays(leaves)
        if [(array.dtype, array.shape) for array in arrays] == self._kinds:  # hot path: all of them in one comparison
            return arrays
        for spec, array in zip(self.leaves, arrays, strict=True):
            dtype = array.dtype
            fits = dtype is spec.dtype or dtype == spec.dtype or _rounds(dtype, spec.dtype)
            if not fits or array.shape != spec.shape:
                raise SchemaMismatch(
                    f"cannot pack: leaf {spec.path} is {describe(array.dtype, array.shape)}, expected {spec}"
                )
        return arrays

    def empty(self) -> np.ndarray:
        """Return a fresh zeroed buffer: uint8[nbytes], its first byte at a multiple of 64."""
        raw = np.zeros(self.nbytes + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + self.nbytes]

    def pack(self, tree: Any, out: np.ndarray | None = None) -> np.ndarray:
        """Copy a tree's leaves into a buffer, rounded where they travel as bfloat16; the padding is left alone.

        Args:
          tree: arrays (numpy or jax) of this layout's structure, dtypes and shapes.
          out: uint8[nbytes] to fill; None takes a fresh one.

        Returns:
          `out`, or the fresh buffer.

        Raises:
          SchemaMismatch: the tree or the buffer does not fit; names the leaf and both values.
        """
        return self.over(self.empty() if out is None else out).pack(tree)

    def unpack(self, buffer: np.ndarray | bytes | bytearray | memoryview) -> Any:
        """Return the tree whose leaves are views into `buffer`: they see later writes to it.

        Views of a read-only buffer are read-only.

        Raises:
          SchemaMismatch: the buffer has another size or is not a contiguous block of bytes.
        """
        return self.over(buffer).tree

    def over(self, buffer: np.ndarray | bytes | bytearray | memoryview) -> BufferTree:
        """Return the tree in a buffer, for one that is packed or read again and again.

        Raises:
          SchemaMismatch: see `unpack`.
        """
        block = buffer.data if isinstance(buffer, np.ndarray) else memoryview(buffer)
        if block.nbytes != self.nbytes or block.itemsize != 1 or not block.c_contiguous:
            raise SchemaMismatch(
                f"the buffer is {block.nbytes} bytes in items of {block.itemsize}, this layout needs a "
                f"contiguous uint8[{self.nbytes}]"
            )
        return BufferTree(self, buffer)

    @functools.cached_property
    def float32_spans(self) -> tuple[tuple[int, int], ...] | None:
        """Where neighbouring float32 leaves lie together, as first and last byte; None where another leaf is inexact.

        >>> Layout.of({"a": np.ones(3, np.float32), "b": np.ones(20, np.float32), "n": np.int32(1)}).float32_spans
        ((0, 144),)
        """
        spans: list[tuple[int, int]] = []
        joins = False
        for leaf in self.leaves:
            if is_summed := leaf.dtype == np.float32:
                start = spans.pop()[0] if joins else leaf.offset
                spans.append((start, leaf.offset + leaf.nbytes))
            elif jax.dtypes.issubdtype(leaf.dtype, np.inexact):
                return None
            joins = is_summed
        return tuple(spans)

    def is_finite(self, buffer: np.ndarray) -> bool:
        """Return whether a tree in a buffer was found finite at a glance; False proves nothing.

        One sum of squares for neighbouring leaves and the padding between them, whose bytes may be anything.

        >>> layout = Layout.of({"a": np.ones(3, np.float32), "b": np.ones(2, np.float32)})
        >>> layout.is_finite(layout.pack({"a": np.ones(3, np.float32), "b": np.zeros(2, np.float32)}))
        True
        >>> layout.is_finite(layout.pack({"a": np.ones(3, np.float32), "b": np.array([0, np.inf], np.float32)}))
        False
        """
        spans = self.float32_spans
        if spans is None:
            return False
        for start, stop in spans:
            flat = buffer[start:stop].view(np.float32)
            if not math.isfinite(np.vdot(flat, flat)):  # which warns of no overflow, as `np.dot` does
                return False
        return True


class BufferTree:
    """The tree in one buffer; its views are made once.

    Attributes:
      layout: of the tree.
      buffer: that it lies in.
      tree: views into it, which see later writes; read-only where the buffer is.
    """

    def __init__(self, layout: Layout, buffer: Any) -> None:
        self.layout, self.buffer = layout, buffer
        self._views = [np.ndarray(spec.shape, spec.dtype, buffer, spec.offset) for spec in layout.leaves]
        self.tree = layout.treedef.unflatten(self._views)

    @functools.cached_property
    def arguments(self) -> Any:
        """The tree as programs take it again and again: arrays of JAX that lie in the buffer, else its views.

        For each view JAX would make an array, with each call. These see later writes, too, so that a program must have
        ended, as its results show, before the buffer is written again.
        """
        return self.layout.treedef.unflatten(map(_in_place, self._views))

    def pack(self, tree: Any) -> Any:
        """Copy a tree's leaves into the buffer, and return that (see `Layout.pack`).

        Raises:
          SchemaMismatch: the tree does not fit, or the buffer is read-only.
        """
        return self.copy(self.layout.arrays_of(tree))

    def copy(self, arrays: Sequence[np.ndarray]) -> Any:
        """Copy what `Layout.arrays_of` has returned into the buffer, and return that.

        Raises:
          SchemaMismatch: the buffer is read-only.
        """
        if self._views and not self._views[0].flags.writeable:
            raise SchemaMismatch(f"cannot pack leaf {self.layout.leaves[0].path}: the buffer is read-only")
        for view, array in zip(self._views, arrays, strict=True):
            view[...] = array  # to the nearest even
        return self.buffer


class BufferTrees:
    """Finds the trees in the few buffers of a link, which come again and again.

    Args:
      layout: layout of all of them.
      most: buffers that are kept alive here at most; more in turn are cheap to look into anew.
    """

    def __init__(self, layout: Layout, most: int = 8) -> None:
        self._layout, self._most = layout, most
        self._kept: dict[int, BufferTree] = {}

    def of(self, buffer: np.ndarray) -> BufferTree:
        """Return the tree in a buffer.

        Raises:
          SchemaMismatch: see `Layout.unpack`.
        """
        found = self._kept.get(id(buffer))  # whose buffer is alive: no other one has its id
        if found is None:
            found = self._layout.over(buffer)
            if len(self._kept) >= self._most:
                self._kept.clear()
            self._kept[id(buffer)] = found
        return found

    def clear(self) -> None:
        """Let go of all buffers."""
        self._kept.clear()


def _in_place(view: np.ndarray) -> Any:
    """Return the array of JAX that lies where a view does; the view, where JAX has its arrays elsewhere."""
    if view.ctypes.data % ALIGNMENT:
        return view
    array = jax.device_put(view)
    return array if np.asarray(array).ctypes.data == view.ctypes.data else view


def _laid_out(tree: Any) -> Layout:
    entries, treedef = jax.tree_util.tree_flatten_with_path(tree)
    leaves: list[LeafSpec] = []
    seen: set[str] = set()
    offset = 0
    for keys, leaf in entries:
        path = jax.tree_util.keystr(keys, simple=True, separator="/")
        if path in seen:
            raise TaskError(
                f"two leaves are both called {path!r}: a key contains '/', or an integer key meets its text; rename one"
            )
        seen.add(path)
        dtype = _checked_dtype(path, leaf)
        shape = tuple(leaf.shape)
        nbytes = math.prod(shape) * dtype.itemsize
        leaves.append(LeafSpec(path, dtype, shape, offset, nbytes))
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
    schema = "\n".join(f"{leaf.path}\t{leaf}" for leaf in leaves)
    return Layout(tuple(leaves), offset, xxhash.xxh3_128_hexdigest(schema.encode()), treedef)


def _rounds(found: np.dtype[Any], expected: np.dtype[Any]) -> bool:
    """Return whether a leaf is packed as fewer bits, as a wire may have it (see `hybridsync.training.wire`)."""
    return found == np.float32 and expected == jax.numpy.bfloat16


def describe(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """Return a leaf's type as messages show it: `float32[2,3]`."""
    return f"{dtype.name}[{','.join(map(str, shape))}]"


def first_difference(found: Mapping[str, str], expected: Mapping[str, str]) -> str | None:
    """Name the first leaf in which two trees differ, and both its types; None where they agree.

    >>> first_difference({"w": "float32[2]", "b": "int32[]"}, {"w": "float32[3]", "b": "int32[]"})
    'leaf w is float32[2], expected float32[3]'
    """
    for path in [*expected, *(path for path in found if path not in expected)]:
        if found.get(path) != expected.get(path):
            there, wanted = found.get(path, "absent"), expected.get(path, "no such leaf")
            return f"leaf {path} is {there}, expected {wanted}"
    return None


def first_non_finite(tree: Any) -> str | None:
    """Name the first entry of a tree's floating-point leaves that is infinite or not a number; None where all are.

    >>> first_non_finite({"w": np.array([[0.0, 1.0], [np.nan, np.inf]]), "n": np.int32(3)})
    'leaf w, first index [1, 0]'
    """
    leaves = jax.tree.leaves(tree)
    # To look at them here, all of them would have to be copied from there.
    if _are_elsewhere(leaves) and _are_finite(leaves):
        return None
    for number, leaf in enumerate(leaves):
        flat = np.asarray(leaf).reshape(-1)
        # A sum of squares is finite only where every entry is; that it overflowed proves nothing.
        if flat.dtype in _SUMMED and math.isfinite(np.vdot(flat, flat)):  # see `Layout.is_finite`
            continue
        if not jax.dtypes.issubdtype(leaf.dtype, np.inexact):
            continue
        for start in range(0, flat.size, BLOCK):
            finite = np.isfinite(flat[start : start + BLOCK])
            if not finite.all():
                index = np.unravel_index(start + int(np.argmin(finite)), leaf.shape)
                return f"leaf {printable(Layout.of(tree).leaves[number].path)}, first index {[int(i) for i in index]}"
    return None


def _are_elsewhere(leaves: Sequence[Any]) -> bool:
    """Return whether arrays lie on the same devices, and not each as a whole in the memory of this process."""
    first = leaves[0] if leaves else None
    if not isinstance(first, jax.Array):
        return False
    devices = first.devices()
    if len(devices) == 1 and next(iter(devices)).platform == "cpu":
        return False
    return all(isinstance(leaf, jax.Array) and leaf.devices() == devices for leaf in leaves)


@jax.jit
def _are_finite(leaves: Sequence[jax.Array]) -> jax.Array:
    """Return whether all floating-point entries are finite: bool[], computed where they lie."""
    numbers = [leaf for leaf in leaves if jax.dtypes.issubdtype(leaf.dtype, np.inexact)]
    return jax.numpy.array([jax.numpy.isfinite(leaf).all() for leaf in numbers], bool).all()


def leaf_bytes(array: Any) -> np.ndarray:
    """Return an array's bytes, uint8[nbytes] in row-major order: a view where its memory allows one."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def digest(data: bytes | memoryview) -> str:
    """Return the hexadecimal 128-bit XXH3 digest of bytes; detects damage, not forgery."""
    return xxhash.xxh3_128_hexdigest(data)


def fingerprint(tree: Any) -> str:
    """Return one digest of a tree's schema and content: equal exactly where the states are bit-equal.

    Raises:
      TaskError: a leaf is not an array of numbers.
    """
    hasher = xxhash.xxh3_128(Layout.of(tree).schema_hash.encode())
    for leaf in jax.tree_util.tree_leaves(tree):
        hasher.update(leaf_bytes(leaf).data)
    return hasher.hexdigest()


def _checked_dtype(path: str, leaf: Any) -> np.dtype[Any]:
    """Return the leaf's numpy dtype, or refuse it by name."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or not hasattr(leaf, "shape"):
        raise TaskError(f"leaf {path} is a {type(leaf).__name__}, not an array; wrap it: np.asarray(value, dtype)")
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        raise TaskError(
            f"leaf {path} is a PRNG key array ({dtype}), not numbers; keep jax.random.key_data(key) (uint32) "
            "in the state, or derive the key from the unit"
        )
    numeric = jax.dtypes.issubdtype(dtype, np.number) or jax.dtypes.issubdtype(dtype, np.bool_)
    if not numeric or not np.dtype(dtype).isnative:
        raise TaskError(f"leaf {path} has dtype {dtype}; only numbers and bools in native byte order fit")
    return np.dtype(dtype)
