"""Packs contributions, and what groups average, into one buffer: backends between processes sum flat buffers."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridsync.training.averaging import AveragedPart, part_of
from hybridsync.training.buffer_layout import BufferTrees, Layout
from hybridsync.training.state import TrainState


class FlatContributions:
    """Lays a contribution out in one buffer: all floats first, then all integers.

    Args:
      layout: layout of the contribution; its leaves are float32 and int32 only.
    """

    def __init__(self, layout: Layout) -> None:
        floats = [leaf for leaf in layout.leaves if leaf.dtype == np.float32]
        ints = [leaf for leaf in layout.leaves if leaf.dtype == np.int32]
        assert layout.leaves == tuple(floats + ints), "a contribution has its floats before its integers"
        self.layout = layout
        self.float_bytes = ints[0].offset if ints else layout.nbytes
        self._trees = BufferTrees(layout, most=1)  # each sum packs into the same buffer

    @functools.cached_property
    def buffer(self) -> np.ndarray:
        """Buffer of its own, for backends that bring none."""
        return self.layout.empty()

    @property
    def num_floats(self) -> int:
        """Length of the float buffer, padding included."""
        return self.float_bytes // 4

    @property
    def num_ints(self) -> int:
        """Length of the integer buffer, padding included."""
        return (self.layout.nbytes - self.float_bytes) // 4

    def split(self, contribution: Any, into: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Pack a contribution `into` a buffer, or the own one; returns its float32 and int32 parts, views of that."""
        return self.parts(self._trees.of(self.buffer if into is None else into).pack(contribution))

    def parts(self, buffer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the float32 and int32 parts of a buffer, uint8[layout.nbytes], as views."""
        return buffer[: self.float_bytes].view(np.float32), buffer[self.float_bytes :].view(np.int32)

    def rest(self) -> None:
        """Let go of the buffers; the next contribution is packed into new ones."""
        self._trees.clear()
        self.__dict__.pop("buffer", None)

    def join(self, floats: np.ndarray, ints: np.ndarray) -> Any:
        """Return the tree of a total's two parts."""
        if not ints.size:
            return self.layout.unpack(floats.view(np.uint8))
        whole = self.layout.empty()
        whole[: self.float_bytes] = floats.view(np.uint8)
        whole[self.float_bytes :] = ints.view(np.uint8)
        return self.layout.unpack(whole)


class FlatPart:
    """Lays what a group averages out in one buffer: all floats as float32 first, then all integers as int32.

    Args:
      part: part of a state, for its shapes.
    """

    def __init__(self, part: AveragedPart) -> None:
        self._leaves, self._treedef = jax.tree.flatten(part)
        self._lists = jax.jit(self._split)
        self._tree = jax.jit(self._joined)
        self.flat = FlatContributions(Layout.of(jax.eval_shape(self._split, part)))

    def split(self, part: AveragedPart, into: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Pack a part `into` a buffer, or the own one; returns its float32 and int32 numbers, views of that."""
        return self.flat.split(self._lists(part), into)

    def join(self, floats: np.ndarray, ints: np.ndarray) -> AveragedPart:
        """Return the part of a sum's two buffers, on the default device, in memory of its own."""
        return jax.tree.map(jnp.array, self._tree(self.flat.join(floats, ints)))

    def _split(self, part: AveragedPart) -> dict[str, Any]:
        leaves = jax.tree.leaves(part)
        return {
            "floats": [leaf.astype(jnp.float32) for leaf in leaves if _is_float(leaf)],
            "ints": [leaf.astype(jnp.int32) for leaf in leaves if not _is_float(leaf)],
        }

    def _joined(self, lists: dict[str, Any]) -> AveragedPart:
        floats, ints = iter(lists["floats"]), iter(lists["ints"])
        leaves = [next(floats if _is_float(leaf) else ints).astype(leaf.dtype) for leaf in self._leaves]
        return jax.tree.unflatten(self._treedef, leaves)


class FlatParts:
    """Holds both kinds of parts of one run's state: without the optimizer's state and with it."""

    def __init__(self, state: TrainState) -> None:
        self._kinds = {optimizer: FlatPart(part_of(state, optimizer=optimizer)) for optimizer in (False, True)}

    def __getitem__(self, optimizer: bool) -> FlatPart:
        return self._kinds[optimizer]

    def compile(self, state: TrainState) -> None:
        """Compile and run the programs once, on zeros of the state's shapes."""
        zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), state)
        for optimizer, kind in self._kinds.items():
            kind.join(*kind.split(part_of(zeros, optimizer=optimizer)))


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
