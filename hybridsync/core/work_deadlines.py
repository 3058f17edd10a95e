"""Pieces of work with a limit each, and which of them is overdue. Pure; `runtime/role/watchdog.py` acts on it.

A thread declares what it does as pieces that nest. Only a thread's innermost piece is judged: the clock of the outer
ones stands still meanwhile, and starts anew when the inner one ends, because that end is progress. A wait for others is
a piece as well. Its limit is the wait's own deadline and SLACK_SECS, so that its own error comes first, or `UNLIMITED`
where another role judges the wait: the chief watches over lock-step steps.

    >>> judge = Judge(floor_secs=30.0, tick_secs=1.0, now=0.0)
    >>> unit = Piece("unit 17", limit_secs=2.0, started=0.0)
    >>> for now in range(1, 30):
    ...     assert not judge.overdue(now, [(1, unit)])
    >>> judge.overdue(31.0, [(1, unit)])
    [Overdue(thread=1, name='unit 17', secs=31.0, limit_secs=30.0)]
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from hybridsync.core.deadlines import MEMBERS_SECS

COMPILE_SECS = 600.0
"""Limit of what may compile, and of a worker's first unit in a phase."""
TIMES = 10.0
"""How many times as long as the slowest of its recent units a worker's next unit may take."""
RECENT = 8
"""How many units are recent."""
SLACK_SECS = 60.0
"""How much later than its own deadline a wait is overdue."""
LOOP_SECS = 1200.0
"""Limit of what a chief's main thread does between two declared pieces: twice the longest deadline of a wait there."""
TRAINING_SECS = 2 * MEMBERS_SECS
"""The same of a worker's training thread."""
UNLIMITED = math.inf
LATE_TICKS = 3.0
"""A watchdog that looks again only after so many ticks was stopped, and its process with it."""


class Piece:
    """One piece of work of one thread.

    Attributes:
      name: name for the log.
      limit_secs: longest time without progress, in seconds.
      started: monotonic seconds of its start, or of its last progress.
    """

    __slots__ = ("limit_secs", "name", "started")

    def __init__(self, name: str, limit_secs: float, started: float) -> None:
        self.name, self.limit_secs, self.started = name, limit_secs, started


class Overdue(NamedTuple):
    """A piece that is past its limit, and the identifier of its thread."""

    thread: int
    name: str
    secs: float
    limit_secs: float

    def __str__(self) -> str:
        return f"{self.name} has made no progress for {self.secs:.1f} s, and its limit is {self.limit_secs:g} s"


class Judge:
    """Decides what is overdue, each time the watchdog looks.

    A process that was stopped (SIGSTOP, a suspended laptop) did nothing meanwhile. The watchdog was stopped with it,
    and looks too late: all pieces are counted anew from then on.

    Args:
      floor_secs: no limit is shorter.
      tick_secs: between two looks.
      now: monotonic seconds.
    """

    def __init__(self, floor_secs: float, tick_secs: float, now: float) -> None:
        self._floor_secs, self._late_secs = floor_secs, LATE_TICKS * tick_secs
        self._looked = self._since = now

    def overdue(self, now: float, pieces: Iterable[tuple[int, Piece]]) -> list[Overdue]:
        """Return the pieces that are past their limits.

        Args:
          now: monotonic seconds.
          pieces: the innermost piece of each thread, with the thread's identifier.
        """
        if now - self._looked > self._late_secs:
            self._since = now
        self._looked = now
        found = []
        for thread, piece in pieces:
            secs, limit = now - max(piece.started, self._since), max(self._floor_secs, piece.limit_secs)
            if secs > limit:
                found.append(Overdue(thread, piece.name, secs, limit))
        return found


class UnitLimit:
    """Limits the time of a worker's next unit, by its own recent ones.

    >>> limit = UnitLimit()
    >>> limit.secs
    600.0
    >>> limit.record(0.5); limit.record(7.0); limit.record(6.0); limit.secs
    70.0

    Args:
      least_secs: shortest limit.
      first_secs: limit of the first unit, whose program may be compiled.
    """

    def __init__(self, least_secs: float = 0.0, first_secs: float = COMPILE_SECS) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._least_secs, self.secs = least_secs, first_secs

    def record(self, secs: float) -> None:
        """Take in what a unit took."""
        self._recent.append(secs)
        self.secs = max(self._least_secs, TIMES * max(self._recent))


class WatchedUnits:
    """Declares one unit of a worker after another; each has a limit by its recent ones in the same phase.

    Args:
      watching: watches the pieces.
      limit: limit of the next unit.
    """

    def __init__(self, watching: Watching, limit: UnitLimit) -> None:
        self._watching, self._limit = watching, limit
        self._piece: Piece

    def begin(self, unit: int) -> None:
        """Begin to compute a unit."""
        self._piece = self._watching.begin(f"unit {unit}", self._limit.secs)

    def emulate(self) -> None:
        """Let the emulated device go on, which is slow on purpose and never hangs."""
        self._watching.end(self._piece)
        self._piece = self._watching.begin("an emulated device", UNLIMITED)

    def end(self, secs: float) -> None:
        """End a unit, which has taken `secs`."""
        self._watching.end(self._piece)
        self._limit.record(secs)


class UnwatchedUnits(WatchedUnits):
    """Declares nothing, and knows no limit."""

    def __init__(self) -> None: ...

    def begin(self, unit: int) -> None: ...

    def emulate(self) -> None: ...

    def end(self, secs: float) -> None: ...


class Watching:
    """Lets the threads of a process declare what they do; this one watches nothing: the process is the user's own."""

    _PIECE = Piece("", UNLIMITED, 0.0)
    _CONTEXT = nullcontext()
    _UNITS = UnwatchedUnits()

    def begin(self, name: str, limit_secs: float) -> Piece:
        """Begin a piece, inside those that this thread has begun; to be ended by the same thread."""
        return self._PIECE

    def end(self, piece: Piece) -> None:
        """End a piece, and what an error left open inside it."""

    def work(self, name: str, limit_secs: float) -> AbstractContextManager[object]:
        """Return a context that is a piece; it may be entered again once it was left, by any thread."""
        return self._CONTEXT

    def units(self, limit: UnitLimit) -> WatchedUnits:
        """Return what declares the units of one worker in one phase, which have that limit."""
        return self._UNITS

    def progress(self) -> None:
        """Count this thread's innermost piece anew."""

    def compiles(self, limit_secs: float = COMPILE_SECS) -> None:
        """Do as `progress`, and let the piece take as long as compiling may."""


UNWATCHED = Watching()
