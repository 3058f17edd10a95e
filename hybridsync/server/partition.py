"""Divides the leaves of the training state among parameter servers, and joins the parts again. Pure.

A part is the whole tree with the other servers' leaves replaced by None. None is an empty pytree, so that an optax
state of a part keeps the paths it has in the whole, and the update program of a part is that of the whole, traced on
fewer leaves: its results are the same bits. Optax's values other than the parameters (step counts, hyperparameters)
exist in every part and are equal in all of them, as are the counters. The model's state belongs to server 0, the
primary. A protocol's state is divided as the parameters are.

    >>> shapes = Layout.of({"w": np.zeros((4, 4), np.float32), "b": np.zeros(4, np.float32), "c": np.zeros(3)})
    >>> [leaf.path for leaf in shapes.leaves], owners(shapes, 2)
    (['b', 'c', 'w'], (1, 1, 0))
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hybridsync.core.errors import HybridSyncError, OptimizerError, SchemaMismatch, described
from hybridsync.protocols.base import BFLOAT16, FLOAT32
from hybridsync.training.buffer_layout import Layout, leaf_bytes
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.state import TrainState
from hybridsync.training.wire import narrowed_contribution, narrowed_parameters, widened

PRIMARY = 0
"""The server that runs the protocol's rule."""


def owners(layout: Layout, num_servers: int) -> tuple[int, ...]:
    """Return the server of each leaf: whole leaves, the largest first, each to the emptiest server.

    Args:
      layout: layout of the parameters.
      num_servers: servers to divide them among; where there are fewer leaves, some hold none.
    """
    filled = [0] * num_servers
    found = [PRIMARY] * len(layout.leaves)
    for index in sorted(range(len(layout.leaves)), key=lambda i: (-layout.leaves[i].nbytes, i)):
        found[index] = filled.index(min(filled))
        filled[found[index]] += layout.leaves[index].nbytes
    return tuple(found)


def shares(layout: Layout, num_servers: int) -> tuple[tuple[int, ...], ...]:
    """Return for each server which leaves it keeps: those it owns, and for a single one a companion.

    XLA divides by a scalar that only one leaf uses as a multiplication with its reciprocal, which rounds otherwise
    (seen on CPU in Adam's bias correction). So the update of a leaf alone would not have the bits of its update in the
    whole tree; together with the smallest other leaf, which is then updated on two servers, it has.
    """
    belongs = owners(layout, num_servers)
    sizes = [leaf.nbytes for leaf in layout.leaves]
    kept = [[index for index, owner in enumerate(belongs) if owner == server] for server in range(num_servers)]
    for indices in kept:
        if len(indices) == 1:
            others = [index for index, size in enumerate(sizes) if size and index != indices[0]]
            indices.extend(sorted(others, key=sizes.__getitem__)[:1])
    return tuple(tuple(sorted(indices)) for indices in kept)


@dataclass(frozen=True)
class Cut:
    """Cuts some leaves out of a whole tree, as a tree of their own.

    Args:
      whole: layout of the whole tree.
      layout: layout of the part alone.
      inside: positions of the part's leaves in a buffer of the whole.
      indices: the part's leaves by their number in the whole.
    """

    whole: Layout
    layout: Layout
    inside: Layout
    indices: tuple[int, ...]

    @classmethod
    def of(cls, whole: Layout, part: Any) -> Cut:
        """Return the cut that leaves `part`, a tree of arrays or shapes whose paths `whole` has too.

        Raises:
          SchemaMismatch: a leaf of the part is not in the whole, or is of another type there.
        """
        layout = Layout.of(part)
        numbers = {leaf.path: number for number, leaf in enumerate(whole.leaves)}
        return cls(whole, layout, layout.within(whole), tuple(numbers[leaf.path] for leaf in layout.leaves))

    @functools.cached_property
    def is_whole(self) -> bool:
        """Return whether the part is the whole tree, as that of a single server is."""
        return self.layout.treedef == self.whole.treedef and self.indices == tuple(range(len(self.whole.leaves)))

    def part_of(self, tree: Any) -> Any:
        """Return the part of a whole tree."""
        if self.is_whole:
            return tree
        leaves = jax.tree.leaves(tree)
        return self.layout.treedef.unflatten([leaves[index] for index in self.indices])


def join(cuts: Sequence[Cut], parts: Sequence[Any]) -> Any:
    """Return the whole tree of its parts; of a leaf that several parts have, the first one's is taken."""
    whole = cuts[0].whole
    if cuts[0].is_whole:
        return parts[0]
    leaves: list[Any] = [None] * len(whole.leaves)
    for cut, part in zip(reversed(cuts), reversed(parts), strict=True):
        for index, leaf in zip(cut.indices, jax.tree.leaves(part), strict=True):
            leaves[index] = leaf
    return whole.treedef.unflatten(leaves)


@dataclass(frozen=True)
class Part:
    """Holds one server's part of the trees that travel and of the state.

    Args:
      server: number of the server.
      programs: the run's programs on its leaves.
      state, contribution, parameters, opt_state: cuts of the whole trees into those of the part.
    """

    server: int
    programs: Programs
    state: Cut
    contribution: Cut
    parameters: Cut
    opt_state: Cut

    @property
    def narrow_bytes(self) -> tuple[int, ...]:
        """Sizes of a contribution in phases with a narrow wire."""
        return (self.programs.wire_sizes(BFLOAT16)[0],)

    @property
    def narrow_parameters(self) -> dict[str, Layout]:
        """Layouts of the parameters as they travel in phases with a narrow wire."""
        return {BFLOAT16: Layout.of(narrowed_parameters(self.programs.parameters, BFLOAT16))}


class Contributions:
    """Reads the contributions that come to a server, of which the size tells the type of their numbers.

    Args:
      part: part of the server.
    """

    def __init__(self, part: Part) -> None:
        self._shapes = part.programs.contribution
        narrow, self._wide = map(Layout.of, (narrowed_contribution(self._shapes, BFLOAT16), self._shapes))
        self._layouts = {narrow.nbytes: narrow, self._wide.nbytes: self._wide}
        self._known: dict[int, tuple[weakref.ref[np.ndarray], Any]] = {}  # trees in buffers that live, by their ids

    def unpack(self, buffer: np.ndarray) -> Any:
        """Return the contribution in a buffer, as views of it; of one with a narrow type, float32 copies.

        Raises:
          SchemaMismatch: the buffer has another size.
        """
        layout = self._layouts.get(buffer.nbytes)
        if layout is None:
            sizes = " or ".join(map(str, self._layouts))
            raise SchemaMismatch(f"a contribution has {sizes} bytes, and this one {buffer.nbytes}")
        contribution = self._tree_in(buffer, layout)
        return contribution if layout is self._wide else widened(contribution, self._shapes)

    def _tree_in(self, buffer: np.ndarray, layout: Layout) -> Any:
        """Return the tree in a buffer; its views are made once, as a worker's memory comes again with each push."""
        key = id(buffer)
        known = self._known.get(key)
        if known is not None:
            return known[1]
        if buffer.base is None:  # its views would keep it alive
            return layout.unpack(buffer)
        tree = layout.unpack(buffer[:])
        self._known[key] = weakref.ref(buffer, lambda _: self._known.pop(key, None)), tree
        return tree

    def is_finite(self, buffer: np.ndarray) -> bool:
        """Return whether the contribution in a buffer is seen to be finite at a glance; False proves nothing."""
        return buffer.nbytes == self._wide.nbytes and self._wide.is_finite(buffer)


@functools.lru_cache(maxsize=8)
def partition(programs: Programs, num_servers: int, wire: str = FLOAT32) -> tuple[Part, ...]:
    """Divide a run among its servers; the same in every process.

    Args:
      programs: programs of the run.
      num_servers: servers to divide it among.
      wire: number format of contributions and parameters between processes.

    Raises:
      OptimizerError: the optimizer's state is not the union of its states on the parts.
    """
    kept = shares(Layout.of(programs.state.params), num_servers)
    parts = tuple(_part(programs, kept[server], server, wire) for server in range(num_servers))
    held = {leaf.path for part in parts for leaf in part.state.layout.leaves}
    if lost := [leaf.path for leaf in programs.state_layout.leaves if leaf.path not in held]:
        raise OptimizerError(
            f"the optimizer cannot be divided among servers: leaf {lost[0]} is in its state for the whole tree, and in "
            "none of its states for the parts; use one server"
        )
    return parts


def prune(tree: Any, kept: Sequence[int]) -> Any:
    """Return a tree of the parameters' structure in which all leaves but those with these numbers are None."""
    leaves, treedef = jax.tree.flatten(tree)
    numbers = frozenset(kept)
    return treedef.unflatten([leaf if index in numbers else None for index, leaf in enumerate(leaves)])


def initial_part(optimizer: Optimizer, params: Any) -> Any:
    """Return the optax state of pruned parameters.

    Raises:
      OptimizerError: the optimizer cannot be set up for a part of the tree.
    """
    try:
        return optimizer.init(params)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise OptimizerError(
            f"the optimizer cannot be divided among servers: on a part of the parameters its init raises "
            f"{described(error)}; use one server"
        ) from None


def place(cut: Cut, part: Any, whole: np.ndarray, taken: set[str]) -> None:
    """Copy a part to its place in the whole buffer.

    Args:
      cut: cut of the part.
      part: tree of the part, numpy arrays.
      whole: uint8, filled in here.
      taken: paths that are in `whole` already, to which those of the part are added.

    Raises:
      HybridSyncError: a leaf that is there already has other bits in this part: the servers have come apart.
    """
    there = jax.tree.leaves(cut.inside.unpack(whole))
    for spec, leaf, view in zip(cut.layout.leaves, jax.tree.leaves(part), there, strict=True):
        if spec.path not in taken:
            np.copyto(view, leaf)
            taken.add(spec.path)
        elif not np.array_equal(leaf_bytes(view), leaf_bytes(leaf)):
            raise HybridSyncError(
                f"the servers have come apart: leaf {spec.path}, which all of them keep, is {view} on one and {leaf} "
                "on another; run the same command again to resume from the last checkpoint"
            )


def _part(programs: Programs, kept: tuple[int, ...], server: int, wire: str) -> Part:
    state, contribution, primary = programs.state, programs.contribution, server == PRIMARY
    params = prune(state.params, kept)
    part = TrainState(
        params=params,
        # A single server's part is the whole, whose shapes are known.
        opt_state=state.opt_state
        if len(kept) == len(jax.tree.leaves(state.params))
        else jax.eval_shape(lambda: initial_part(programs.optimizer, _zeros(params))),
        model_state=state.model_state if primary else jax.tree.map(lambda _: None, state.model_state),
        protocol_state={name: prune(kept_there, kept) for name, kept_there in state.protocol_state.items()},
        counters=state.counters,
    )
    floats = contribution["floats"]
    offered = {
        "floats": {
            "grads": prune(floats["grads"], kept),
            "loss": floats["loss"] if primary else None,
            "stats": floats["stats"] if primary else jax.tree.map(lambda _: None, floats["stats"]),
            "weight": floats["weight"],
        },
        "ints": contribution["ints"] if primary else jax.tree.map(lambda _: None, contribution["ints"]),
    }
    on_part = programs.on_part(part, offered)
    try:
        return Part(
            server,
            on_part,
            state=Cut.of(programs.state_layout, part),
            contribution=Cut.of(
                Layout.of(narrowed_contribution(contribution, wire)), narrowed_contribution(offered, wire)
            ),
            parameters=Cut.of(
                Layout.of(narrowed_parameters(programs.parameters, wire)),
                narrowed_parameters(on_part.parameters, wire),
            ),
            opt_state=Cut.of(programs.opt_state_layout, part.opt_state),
        )
    except SchemaMismatch as error:
        raise OptimizerError(f"the optimizer cannot be divided among servers: {error}; use one server") from None


def _zeros(tree: Any) -> Any:
    return jax.tree.map(lambda a: jax.numpy.zeros(a.shape, a.dtype), tree)
