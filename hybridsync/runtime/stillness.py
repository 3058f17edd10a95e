"""Tells a process that stands still from one that is not looked at."""

from __future__ import annotations

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
