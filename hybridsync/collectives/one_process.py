"""Lock-step sums over the devices of several workers of one process: jitted, over the mesh that joins them.

Each worker's gradient is a program of its own on its own devices, so that compute times, losses, dropped units and
shares of a step are what they are elsewhere. The last thread to come joins their leaves without a copy and runs one
program, the sum over the axis of the workers; the update follows on the same mesh. What has no dimension to be joined
along, the loss and the weight above all, is summed on the host, in the members' order.

On CPU devices, one for each worker, a sum has the bits of the ordered sum of `threads`, but for zeros: a sum of
negative zeros is 0, which no optimizer sees.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from hybridsync.collectives.backend import Collectives, CommunicatorPhase
from hybridsync.collectives.threads import ThreadCollectives, ThreadCommunicator
from hybridsync.devices.mesh import XLA
from hybridsync.devices.placement import JOINT, DevicePlacement
from hybridsync.devices.staging import host_numbers
from hybridsync.training.compiled_programs import Programs

T = TypeVar("T")


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
        leaves, self._structure = jax.tree.flatten(programs.contribution)
        self._is_number = [not leaf.ndim for leaf in leaves]
        arrays = [leaf for leaf in leaves if leaf.ndim]
        totals = self._arrays(self._placement.shardings(programs.contribution, JOINT))
        self._side_by_side = self._arrays(self._placement.side_by_side(programs.contribution))
        self._sum = jax.jit(functools.partial(_summed, arrays), out_shardings=totals)
        self._absent: dict[int, list[jax.Array]] = {}

    def prepare(self, *, sums: bool, groups: bool) -> None:
        """Do nothing: the first sum compiles the program."""

    def communicator(self, phase: CommunicatorPhase) -> ThreadCommunicator:
        """Return a fresh communicator of the phase's members."""
        return ThreadCommunicator(
            phase.members, functools.partial(self._total, phase.members), placement=self._placement
        )

    def _total(self, members: tuple[int, ...], contributions: tuple) -> Any:
        brought = dict(zip(members, map(self._at_seat, members, contributions), strict=True))
        seats = range(self._placement.num_seats)
        columns = [self._arrays(brought[seat]) if seat in brought else self._neutral(seat) for seat in seats]
        arrays = self._sum(self._placement.joined(columns, self._side_by_side))
        numbers = zip(*(host_numbers(self._numbers(leaves)) for leaves in brought.values()), strict=True)
        # Two programs over all devices at a time may wait for each other for ever: each has some of the threads that
        # both need. So none is begun before the last one's end.
        found = iter(jax.block_until_ready(arrays)), map(_number, numbers)
        return self._structure.unflatten(next(found[is_number]) for is_number in self._is_number)

    def _at_seat(self, seat: int, contribution: Any) -> list[jax.Array]:
        return jax.tree.leaves(self._placement.at_worker(contribution, seat))

    def _arrays(self, leaves: Sequence[T]) -> list[T]:
        return [leaf for leaf, is_number in zip(leaves, self._is_number, strict=True) if not is_number]

    def _numbers(self, leaves: Sequence[T]) -> list[T]:
        return [leaf for leaf, is_number in zip(leaves, self._is_number, strict=True) if is_number]

    def _neutral(self, seat: int) -> list[jax.Array]:
        if seat not in self._absent:
            self._absent[seat] = self._arrays(self._at_seat(seat, jax.tree.map(_nothing, self._contribution)))
        return self._absent[seat]


def _number(brought: Sequence[np.generic]) -> np.generic:
    """Return the ordered sum of numbers; of integers the maximum."""
    add = np.add if brought[0].dtype == np.float32 else np.maximum
    return functools.reduce(add, brought)


def _nothing(leaf: Any) -> np.ndarray:
    return np.full(leaf.shape, 0.0 if leaf.dtype == np.float32 else np.iinfo(leaf.dtype).min, leaf.dtype)


def _summed(shapes: list[Any], joined: list[jax.Array]) -> list[jax.Array]:
    """Return the sum of what lies side by side along the first dimension; of integers the maximum."""
    parts = [leaf.reshape(-1, *shape.shape) for leaf, shape in zip(joined, shapes, strict=True)]
    return [part.sum(0) if part.dtype == np.float32 else part.max(0) for part in parts]
