"""Units that end the processes that compute them. Pure.

A process that ends by itself while it computes a unit (an exception, SIGSEGV, SIGABRT) makes the unit a suspect; the
second one quarantines it. A unit whose process is killed (for want of memory, say), or asked to end, may be innocent:
it takes three ends of any kind. A process that the run itself has ended (its supervisor then names no unit), or that
has given itself up as one that makes no progress, proves nothing: no unit is left out because of time alone.

    >>> suspects = PoisonUnits()
    >>> suspects.record(RoleEvent("worker", 1, 4711, "exit 1", 0.0, unit=17))
    >>> found = suspects.record(RoleEvent("worker", 0, 4712, "signal SIGSEGV", 1.0, unit=17))
    >>> found.unit, found.workers
    (17, (1, 0))
    >>> found.reason
    'worker 1 ended on it with exit 1, worker 0 with signal SIGSEGV'
"""

from __future__ import annotations

from dataclasses import dataclass

from hybridsync.core.errors import EXIT_FAILED
from hybridsync.interfaces.messages import Process, RoleEvent

BY_ITSELF = 2
OF_ANY_KIND = 3
MAX_IN_A_ROW = 10
"""How many units may be quarantined without one that is applied: then it is not the units."""
_FROM_OUTSIDE = ("signal SIGKILL", "signal SIGTERM")
"""Prefixes of exit reasons that may come from outside (a signal), not from the unit."""
_NO_PROGRESS = f"exit {EXIT_FAILED}"
"""Prefix of the exit reason of a process that its own watchdog ended, or that lost its chief or its peers."""


def ended_by_itself(event: RoleEvent) -> bool:
    """Return whether a process ended at a unit without help from outside.

    >>> ended_by_itself(RoleEvent("worker", 1, 4711, "exit 1", 0.0, unit=17))
    True
    >>> ended_by_itself(RoleEvent("worker", 1, 4711, "signal SIGKILL", 0.0, unit=17))
    False
    """
    return event.unit >= 0 and not event.reason.startswith((*_FROM_OUTSIDE, _NO_PROGRESS))


@dataclass(frozen=True)
class Quarantined:
    """A unit that is not to be computed any more, the workers that ended on it, in order, and how."""

    unit: int
    workers: tuple[int, ...]
    reason: str


class PoisonUnits:
    """Counts processes by the unit that they ended on."""

    def __init__(self) -> None:
        self._ended: dict[int, dict[Process, RoleEvent]] = {}
        self._in_a_row = self._applied = 0

    def is_hopeless(self, applied: int) -> bool:
        """Note that another unit is quarantined when `applied` units are; tells if too many were with none applied.

        >>> suspects = PoisonUnits()
        >>> [suspects.is_hopeless(5) for _ in range(11)].count(True), suspects.is_hopeless(6)
        (1, False)
        """
        self._in_a_row = self._in_a_row + 1 if applied == self._applied else 1
        self._applied = applied
        return self._in_a_row > MAX_IN_A_ROW

    def record(self, event: RoleEvent) -> Quarantined | None:
        """Take in a worker's end, once for each process; returns the unit it was at where that is one too many."""
        if event.unit < 0 or event.reason.startswith(_NO_PROGRESS):
            return None
        ended = self._ended.setdefault(event.unit, {})
        if len(ended) < OF_ANY_KIND:  # so many quarantine it, whatever ended them
            ended[event.process] = event
        events = list(ended.values())
        by_itself = [each for each in events if ended_by_itself(each)]
        if len(by_itself) < BY_ITSELF and len(events) < OF_ANY_KIND:
            return None
        first, *others = events
        told = [f"worker {first.id} ended on it with {first.reason}"]
        told += [f"worker {other.id} with {other.reason}" for other in others]
        reason = ", ".join(told)
        return Quarantined(event.unit, tuple(each.id for each in events), reason)
