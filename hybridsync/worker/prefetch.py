"""Reads the examples of a worker's next unit while it computes one."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from hybridsync.core.activity import current

Batch = dict[str, Any]


class Prefetch:
    """Reads one unit ahead, in a thread of its own; the two threads never read at the same time.

    A unit that comes in place of the one that was read ahead is read when it is asked for, and what was read ahead is
    dropped, whether it came to an error or not.

    Args:
      read: reads the raw examples of a unit.
    """

    def __init__(self, read: Callable[[int], Batch]) -> None:
        self._read = read
        self._ahead: int | None = None
        self._wanted: SimpleQueue[int | None] = SimpleQueue()
        self._found: SimpleQueue[Batch | BaseException] = SimpleQueue()
        self._has_begun = False
        weakref.finalize(self, self._wanted.put, None)  # the thread ends with the last worker that could ask it

    def take(self, unit: int, ahead: Callable[[], int | None]) -> Batch:
        """Return the raw examples of `unit`, and begin to read those of the unit that `ahead` names.

        Raises:
          Exception: what `read` raised for this unit.
        """
        read_ahead, self._ahead = self._ahead, None
        batch: Batch | BaseException | None = None
        if read_ahead is not None:
            activity = current()
            activity.reading()
            try:
                batch = self._found.get()
            finally:
                activity.has_read()
        if read_ahead != unit or batch is None:
            batch = self._read(unit)
        elif isinstance(batch, BaseException):
            raise batch
        if (following := ahead()) is not None:
            self._begin(following)
        return batch

    def _begin(self, unit: int) -> None:
        if not self._has_begun:
            self._has_begun = True
            queues = self._read, self._wanted, self._found  # not this object, which would then live as long
            threading.Thread(target=_serve, args=queues, name="prefetch", daemon=True).start()
        self._ahead = unit
        self._wanted.put(unit)


def _serve(
    read: Callable[[int], Batch], wanted: SimpleQueue[int | None], found: SimpleQueue[Batch | BaseException]
) -> None:
    while (unit := wanted.get()) is not None:
        try:
            batch: Batch | BaseException = read(unit)
        except BaseException as error:  # noqa: BLE001 the worker raises it if it comes to that unit
            batch = error
        found.put(batch)
        del batch
