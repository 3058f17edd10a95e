"""The collective of the process runtime: contributions travel as one flat buffer over a mesh of the world."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridsync.collectives.mesh.flat_sum import MeshMean
from hybridsync.collectives.mesh.process_group import CollectiveBroken, World
from hybridsync.core.errors import PhaseRevoked
from hybridsync.training.buffer_layout import Layout

REASON_BYTES = 256
"""What is told of a reason for which a unit is dropped."""


class FlatContributions:
    """How a contribution lies in one buffer: all floats first, then all integers.

    Args:
      layout: of the contribution; its leaves are float32 and int32 only.
    """

    def __init__(self, layout: Layout) -> None:
        floats = [leaf for leaf in layout.leaves if leaf.dtype == np.float32]
        ints = [leaf for leaf in layout.leaves if leaf.dtype == np.int32]
        assert layout.leaves == tuple(floats + ints), "a contribution has its floats before its integers"
        self.layout = layout
        self.float_bytes = ints[0].offset if ints else layout.nbytes
        self.buffer = layout.empty()

    @property
    def num_floats(self) -> int:
        """Length of the float buffer, padding included."""
        return self.float_bytes // 4

    @property
    def num_ints(self) -> int:
        """Length of the integer buffer, padding included."""
        return (self.layout.nbytes - self.float_bytes) // 4

    def split(self, contribution: Any) -> tuple[np.ndarray, np.ndarray]:
        """Pack a contribution; returns its float32 and int32 parts, views of the one buffer."""
        self.layout.pack(contribution, out=self.buffer)
        return self.buffer[: self.float_bytes].view(np.float32), self.buffer[self.float_bytes :].view(np.int32)

    def join(self, floats: np.ndarray, ints: np.ndarray) -> Any:
        """Return the tree of a total's two parts."""
        if not ints.size:
            return self.layout.unpack(floats.view(np.uint8))
        whole = self.layout.empty()
        whole[: self.float_bytes] = floats.view(np.uint8)
        whole[self.float_bytes :] = ints.view(np.uint8)
        return self.layout.unpack(whole)


class MeshCollective:
    """Totals over the members of one phase (see `paths.collective.Collective`).

    Args:
      world: whose mesh it is.
      mesh: of the phase.
      flat: the run's packing, shared by all phases.
    """

    def __init__(self, world: World, mesh: MeshMean, flat: FlatContributions) -> None:
        self._world, self._mesh, self._flat = world, mesh, flat

    def enter(self) -> None:
        """Meet the others and prove the sum on known integers.

        Raises:
          PhaseRevoked: a member is gone, or the phase was revoked meanwhile.
          WaitTimeout: a member did not come.
        """
        try:
            self._mesh.warm(self._flat.num_floats, self._flat.num_ints)
        except CollectiveBroken as broken:
            raise PhaseRevoked(str(broken)) from broken

    def break_off(self, reason: str) -> None:
        """Make the call that another thread is blocked in raise; called by the control thread."""
        self._world.break_collective(self._mesh, reason)

    def total(self, index: int, contribution: Any) -> Any:
        """Deliver a contribution; returns the total of all members.

        Raises:
          PhaseRevoked: a member is gone.
        """
        try:
            floats, ints = self._mesh(*self._flat.split(contribution))
        except CollectiveBroken as broken:
            raise PhaseRevoked(str(broken)) from broken
        return self._flat.join(floats, ints)

    def reasons(self, index: int, reasons: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """Tell why contributions are missing (see `Collective.reasons`).

        Each member fills its own rows with the bytes of its reasons, at most REASON_BYTES of each, and the sum of all
        rows is everybody's.

        Raises:
          PhaseRevoked: a member is gone.
        """
        rows = np.zeros((len(self._mesh.members), len(reasons), REASON_BYTES), np.float32)
        for row, reason in zip(rows[index], reasons, strict=True):
            text = reason.encode()[:REASON_BYTES]
            row[: len(text)] = np.frombuffer(text, np.uint8)
        try:
            total, _ = self._mesh(rows.reshape(-1), np.empty(0, np.int32))
        except CollectiveBroken as broken:
            raise PhaseRevoked(str(broken)) from broken
        texts = total.reshape(rows.shape).astype(np.uint8)
        return tuple(tuple(row.tobytes().rstrip(b"\0").decode(errors="replace") for row in member) for member in texts)
