"""Ends a role's process when a piece of its work is overdue, so that its supervisor replaces it.

`core/work_deadlines.py` decides what is overdue; here are the thread that looks, and what it does then. It looks on
while other threads hang in compiled code, which releases the interpreter's lock. A process that hangs with that lock
held sends no heartbeats either, and the chief gives it up when its lease ends. The same goes for a server
that hangs in an update, because its heartbeat waits for the lock that the update holds.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident
from types import TracebackType

from hybridsync.core.clock import SYSTEM_CLOCK, Clock
from hybridsync.core.errors import EXIT_FAILED
from hybridsync.core.work_deadlines import COMPILE_SECS, Judge, Overdue, Piece, UnitLimit, WatchedUnits, Watching

FLOOR_SECS = 30.0
"""No piece of work is overdue earlier, whatever its limit."""
LOOKS = 8
"""Looks within the shortest limit."""
LONGEST_TICK_SECS = 1.0


class _Work(Piece):
    """A piece that is its own context, of one thread after another: none is made anew for each push."""

    __slots__ = ("_usual_limit_secs", "_watchdog")

    def __init__(self, watchdog: Watchdog, name: str, limit_secs: float) -> None:
        self._watchdog, self.name, self._usual_limit_secs = watchdog, name, limit_secs

    def __enter__(self) -> None:
        self.limit_secs = self._usual_limit_secs  # it may have compiled the last time
        self._watchdog.push(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watchdog.end(self)


class Watchdog(Watching):
    """Watches the threads of a role's process (see `hybridsync.core.work_deadlines.Watching`).

    There is no lock: each thread changes its own stack of pieces only, and the watchdog's thread reads the tops. A
    worker comes here four times a unit when its code is cold, so each of these calls makes no other call of this class.

    Args:
      who: the role, for the log.
      tell: called with the overdue piece of work before the process ends.
      floor_secs: minimum of all limits, in seconds.
      clock: clock for the limits.
      leave: ends the process.
      act: called with what is overdue, once until there is progress; None for `end_process`.
    """

    def __init__(
        self,
        who: str,
        tell: Callable[[str], object] = lambda text: None,
        *,
        floor_secs: float = FLOOR_SECS,
        clock: Clock = SYSTEM_CLOCK,
        leave: Callable[[int], object] = os._exit,
        act: Callable[[list[Overdue]], object] | None = None,
    ) -> None:
        self._who, self._tell, self._leave = who, tell, leave
        self._act = act or self.end_process
        self._now = clock.monotonic
        self._tick_secs = min(LONGEST_TICK_SECS, floor_secs / LOOKS)
        self._judge = Judge(floor_secs, self._tick_secs, self._now())
        self._stacks: dict[int, list[Piece]] = {}
        self._mine = threading.local()  # its `stack` is one of them
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stop.set()

    def begin(self, name: str, limit_secs: float) -> Piece:
        """See `Watching.begin`."""
        piece = Piece(name, limit_secs, self._now())
        try:
            self._mine.stack.append(piece)
        except AttributeError:
            self._new_stack().append(piece)
        return piece

    def push(self, piece: Piece) -> None:
        """Begin this piece."""
        piece.started = self._now()
        try:
            self._mine.stack.append(piece)
        except AttributeError:
            self._new_stack().append(piece)

    def _new_stack(self) -> list[Piece]:
        """Return the stack of a thread that begins its first piece."""
        stack = self._mine.stack = self._stacks[get_ident()] = []
        return stack

    def end(self, piece: Piece) -> None:
        """See `Watching.end`."""
        stack = self._mine.stack
        while stack.pop() is not piece:
            continue
        if stack:
            stack[-1].started = self._now()

    def work(self, name: str, limit_secs: float) -> AbstractContextManager[object]:
        """See `Watching.work`."""
        return _Work(self, name, limit_secs)

    def units(self, limit: UnitLimit) -> WatchedUnits:
        """See `Watching.units`."""
        return WatchedUnits(self, limit)

    def progress(self) -> None:
        """See `Watching.progress`."""
        for piece in self._stacks.get(get_ident(), [])[-1:]:
            piece.started = self._now()

    def compiles(self, limit_secs: float = COMPILE_SECS) -> None:
        """See `Watching.compiles`."""
        for piece in self._stacks.get(get_ident(), [])[-1:]:
            piece.limit_secs = max(piece.limit_secs, limit_secs)
            piece.started = self._now()

    def find_overdue(self) -> list[Overdue]:
        """Return what is overdue now."""
        now, stacks = self._now(), list(self._stacks.items())
        # A slice, because the stack may be emptied between a test and an index.
        return self._judge.overdue(now, ((thread, piece) for thread, stack in stacks for piece in stack[-1:]))

    def _watch(self) -> None:
        acted = False
        while not self._stop.wait(self._tick_secs):
            overdue = self.find_overdue()
            if overdue and not acted:
                self._act(overdue)
            acted = bool(overdue)

    def end_process(self, overdue: list[Overdue]) -> None:
        """Leave the stacks of all threads in the log, say what is overdue, and end this process."""
        told = f"the watchdog ends {self._who}: {'; '.join(map(str, overdue))}"
        try:
            write_stacks(2, told, overdue)
            self._tell(told)
        finally:
            self.leave()

    def leave(self) -> None:
        """End this process."""
        self._leave(EXIT_FAILED)


def write_stacks(file: int, text: str, overdue: list[Overdue]) -> None:
    """Write a text and the stacks of all threads. Not through `logging`: the thread that hangs may hold its lock.

    Args:
      file: descriptor to write to.
      text: first line, without its end.
      overdue: the work that is overdue, whose threads are named.
    """
    where = ", ".join(f"0x{each.thread:016x}" for each in overdue)
    os.write(file, f"{text}. Stacks of all threads follow; what is overdue runs in {where}:\n".encode())
    faulthandler.dump_traceback(file=file, all_threads=True)
