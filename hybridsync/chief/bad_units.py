"""Units that do harm: those that end processes, and those whose contribution is not finite. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hybridsync.core.errors import EXIT_FAILED, Diverged
from hybridsync.core.units import Range
from hybridsync.interfaces.messages import NON_FINITE, Process, RoleEvent

BY_ITSELF = 2
OF_ANY_KIND = 3
MAX_QUARANTINED = 10
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
    """Counts processes by the unit that they ended on.

    A process that ends by itself while it computes a unit (an exception, SIGSEGV, SIGABRT) makes the unit a suspect;
    the second one quarantines it. A unit whose process is killed (for want of memory, say), or asked to end, may be
    innocent: it takes three ends of any kind. A process that the run itself has ended (its supervisor then names no
    unit), or that has given itself up as one that makes no progress, proves nothing: no unit is left out because of
    time alone.

    >>> suspects = PoisonUnits()
    >>> suspects.record(RoleEvent("worker", 1, 4711, "exit 1", 0.0, unit=17))
    >>> found = suspects.record(RoleEvent("worker", 0, 4712, "signal SIGSEGV", 1.0, unit=17))
    >>> found.unit, found.workers
    (17, (1, 0))
    >>> found.reason
    'worker 1 ended on it with exit 1, worker 0 with signal SIGSEGV'
    """

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
        return self._in_a_row > MAX_QUARANTINED

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


MAX_OF_ONE_WORKER = 4


@dataclass(frozen=True)
class Found:
    """A worker of which too many units in a row were not finite, why, and whether a new process did it again."""

    worker: int
    reason: str
    again: bool


@dataclass
class _Row:
    """Units of one worker that were not finite, one after another, and what others applied meanwhile."""

    own: int = 0
    others: int = 0


class Unfit:
    """Finds workers whose contributions are not finite while those of the others are: a broken device, say.

    One unit that is not finite is the unit's fault. A worker that has several in a row, while others apply theirs, is
    started again, and its units go to others: if the units are at fault, the others will report the same. A worker that
    does the same again before one of its units is applied is unfit.

    >>> unfit = Unfit(limit=2)
    >>> unfit.record({0: 1}, [(1, "non_finite: leaf w")]), unfit.record({0: 1}, [(1, "non_finite: leaf w")])
    ([], [Found(worker=1, reason='2 of its units in a row were not finite while others applied 2', again=False)])
    >>> unfit.record({0: 2}, [(1, "non_finite")] * 2)[0].again
    True

    Args:
      limit: units in a row that are one too many, and how many others have to apply meanwhile.
    """

    def __init__(self, limit: int = MAX_OF_ONE_WORKER) -> None:
        self._limit = limit
        self._rows: dict[int, _Row] = {}
        self._struck: set[int] = set()

    @property
    def watches(self) -> bool:
        """Return whether it matters who applied a unit: nobody is under suspicion most of the time."""
        return bool(self._rows or self._struck)

    def record(self, applied: Mapping[int, int], dropped: Iterable[tuple[int, str]]) -> list[Found]:
        """Take what was reported in one go; returns the workers of which it was too much.

        Args:
          applied: worker -> how many of its units.
          dropped: unit -> the worker that had it, and the reason of its drop.
        """
        for worker, reason in dropped:
            if reason.startswith(NON_FINITE):
                self._rows.setdefault(worker, _Row()).own += 1
        for worker, count in applied.items():
            if count:
                self._rows.pop(worker, None)
                self._struck.discard(worker)
            for other, row in self._rows.items():
                row.others += count if other != worker else 0
        found = []
        for worker, row in list(self._rows.items()):
            if min(row.own, row.others) >= self._limit:
                del self._rows[worker]
                reason = f"{row.own} of its units in a row were not finite while others applied {row.others}"
                found.append(Found(worker, reason, worker in self._struck))
                self._struck.add(worker)
        return found


MAX_NOT_FINITE = 10
DIVERGED = "training has diverged"
"""The error of such a run, and the one in its summary, begin with these words."""


class Divergence:
    """Counts units that were dropped because their contribution was not finite, since the last unit applied.

    >>> divergence = Divergence()
    >>> bad = [(unit, "non_finite: leaf w, first index [0]") for unit in range(10)]
    >>> divergence.record(applied=(), dropped=bad), divergence.record(applied=((10, 11),), dropped=())
    (None, None)
    >>> divergence.record(applied=(), dropped=bad), type(divergence.record(applied=(), dropped=bad[:1])).__name__
    (None, 'Diverged')
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def record(self, applied: Sequence[Range], dropped: Iterable[tuple[int, str]], held: int = 0) -> Diverged | None:
        """Take what was reported in one go; returns the error to end the run with, if it has come to that.

        Args:
          applied: ranges of units that were applied.
          dropped: units, with the reasons.
          held: maximum number of finite contributions that a server may keep before it applies them.
        """
        reasons = [(unit, reason) for unit, reason in dropped if reason.startswith(NON_FINITE)]
        if applied:
            self._in_a_row = 0
            return None
        self._in_a_row += len(reasons)
        if not reasons or self._in_a_row <= MAX_NOT_FINITE + held:
            return None
        unit, reason = reasons[-1]
        return Diverged(
            f"{DIVERGED}: the contributions of {self._in_a_row} units in a row were not finite, more than "
            f"{MAX_NOT_FINITE + held}, and no unit was applied between them; the last was unit {unit}, {reason}. Lower "
            "the learning rate, limit the gradient with clip=, or look at the loss at that unit; the last "
            "checkpoint is finite"
        )
