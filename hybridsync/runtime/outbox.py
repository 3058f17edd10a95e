"""What a supervisor has to tell the chief: in order, and again to the next chief where only memory held it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hybridsync.clock import SYSTEM_CLOCK
from hybridsync.errors import HybridSyncError
from hybridsync.messages import RoleEvent
from hybridsync.ports import SupervisorPort

RETRY_SECS = 1.0


class Outbox:
    """Keeps what the chief has not heard, and delivers it when there is one.

    Args:
      connect: makes the way to the chief from its address; every call on it has a deadline.
    """

    def __init__(self, connect: Callable[[str], SupervisorPort]) -> None:
        self._connect = connect
        self._chief: SupervisorPort | None = None
        self._waiting: deque[tuple[str, RoleEvent | None]] = deque()
        self._lasting: list[RoleEvent] = []
        self._preempts = False
        self._retry_at = 0.0

    def started(self, event: RoleEvent) -> None:
        """Tell of a process that was started."""
        self._waiting.append(("role_started", event))

    def lost(self, event: RoleEvent) -> None:
        """Tell of a process that ended, and tell each later chief what it cannot find on disk: its unit, its end."""
        self._waiting.append(("role_lost", event))
        if event.unit >= 0 or event.quarantined:
            self._lasting.append(event)

    def preempt(self) -> None:
        """Ask the chief to save and leave, before anything else is told."""
        self._preempts = True
        self._waiting.appendleft(("preempt", None))

    def repeat(self) -> None:
        """Tell another chief again what only the memory of the last one held."""
        self._waiting.extend(("role_lost", event) for event in self._lasting)

    def repeat_preemption(self) -> None:
        """Ask another chief to save and leave, if the last one was asked."""
        if self._preempts and ("preempt", None) not in self._waiting:
            self._waiting.append(("preempt", None))

    def deliver(self, address: str) -> None:
        """Hand over what waits, in order; what the chief does not take is tried again a second later."""
        if SYSTEM_CLOCK.monotonic() < self._retry_at:
            return
        try:
            if self._chief is None:
                self._chief = self._connect(address)
            while self._waiting:
                kind, event = self._waiting[0]
                if event is None:
                    self._chief.preempt()
                elif kind == "role_lost":
                    self._chief.role_lost(event)
                else:
                    self._chief.role_started(event)
                self._waiting.popleft()
        except HybridSyncError:  # the chief is slow, or its end is the next thing to be seen
            self._retry_at = SYSTEM_CLOCK.monotonic() + RETRY_SECS
