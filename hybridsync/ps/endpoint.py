"""The primary behind its gRPC service: contribution buffers in, packed parameters out."""

from __future__ import annotations

import numpy as np

from hybridsync.layout import Layout
from hybridsync.messages import Capture, Held, Push, PushReply
from hybridsync.plan import Epoch, Phase
from hybridsync.ports import Served
from hybridsync.ps.primary import Primary


class Endpoint:
    """A `ServerPort` and `ParameterPort` over a primary whose publisher lends packed snapshots.

    Args:
      primary: decides and updates.
      contribution_layout: of the buffers that workers push.
    """

    def __init__(self, primary: Primary, contribution_layout: Layout) -> None:
        self._primary, self._layout = primary, contribution_layout

    def enter(self, phase: Phase) -> Held:
        """See `Primary.enter`."""
        return self._primary.enter(phase)

    def capture(self, epoch: Epoch, final: bool) -> Capture:
        """See `Primary.capture`."""
        return self._primary.capture(epoch, final)

    def read(self, capture_id: int, into: np.ndarray) -> None:
        """See `Holding.read`."""
        self._primary.read(capture_id, into)

    def lend(self, capture_id: int) -> Served:
        """See `Holding.lend`."""
        return self._primary.lend(capture_id)

    def fence(self, epoch: Epoch, worker: int, incarnation: int) -> None:
        """See `Primary.fence`."""
        self._primary.fence(epoch, worker, incarnation)

    def pull(self, push: Push) -> tuple[PushReply, Served]:
        """See `Primary.pull`."""
        return self._primary.pull(push)

    def push_pull(self, push: Push, contribution: np.ndarray) -> tuple[PushReply, Served]:
        """See `Primary.push_pull`; the update reads `contribution` where it lies, until the call returns.

        Views go straight into the jitted update: on CPU it aliases them, where a `device_put` of each leaf would cost
        more than a small update does.
        """
        return self._primary.push_pull(push, self._layout.unpack(contribution))
