"""Tells whose fault an end or a silence is.

A role that fails again and again by itself is not one that is killed from outside, and a process that stands still is
not one at which nobody looks.
"""

from __future__ import annotations

MAX_FAILURES = 4
"""How often a role fails in a row, by itself, until it is given up."""


class CrashLoop:
    """Tells a role that fails again and again by itself from one that is killed from outside.

    Failures count while they follow each other: a process that lives for longer than the window, its start included,
    begins anew. So a role that needs longer than that to start is never given up. Processes that ended on one unit
    count once: two of them make the unit a suspect, not the role (see `hybridsync.chief.bad_units`).

    >>> loop = CrashLoop(limit=1, window_secs=30.0)
    >>> loop.add("worker 3", lived_secs=40.0), loop.add("worker 3", lived_secs=29.0)
    (False, True)
    >>> loop.add("worker 1", lived_secs=1.0, unit=7), loop.add("worker 1", lived_secs=1.0, unit=7)
    (False, False)

    Args:
      limit: failures of one role that are borne.
      window_secs: the time after which a process counts as a good one.
    """

    def __init__(self, limit: int = MAX_FAILURES - 1, window_secs: float = 30.0) -> None:
        self._limit = limit
        self._window_secs = window_secs
        self._failures: dict[str, list[int]] = {}

    def add(self, name: str, lived_secs: float, unit: int = -1, *, by_itself: bool = True) -> bool:
        """Note the end of a process that lived for so long; returns whether that was one failure too many."""
        if lived_secs > self._window_secs:
            self._failures.pop(name, None)
        if not by_itself:
            return False
        before = self._failures.get(name, [])
        ended_on = {name: units for name, units in self._failures.items() if unit >= 0 and unit in units}
        if ended_on.keys() - {name}:  # it ends any worker that computes it
            for other, units in ended_on.items():
                self._failures[other] = [each for each in units if each != unit]
            return False
        self._failures[name] = before if name in ended_on else [*before, unit]
        return len(self._failures[name]) > self._limit


LONGEST_STEP_SECS = 2.0
"""A longer time between two looks is the looker's own pause: a machine that was suspended stops all its processes."""


class Stillness:
    """Counts for how long what is looked at has not changed, without the time in which nobody looked.

    >>> stillness = Stillness()
    >>> [stillness.look("a", now) for now in (0.0, 1.0, 2.0, 600.0)], stillness.look("b", 601.0)
    ([0.0, 1.0, 2.0, 4.0], 0.0)
    """

    def __init__(self) -> None:
        self._seen: object = None
        self._looked_at = self._secs = 0.0

    def look(self, seen: object, now: float) -> float:
        """Return the seconds for which `seen` has been the same."""
        self._secs = self._secs + min(now - self._looked_at, LONGEST_STEP_SECS) if seen == self._seen else 0.0
        self._seen, self._looked_at = seen, now
        return self._secs
