"""The memory that the workers of a host share: three words and some regions of bytes for each.

The service makes the file, and each worker maps it. Every word and every region has one writer, so nothing is locked.
A word is eight bytes at a multiple of eight: it is read as it was before a write or as it is after it.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os

import numpy as np

from hybridsync.core.errors import HybridSyncError

_ROW_BYTES = 64  # a cache line each, so that writers do not slow each other
_ROW = _ROW_BYTES // 8
_SESSION, _PROGRESS, _ARRIVAL = 0, 1, 2
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux, which `mmap` does not name


def create(num_places: int) -> int:
    """Return the descriptor of a new file for `num_places` workers, which grows and never shrinks.

    It has no name: it is gone when the last process that holds it ends, however that happens.

    Raises:
      OSError: there is no memory for the words.
    """
    file = os.memfd_create("hybridsync-collectives", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.posix_fallocate(file, 0, _header_bytes(num_places))
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return file


class Words:
    """The words of all workers, by their places.

    Args:
      file: descriptor of the slab.
      num_places: workers that it has room for.
    """

    def __init__(self, file: int, num_places: int) -> None:
        # Views of memory take a fifth of the time that arrays take for one number; each is written by one move.
        memory = memoryview(mmap.mmap(file, _header_bytes(num_places)))[: num_places * _ROW_BYTES]
        self._numbers, self._secs = memory.cast("q"), memory.cast("d")

    def session(self, place: int) -> int:
        """Return which process has the place, counted from 1; 0 before the first, negative once it has ended.

        The service writes it.
        """
        return self._numbers[_ROW * place + _SESSION]

    def set_session(self, place: int, session: int) -> None:
        """Say who has the place."""
        self._numbers[_ROW * place + _SESSION] = session

    def progress(self, place: int) -> int:
        """Return how far a worker has come (see `rounds`)."""
        return self._numbers[_ROW * place + _PROGRESS]

    def set_progress(self, place: int, progress: int) -> None:
        """Say how far this worker has come."""
        self._numbers[_ROW * place + _PROGRESS] = progress

    def arrival(self, place: int) -> float:
        """Return when a worker came to its newest round, monotonic seconds (see `rounds`)."""
        return self._secs[_ROW * place + _ARRIVAL]

    def set_arrival(self, place: int, secs: float) -> None:
        """Say when this worker came to the round that it is about to enter."""
        self._secs[_ROW * place + _ARRIVAL] = secs


class Area:
    """Holds two regions of each worker, for sums of one kind: its contribution, and the slice that it has reduced.

    Pages exist once they are used or reserved, so an area that no phase needs costs nothing.

    Args:
      file: descriptor of the slab.
      start: first byte of the area, as `end` of the one before it.
      num_places: number of workers that the area has room for.
      nbytes: size of a contribution in bytes.

    Attributes:
      end: offset of the first byte after the area.
    """

    def __init__(self, file: int, start: int, num_places: int, nbytes: int) -> None:
        self._file, self._start, self._num_places = file, start, num_places
        self._nbytes, self._region_bytes = nbytes, _whole_pages(nbytes)
        self.end = start + 2 * num_places * self._region_bytes
        self._map: np.ndarray | None = None

    @classmethod
    def after_words(cls, file: int, num_places: int, nbytes: int) -> Area:
        """Return the first area of a slab."""
        return cls(file, _header_bytes(num_places), num_places, nbytes)

    def reserve(self, place: int) -> None:
        """Take the memory of this worker's regions now: a write to a page that there is no memory for ends a process.

        Raises:
          HybridSyncError: the host has too little memory.
        """
        if self._map is not None:
            return
        try:
            if os.fstat(self._file).st_size < self.end:
                os.ftruncate(self._file, self.end)
        except PermissionError:  # another worker was faster, for an area after this one
            pass
        try:
            own = 2 * place * self._region_bytes
            os.posix_fallocate(self._file, self._start + own, 2 * self._region_bytes)
            whole = mmap.mmap(self._file, self.end - self._start, offset=self._start)
            # Own pages at once: one by one takes four times as long, while the others wait. Not those of other places:
            # that would take the memory of workers that need none.
            _map_pages(whole, own, 2 * self._region_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            raise HybridSyncError(
                f"no shared memory for {2 * self._region_bytes / 1e6:,.1f} MB, which this worker's sums need "
                f"({os.strerror(error.errno)}); free some, or run with --collective=host"
            ) from error
        self._map = np.frombuffer(whole, np.uint8).reshape(self._num_places, 2, self._region_bytes)

    def unmap(self) -> None:
        """Map the area no more until it is reserved again; its content stays in the file, for peers that read it."""
        self._map = None

    def contribution(self, place: int) -> np.ndarray:
        """Return what the worker contributes, uint8[nbytes]; valid once it is reserved."""
        assert self._map is not None
        return self._map[place, 0, : self._nbytes]

    def reduced(self, place: int) -> np.ndarray:
        """Return the region in which the worker leaves its slice of the sum, uint8[nbytes]."""
        assert self._map is not None
        return self._map[place, 1, : self._nbytes]


def _map_pages(whole: mmap.mmap, start: int, nbytes: int) -> None:
    """Make the pages of a region present in this process; what they hold stays."""
    try:
        whole.madvise(_POPULATE_WRITE, start, nbytes)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        np.frombuffer(whole, np.uint8, nbytes, start)[:: mmap.PAGESIZE] |= 0  # a kernel before 5.14


def _header_bytes(num_places: int) -> int:
    return _whole_pages(num_places * _ROW_BYTES)


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
