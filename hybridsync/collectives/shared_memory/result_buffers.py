"""Memory for results, used again: fresh pages and their zeroing cost a quarter of a sum of 2 MB."""

from __future__ import annotations

import mmap
import weakref

import numpy as np

MOST_FREE = 2
"""Buffers kept for later: a caller holds one result until it has the next."""

# The default is to share pages with forked processes. All pages at once: one by one takes four times as long.
_OWN_MEMORY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE


class ResultBuffers:
    """Buffers of one size, which are lent and come back by themselves.

    A buffer comes back when the last array that views it is gone, which is when memory of numpy's own would be freed. A
    caller may keep a result for as long as it likes. A JAX array that shares its memory keeps such a view.

    Args:
      nbytes: size of each buffer in bytes, at least 1.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._free: list[mmap.mmap] = []

    def lend(self) -> np.ndarray:
        """Return uint8[nbytes] of any content, at the beginning of a page."""
        memory = self._free.pop() if self._free else mmap.mmap(-1, self._nbytes, flags=_OWN_MEMORY)
        # Views keep `lent` alive, not only `memory`: numpy looks for the owner of a view among arrays, and stops here.
        lent = np.frombuffer(memory, np.uint8)
        weakref.finalize(lent, self._take_back, memory).atexit = False
        return lent

    def _take_back(self, memory: mmap.mmap) -> None:
        """Keep the memory, whichever thread has dropped the last view."""
        if len(self._free) < MOST_FREE:
            self._free.append(memory)
