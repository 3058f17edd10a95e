"""One doorbell a worker, which wakes it where it waits for the others."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable, Sequence

MOST_WORKERS = 250
"""Doorbells and the slab travel in one message, which holds 253 descriptors."""


def create() -> int:
    """Return the descriptor of a new doorbell."""
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


class Doorbells:
    """The doorbells of all workers, as one of them uses them.

    Args:
      bells: descriptors, by the workers' places.
      own: place of this worker.
    """

    def __init__(self, bells: Sequence[int], own: int) -> None:
        self._bells, self._own = tuple(bells), own
        self._poll = select.poll()
        self._poll.register(self._bells[own], select.POLLIN)

    def ring(self, places: Iterable[int]) -> None:
        """Wake the workers at `places`; one that does not wait finds its bell rung when it will."""
        for place in places:
            ring(self._bells[place])

    def wake(self) -> None:
        """Wake this worker itself, from another of its threads."""
        ring(self._bells[self._own])

    def wait(self, timeout_secs: float) -> None:
        """Wait until the own bell rings, or has rung since the last call."""
        if self._poll.poll(timeout_secs * 1000):
            try:
                os.eventfd_read(self._bells[self._own])
            except BlockingIOError:  # another reader of this place was faster, as in a test
                return


def ring(bell: int) -> None:
    """Ring one bell."""
    try:
        os.eventfd_write(bell, 1)
    except BlockingIOError:  # it was rung 2**64 times, and no read has reset it
        return
