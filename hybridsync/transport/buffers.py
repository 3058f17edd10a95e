"""Receive buffers that are filled again and again, each lent to one call at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from hybridsync.core.errors import WaitTimeout

ALIGNMENT = 64


def aligned(num_bytes: int) -> np.ndarray:
    """Return an uninitialised uint8 array that begins at a multiple of 64 bytes.

    JAX on CPU uses such memory in place.
    """
    raw = np.empty(num_bytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + num_bytes]


def zeroed(num_bytes: int) -> np.ndarray:
    """Return zeroed bytes, aligned likewise; no page is touched before it is used."""
    raw = np.zeros(num_bytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + num_bytes]


@dataclass(frozen=True)
class PooledBuffer:
    """A lent buffer: `BufferView`."""

    whole: np.ndarray
    num_bytes: int
    owner: Buffers

    @property
    def buffer(self) -> np.ndarray:
        """The bytes that were asked for."""
        return self.whole if self.num_bytes == self.whole.nbytes else self.whole[: self.num_bytes]

    def release(self) -> None:
        """Give the buffer back, once."""
        self.owner.return_buffer(self.whole)


class Buffers:
    """A ring of equal, aligned buffers.

    The one returned last is lent first, while its pages are warm; a new one is made only when all are lent.
    The lock guards the free list and the number of buffers.

    Args:
      num_bytes: size of each buffer in bytes.
      num_buffers: maximum number of buffers; at least the number of pushes that a rule may hold at a time.
    """

    def __init__(self, num_bytes: int, num_buffers: int) -> None:
        self.num_bytes = num_bytes
        self._free = [aligned(num_bytes)]
        self._spare = num_buffers - 1
        self._returned = threading.Condition()

    @contextmanager
    def lend(self, secs: float) -> Iterator[np.ndarray]:
        """Lend a buffer for the `with` block, waiting up to `secs` for one.

        Raises:
          WaitTimeout: all buffers were lent for so long.
        """
        borrowed = self.borrow(secs)
        try:
            yield borrowed.buffer
        finally:
            borrowed.release()

    def borrow(self, secs: float, num_bytes: int | None = None) -> PooledBuffer:
        """Lend a buffer, or its first `num_bytes`, until it is released, waiting up to `secs` for one.

        Raises:
          WaitTimeout: all buffers were lent for so long.
        """
        return PooledBuffer(self._take(secs), self.num_bytes if num_bytes is None else num_bytes, self)

    def return_buffer(self, buffer: np.ndarray) -> None:
        """Have a buffer back."""
        with self._returned:
            self._free.append(buffer)
            self._returned.notify()

    def _take(self, secs: float) -> np.ndarray:
        with self._returned:
            if not self._free and self._spare:
                self._spare -= 1
                return aligned(self.num_bytes)
            if not self._returned.wait_for(lambda: self._free, secs):
                raise WaitTimeout(
                    f"no receive buffer of {self.num_bytes} bytes became free within {secs:g} s: the server "
                    "still holds the pushes in all of them; allow more buffers than workers"
                )
            return self._free.pop()
