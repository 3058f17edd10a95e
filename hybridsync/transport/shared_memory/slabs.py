"""Memory that several processes have mapped: files without a name, which are gone when the last process closes them."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hybridsync.core.errors import HybridSyncError, SchemaMismatch

_F_SEAL_FUTURE_WRITE = 0x10  # of <linux/fcntl.h>; Python names it from 3.13 on


@dataclass(frozen=True, eq=False)
class Slab:
    """A file in memory, and its bytes as its owner has mapped them: uint8, page-aligned, zeroed at first."""

    file: int
    buffer: np.ndarray


def create(num_bytes: int, *, others_write: bool) -> Slab:
    """Return new memory of which every page is reserved: a write that finds none would end the process.

    Args:
      num_bytes: size in bytes, which cannot be changed.
      others_write: whether a process that is handed the file may write to it.

    Raises:
      HybridSyncError: the host has too little memory, or this process too few descriptors.
    """
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | (0 if others_write else _F_SEAL_FUTURE_WRITE)
    with contextlib.ExitStack() as opened:
        try:
            file = os.memfd_create("hybridsync-parameters", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            opened.callback(os.close, file)
            os.posix_fallocate(file, 0, max(1, num_bytes))
            buffer = mapped(file, num_bytes, writes=True)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
        except OSError as error:
            raise _lacking(num_bytes, error) from error
        opened.pop_all()
    return Slab(file, buffer)


def mapped(file: int, num_bytes: int, *, writes: bool) -> np.ndarray:
    """Return the bytes of a file that somebody else made: uint8[num_bytes]; unmapped when nobody refers to them.

    Raises:
      SchemaMismatch: the file is smaller.
      HybridSyncError: the file cannot be mapped like this.
    """
    if (size := os.fstat(file).st_size) < num_bytes:
        raise _too_small(size, num_bytes)
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writes else 0)
    try:
        # All pages at once: to fault in 68 MB page by page takes 23 ms of a core, like this 6.
        whole = mmap.mmap(file, max(1, num_bytes), mmap.MAP_SHARED | mmap.MAP_POPULATE, prot)
    except OSError as error:
        raise _lacking(num_bytes, error) from error
    return np.frombuffer(whole, np.uint8)[:num_bytes]


def copied(file: int, into: np.ndarray) -> None:
    """Fill `into` (uint8, C-contiguous) with the first bytes of such a file.

    Raises:
      SchemaMismatch: the file is smaller.
    """
    left = into.data
    while left:
        num_bytes = os.preadv(file, [left], into.nbytes - left.nbytes)  # 2 GiB at most
        if not num_bytes:
            raise _too_small(into.nbytes - left.nbytes, into.nbytes)
        left = left[num_bytes:]


def _too_small(has: int, num_bytes: int) -> SchemaMismatch:
    return SchemaMismatch(f"the shared memory has {has} bytes where {num_bytes} are expected")


def _lacking(num_bytes: int, error: OSError) -> HybridSyncError:
    return HybridSyncError(
        f"no shared memory for {num_bytes / 1e6:,.1f} MB of parameters ({error.strerror}); free memory, raise "
        "`ulimit -n` where descriptors are missing, or run with --link=grpc"
    )


class SlabMemory:
    """Makes the buffers of one process that others read in place, and finds the file of each.

    They live as long as this object; a mapping stays for as long as an object refers to it. The lock guards the table.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[int, int] = {}
        self._slabs: list[Slab] = []
        weakref.finalize(self, _close_files, self._slabs)

    def allocate(self, num_bytes: int) -> np.ndarray:
        """Return a new buffer: uint8[num_bytes], zeroed, page-aligned.

        Raises:
          HybridSyncError: there is no memory for it.
        """
        slab = create(num_bytes, others_write=False)
        with self._lock:
            self._slabs.append(slab)
            self._numbers[_address(slab.buffer)] = len(self._slabs)
        return slab.buffer

    def number_of(self, buffer: np.ndarray) -> int:
        """Return the number, from 1 on, of the slab whose buffer, or a view of all of it, this is."""
        number = self._numbers.get(_address(buffer))
        assert number is not None, "buffers lent to other processes lie in memory that this transport has allocated"
        return number

    def file(self, number: int) -> int:
        """Return the descriptor of a slab."""
        return self._slabs[number - 1].file


def _close_files(slabs: Iterable[Slab]) -> None:
    for slab in slabs:
        os.close(slab.file)


def _address(buffer: np.ndarray) -> int:
    return buffer.__array_interface__["data"][0]
