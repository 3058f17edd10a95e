"""Workers whose contributions are not finite while those of the others are: a broken device, say. Pure.

One unit that is not finite is the unit's fault. A worker that has several in a row, while others apply theirs, is
started again, and its units go to others: if the units are at fault, the others will report the same. A worker that
does the same again before one of its units is applied is unfit.

    >>> unfit = Unfit(limit=2)
    >>> unfit.record({0: 1}, [(1, "non_finite: leaf w")]), unfit.record({0: 1}, [(1, "non_finite: leaf w")])
    ([], [Found(worker=1, reason='2 of its units in a row were not finite while others applied 2', again=False)])
    >>> unfit.record({0: 2}, [(1, "non_finite")] * 2)[0].again
    True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hybridsync.interfaces.messages import NON_FINITE

MAX_IN_A_ROW = 4


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
    """Counts, worker by worker.

    Args:
      limit: units in a row that are one too many, and how many others have to apply meanwhile.
    """

    def __init__(self, limit: int = MAX_IN_A_ROW) -> None:
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
