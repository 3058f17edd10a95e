"""Lock-step sums over the devices of several workers of one process: jitted, over the mesh that joins them.

Each worker's gradient is a program of its own on its own devices, so that compute times, losses, dropped units and
shares of a step are what they are elsewhere. The last thread to come joins their leaves without a copy and runs one
program, the sum over the axis of the workers; the update follows on the same mesh.

On CPU devices, one for each worker, a sum has the bits of the ordered sum of `threads`, but for zeros: a sum of
negative zeros is 0, which no optimizer sees.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from hybridsync.collectives.backend import Collectives, CommunicatorPhase
from hybridsync.collectives.threads import ThreadCollectives, ThreadCommunicator
from hybridsync.devices.mesh import XLA
from hybridsync.devices.placement import JOINT, DevicePlacement
from hybridsync.training.compiled_programs import Programs


def collectives_of(programs: Programs) -> Collectives:
    """Return the collectives among threads of the kind that the workers' placement has."""
    return JointCollectives(programs) if programs.placement.kind == XLA else ThreadCollectives(programs)


class JointCollectives:
    """Makes communicators that sum over the joint mesh (see `Collectives`).

    For each absent worker neutral numbers lie on its devices: members may leave and come back, and nothing is compiled.

    Args:
      programs: the run's compiled programs; each worker has a seat of its own.
    """

    def __init__(self, programs: Programs) -> None:
        assert isinstance(programs.placement, DevicePlacement), "each worker has devices of its own"
        self._placement, self._contribution = programs.placement, programs.contribution
        self._lift = self._placement.jit(_lifted)
        shapes = jax.tree.leaves(programs.contribution)
        totals = self._placement.shardings(programs.contribution, JOINT)
        self._side_by_side = self._placement.side_by_side(programs.contribution)
        self._sum = jax.jit(functools.partial(_summed, shapes), out_shardings=totals)
        self._absent: dict[int, list[jax.Array]] = {}

    def prepare(self, *, sums: bool, groups: bool) -> None:
        """Do nothing: the first sum compiles the program."""

    def rest(self) -> None:
        """Do nothing: a sum keeps no memory."""

    def communicator(self, phase: CommunicatorPhase) -> ThreadCommunicator:
        """Return a fresh communicator of the phase's members."""
        return ThreadCommunicator(
            phase.members, functools.partial(self._total, phase.members), placement=self._placement
        )

    def _total(self, members: tuple[int, ...], contributions: tuple) -> Any:
        brought = dict(zip(members, contributions, strict=True))
        seats = range(self._placement.num_seats)
        columns = [self._column(seat, brought[seat]) if seat in brought else self._neutral(seat) for seat in seats]
        total = self._sum(self._placement.joined(columns, self._side_by_side))
        return jax.tree.structure(self._contribution).unflatten(total)

    def _column(self, seat: int, contribution: Any) -> list[jax.Array]:
        """Return a contribution's leaves at its seat, each with one dimension at least."""
        leaves = jax.tree.leaves(self._placement.at_worker(contribution, seat))
        scalars = iter(self._lift([leaf for leaf in leaves if not leaf.ndim]))
        return [leaf if leaf.ndim else next(scalars) for leaf in leaves]

    def _neutral(self, seat: int) -> list[jax.Array]:
        if seat not in self._absent:
            self._absent[seat] = self._column(seat, jax.tree.map(_nothing, self._contribution))
        return self._absent[seat]


def _nothing(leaf: Any) -> np.ndarray:
    return np.full(leaf.shape, 0.0 if leaf.dtype == np.float32 else np.iinfo(leaf.dtype).min, leaf.dtype)


def _lifted(scalars: list[jax.Array]) -> list[jax.Array]:
    return [scalar[None] for scalar in scalars]


def _summed(shapes: list[Any], joined: list[jax.Array]) -> list[jax.Array]:
    """Return the sum of what lies side by side along the first dimension; of integers the maximum."""
    parts = [leaf.reshape(-1, *shape.shape) for leaf, shape in zip(joined, shapes, strict=True)]
    return [part.sum(0) if part.dtype == np.float32 else part.max(0) for part in parts]
