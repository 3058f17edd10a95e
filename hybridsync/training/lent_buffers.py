"""Memory that is used again, once nobody sees what it holds."""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Callable

import numpy as np

Memory = mmap.mmap | np.ndarray

MOST_FREE = 2
"""Buffers kept for later, where memory is the process's own: a caller holds what it was lent until it has the next."""

# The default is to share pages with forked processes. All pages at once: one by one takes four times as long.
_OWN_MEMORY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE


def own_memory(num_bytes: int) -> mmap.mmap:
    """Return memory of this process: fresh pages, and their zeroing, cost a quarter of a sum of 2 MB."""
    return mmap.mmap(-1, num_bytes, flags=_OWN_MEMORY)


class LentBuffers:
    """Buffers of one size, which are lent and come back by themselves.

    A buffer comes back when the last array that views it is gone, which is when memory of numpy's own would be freed. A
    caller may keep what it was lent for as long as it likes. A JAX array that shares its memory keeps such a view.

    Args:
      nbytes: size of each buffer in bytes, at least 1.
      allocate: makes the memory of a buffer of so many bytes; where others map it, it is never freed.
    """

    def __init__(self, nbytes: int, allocate: Callable[[int], Memory] = own_memory) -> None:
        self._nbytes, self._allocate = nbytes, allocate
        self._most_free = MOST_FREE if allocate is own_memory else math.inf
        self._free: list[Memory] = []

    def lend(self) -> np.ndarray:
        """Return uint8[nbytes] of any content, at the beginning of a page."""
        try:
            memory = self._free.pop()
        except IndexError:  # not asked before: another thread may take the last one meanwhile
            memory = self._allocate(self._nbytes)
        # Views keep `lent` alive, not only `memory`: numpy looks for the owner of a view among arrays, and stops here.
        lent = np.frombuffer(memory.data if isinstance(memory, np.ndarray) else memory, np.uint8)
        weakref.finalize(lent, self._take_back, self._free, memory).atexit = False
        return lent

    def clear(self) -> None:
        """Free the buffers that are kept for later, and those that are lent as soon as they come back."""
        self._free = []

    def _take_back(self, free: list[Memory], memory: Memory) -> None:
        """Keep the memory, whichever thread has dropped the last view."""
        if len(free) < self._most_free:
            free.append(memory)
