"""How a group's members average: each brings its part, everybody goes away with the mean."""

from __future__ import annotations

import threading
from typing import Protocol

from hybridsync.collectives.thread_sum import Rendezvous
from hybridsync.core.errors import PhaseRevoked
from hybridsync.interfaces.messages import GroupReply
from hybridsync.training.averaging import Part, mean


class Mixer(Protocol):
    """Averages over the groups of one phase."""

    def mean(self, reply: GroupReply, worker: int, part: Part) -> Part:
        """Bring the part of `worker`; returns the average of the group's members.

        Raises:
          PhaseRevoked: a member is gone, or the phase was broken off.
          WaitTimeout: a member did not come in time.
        """
        ...

    def break_off(self, reason: str) -> None:
        """Make every call under way, in any thread, and every later one raise PhaseRevoked."""
        ...


class ThreadMixer:
    """Averages among threads of one process: the last to arrive computes it for all.

    The lock guards the groups under way.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[int, Rendezvous] = {}
        self._broken = ""

    def mean(self, reply: GroupReply, worker: int, part: Part) -> Part:
        """Bring a part (see `Mixer.mean`)."""
        with self._lock:
            if self._broken:
                raise PhaseRevoked(self._broken)
            group = self._groups.setdefault(reply.sequence, Rendezvous(reply.members, mean))
        average: Part = group.total(reply.members.index(worker), part)
        with self._lock:
            self._groups.pop(reply.sequence, None)
        return average

    def break_off(self, reason: str) -> None:
        """End every group (see `Mixer.break_off`)."""
        with self._lock:
            self._broken = self._broken or reason
            groups = [*self._groups.values()]
        for group in groups:
            group.break_off(reason)
