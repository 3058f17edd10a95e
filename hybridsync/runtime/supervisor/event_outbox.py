"""Delivers a supervisor's events to the chief in order, and repeats to a new chief those that no file keeps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError, InvalidMessage, UnknownRole, printable
from hybridsync.interfaces.messages import MOST_REASON_CHARS, RoleEvent

if TYPE_CHECKING:
    from hybridsync.interfaces.ports import SupervisorPort

RETRY_SECS = 1.0


class Outbox:
    """Keeps what the chief has not heard, and delivers it when there is one.

    Args:
      connect: makes a connection to the chief from its address; every call on it has a deadline.
      say: shows a line to the user.
    """

    def __init__(self, connect: Callable[[str], SupervisorPort], say: Callable[[str], None]) -> None:
        self._connect, self._say = connect, say
        self._chief: SupervisorPort | None = None
        self._waiting: deque[tuple[str, RoleEvent | None]] = deque()
        self._lasting: list[RoleEvent] = []
        self._preempts = False
        self._retry_at = 0.0

    def started(self, event: RoleEvent) -> None:
        """Tell of a process that was started."""
        self._waiting.append(("role_started", _told(event)))

    def report_lost(self, event: RoleEvent) -> None:
        """Tell of a process that ended, and tell each later chief what it cannot find on disk: unit, end, refusal."""
        event = _told(event)
        self._waiting.append(("role_lost", event))
        if event.unit >= 0 or event.quarantined or event.is_refusal:
            self._lasting.append(event)

    def preempt(self) -> None:
        """Ask the chief to save and leave, before anything else is told but the refusals, which its summary names."""
        self._preempts = True
        refusals = (at for at, (_, event) in enumerate(self._waiting, 1) if event is not None and event.is_refusal)
        self._waiting.insert(max(refusals, default=0), ("preempt", None))

    def repeat(self) -> None:
        """Tell another chief again what only the memory of the last one held."""
        self._waiting.extend(("role_lost", event) for event in self._lasting)

    def repeat_preemption(self) -> None:
        """Ask another chief to save and leave, if the last one was asked."""
        if self._preempts and ("preempt", None) not in self._waiting:
            self._waiting.append(("preempt", None))

    def deliver(self, address: str) -> None:
        """Hand over the waiting events, in order; one that the chief does not take is tried again a second later."""
        if SYSTEM_CLOCK.monotonic() < self._retry_at:
            return
        try:
            if self._chief is None:
                self._chief = self._connect(address)
            while self._waiting:
                try:
                    self._hand_over(self._chief, *self._waiting[0])
                except (InvalidMessage, UnknownRole) as error:  # it never becomes right, and others wait for it
                    self._say(f"the chief does not take what became of a process: {error}")
                self._waiting.popleft()
        except HybridSyncError:  # the chief is slow, or its end is the next thing to be seen
            self._retry_at = SYSTEM_CLOCK.monotonic() + RETRY_SECS

    def _hand_over(self, chief: SupervisorPort, kind: str, event: RoleEvent | None) -> None:
        if event is None:
            chief.preempt()
        elif kind == "role_lost":
            chief.role_lost(event)
        else:
            chief.role_started(event)


def _told(event: RoleEvent) -> RoleEvent:
    """Return an event as the chief takes it: a role's last words may be long, and hold line breaks."""
    return replace(event, reason=printable(event.reason)[:MOST_REASON_CHARS])
