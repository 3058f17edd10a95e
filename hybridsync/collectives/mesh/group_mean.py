"""The averages of groups in the process runtime: one flat sum over the devices of a group's members alone."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridsync.collectives.mesh.flat_sum import MeshMean
from hybridsync.collectives.mesh.process_group import CollectiveBroken, World
from hybridsync.collectives.mesh.step_sum import FlatContributions
from hybridsync.core.errors import PhaseRevoked
from hybridsync.interfaces.messages import GroupReply
from hybridsync.training.averaging import Part, part_of
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.state import TrainState

MAX_MESHES = 64
"""Groups whose compiled sums are kept, 3 MB each; one that is formed again later compiles its own anew."""

MAX_AHEAD = 16
"""Groups that are compiled before anybody trains: all of a worker's, of up to five workers."""


class FlatPart:
    """How what a group averages lies in one buffer: all floats as float32 first, then all integers as int32.

    Args:
      part: shapes.
    """

    def __init__(self, part: Part) -> None:
        self._leaves, self._treedef = jax.tree.flatten(part)
        self._lists = jax.jit(self._split)
        self._tree = jax.jit(self._joined)
        self.flat = FlatContributions(Layout.of(jax.eval_shape(self._split, part)))

    def split(self, part: Part) -> tuple[np.ndarray, np.ndarray]:
        """Pack a part; returns its float32 and int32 numbers, views of one buffer."""
        return self.flat.split(jax.device_get(self._lists(part)))

    def join(self, floats: np.ndarray, ints: np.ndarray) -> Part:
        """Return the part of a sum's two buffers, on the default device, in memory of its own."""
        return jax.tree.map(jnp.array, self._tree(self.flat.join(floats, ints)))

    def _split(self, part: Part) -> dict[str, Any]:
        leaves = jax.tree.leaves(part)
        return {
            "floats": [leaf.astype(jnp.float32) for leaf in leaves if _is_float(leaf)],
            "ints": [leaf.astype(jnp.int32) for leaf in leaves if not _is_float(leaf)],
        }

    def _joined(self, lists: dict[str, Any]) -> Part:
        floats, ints = iter(lists["floats"]), iter(lists["ints"])
        leaves = [next(floats if _is_float(leaf) else ints).astype(leaf.dtype) for leaf in self._leaves]
        return jax.tree.unflatten(self._treedef, leaves)


class FlatParts:
    """Both kinds of parts of one run's state: without the optimizer's state and with it."""

    def __init__(self, state: TrainState) -> None:
        self._kinds = {optimizer: FlatPart(part_of(state, optimizer=optimizer)) for optimizer in (False, True)}

    def __getitem__(self, optimizer: bool) -> FlatPart:
        return self._kinds[optimizer]


def compile_groups(world: World, flats: FlatParts, state: TrainState) -> None:
    """Compile what the groups of a run's first lane will run, where the workers are few enough for all of them.

    Args:
      world: of the workers.
      flats: the run's packing.
      state: shapes.
    """
    zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), state)
    for optimizer in (False, True):
        flats[optimizer].join(*flats[optimizer].split(part_of(zeros, optimizer=optimizer)))
    others = [worker for worker in world.slots if worker != world.process_index]
    if 2 ** len(others) > MAX_AHEAD:
        return
    for size in range(1, len(others) + 1):
        for chosen in itertools.combinations(others, size):
            mesh = world.mesh(sorted((world.process_index, *chosen)), 0)
            for optimizer in (False, True)[: 1 + (size == len(others))]:
                mesh.compile(flats[optimizer].flat.num_floats, flats[optimizer].flat.num_ints)


class MeshMixer:
    """Averages over the groups of one phase (see `paths.mixer.Mixer`).

    The lock guards the mesh that is in use, which the control thread breaks. A group's mesh takes the devices that
    its members have in the phase's lane; one that lost a member is never entered again, because the next phase has
    another lane.

    Args:
      world: of the workers.
      lane: of the phase whose groups average.
      flats: the run's packing, shared by all phases.
    """

    def __init__(self, world: World, lane: int, flats: FlatParts) -> None:
        self._world, self._lane, self._flats = world, lane, flats
        self._lock = threading.Lock()
        self._met: set[tuple[int, ...]] = set()
        self._compiled: OrderedDict[tuple[int, ...], MeshMean] = OrderedDict()
        self._current: MeshMean | None = None
        self._broken = ""

    def mean(self, reply: GroupReply, worker: int, part: Part) -> Part:
        """Bring a part; returns the average of the group (see `Mixer.mean`)."""
        kind = self._flats[reply.optimizer]
        floats, ints = kind.split(part)
        try:
            total, highest = self._enter(reply.members, kind)(floats, ints)
        except CollectiveBroken as broken:
            raise PhaseRevoked(str(broken)) from broken
        finally:
            with self._lock:
                self._current = None
        return kind.join(total / np.float32(len(reply.members)), highest)

    def break_off(self, reason: str) -> None:
        """End the average under way; called by the control thread (see `Mixer.break_off`)."""
        with self._lock:
            self._broken = self._broken or reason
            mesh = self._current
        if mesh is not None:
            self._world.break_collective(mesh, reason)

    def _enter(self, members: tuple[int, ...], kind: FlatPart) -> MeshMean:
        """Return the members' mesh, connected: the first time they meet, and prove the sum on known integers."""
        mesh = self._world.mesh(members, self._lane)
        with self._lock:
            if self._broken:
                raise PhaseRevoked(self._broken)
            self._current = mesh
        if members not in self._met:  # which all of them find alike; what is compiled is each one's own affair
            mesh.warm(kind.flat.num_floats, kind.flat.num_ints)
            self._met.add(members)
        self._compiled[members] = mesh
        self._compiled.move_to_end(members)
        if len(self._compiled) > MAX_MESHES:
            _, oldest = self._compiled.popitem(last=False)
            oldest.release()
        return mesh


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
