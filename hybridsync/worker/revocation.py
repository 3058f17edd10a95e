"""Lets a control thread break off the phase in which a training thread is."""

from __future__ import annotations

import threading

from hybridsync.collectives.backend import Communicator
from hybridsync.core.errors import PhaseRevoked
from hybridsync.core.plan import NO_PHASE, PhaseId


class Revocation:
    """Revokes the phases of one worker, one after another; its methods are called from two threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phase_id = NO_PHASE
        self._waits_in: Communicator | None = None
        self._reason = ""

    def begin(self, phase_id: PhaseId) -> None:
        """Follow `phase_id`, which is under way from now on."""
        with self._lock:
            self._phase_id, self._waits_in, self._reason = phase_id, None, ""

    def revoke(self, phase_id: PhaseId, reason: str) -> None:
        """Break off what is under way, if it is `phase_id`."""
        with self._lock:
            if phase_id != self._phase_id:
                return
            self._reason, waits_in = reason, self._waits_in
        if waits_in is not None:
            waits_in.break_off(reason)

    def attach(self, waits_in: Communicator) -> Communicator:
        """Make `waits_in` what a revocation breaks off, and return it.

        Raises:
          PhaseRevoked: the revocation came first.
        """
        with self._lock:
            self._waits_in = waits_in
        self.check()
        return waits_in

    def check(self) -> None:
        """Go on only while the phase is not revoked.

        Raises:
          PhaseRevoked: the phase is revoked.
        """
        with self._lock:
            if self._reason:
                raise PhaseRevoked(self._reason)
