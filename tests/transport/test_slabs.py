"""Memory that several processes have mapped: who may write to it, and what is said where there is none."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hybridsync.core.errors import HybridSyncError, SchemaMismatch
from hybridsync.transport.buffers import ALIGNMENT
from hybridsync.transport.shared_memory import slabs
from hybridsync.transport.shared_memory.slabs import Slab, SlabMemory, copied, create, mapped

NUM_BYTES = 3 * mmap.PAGESIZE + 5
NAME = "memfd:hybridsync-parameters"


@pytest.fixture
def slab() -> Iterator[Slab]:
    made = create(NUM_BYTES, others_write=False)
    yield made
    os.close(made.file)


def num_mapped() -> int:
    return Path("/proc/self/maps").read_text().count(NAME)


def test_what_is_written_at_one_end_is_read_at_the_other(slab: Slab) -> None:
    there = mapped(slab.file, NUM_BYTES, writes=False)
    assert there.nbytes == slab.buffer.nbytes == NUM_BYTES and not there.any()
    slab.buffer[:] = np.arange(NUM_BYTES, dtype=np.uint8)
    assert np.array_equal(there, slab.buffer)
    assert not {each.ctypes.data % ALIGNMENT for each in (there, slab.buffer)} - {0}


def test_who_reads_cannot_write(slab: Slab) -> None:
    there = mapped(slab.file, NUM_BYTES, writes=False)
    with pytest.raises(ValueError, match="read-only"):
        there[0] = 1
    with pytest.raises(HybridSyncError, match="Operation not permitted"):
        mapped(slab.file, NUM_BYTES, writes=True)
    with pytest.raises(PermissionError):
        os.pwrite(slab.file, b"x", 0)
    opened_anew = os.open(f"/proc/self/fd/{slab.file}", os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(opened_anew, NUM_BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(opened_anew)
    slab.buffer[0] = 7
    assert there[0] == 7, "its owner writes on"


@pytest.mark.parametrize("others_write", [False, True])
def test_nobody_changes_its_size(others_write: bool) -> None:
    made = create(NUM_BYTES, others_write=others_write)
    for size in (0, NUM_BYTES - 1, 2 * NUM_BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(made.file, size)
    assert os.fstat(made.file).st_size == NUM_BYTES
    os.close(made.file)


def test_a_contribution_is_written_by_whoever_has_its_file() -> None:
    made = create(NUM_BYTES, others_write=True)
    mapped(made.file, NUM_BYTES, writes=True)[:] = 3
    assert (made.buffer == 3).all()
    os.close(made.file)


def test_a_file_that_is_too_small_is_refused_before_a_read_beyond_its_end_would_end_the_process(slab: Slab) -> None:
    with pytest.raises(SchemaMismatch, match=f"has {NUM_BYTES} bytes where {NUM_BYTES + 1} are expected"):
        mapped(slab.file, NUM_BYTES + 1, writes=False)
    with pytest.raises(SchemaMismatch, match=f"has {NUM_BYTES} bytes where {NUM_BYTES + 1} are expected"):
        copied(slab.file, np.zeros(NUM_BYTES + 1, np.uint8))


def test_memory_is_unmapped_with_its_last_reader_and_not_before() -> None:
    gc.collect()
    before = num_mapped()
    made = create(NUM_BYTES, others_write=True)
    there = mapped(made.file, NUM_BYTES, writes=True)
    os.close(made.file)
    part = there[5:9]
    assert num_mapped() == before + 2
    del there, made
    part[:] = 1
    assert num_mapped() == before + 1
    del part
    assert num_mapped() == before


def test_memory_of_no_bytes_is_found_again_by_its_buffer() -> None:
    memory = SlabMemory()
    buffers = [memory.allocate(0), memory.allocate(0), memory.allocate(64)]
    assert [memory.number_of(buffer) for buffer in buffers] == [1, 2, 3]
    assert memory.number_of(buffers[2].view()) == 3 and buffers[0].nbytes == 0
    assert mapped(memory.file(1), 0, writes=False).nbytes == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM, errno.EINVAL])
def test_where_there_is_no_memory_the_error_says_what_to_do(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(slabs.os, "posix_fallocate", full)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(HybridSyncError, match=rf"no shared memory for 2\.5 MB.*{os.strerror(number)}.*--link=grpc"):
        create(2_500_000, others_write=False)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_kernel_that_cannot_keep_readers_from_writing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(fcntl, "fcntl", unknown)
    with pytest.raises(HybridSyncError, match=r"Invalid argument.*--link=grpc"):
        create(NUM_BYTES, others_write=False)


@contextmanager
def limited(kind: int, most: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def test_the_limits_of_this_process_are_named() -> None:
    with limited(resource.RLIMIT_FSIZE, 4096), pytest.raises(HybridSyncError, match=r"File too large.*--link=grpc"):
        create(1 << 20, others_write=False)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest + 1)]  # no number below the limit is free
    try:
        with limited(resource.RLIMIT_NOFILE, highest + 1), pytest.raises(HybridSyncError, match=r"Too many.*ulimit -n"):
            create(1 << 20, others_write=False)
    finally:
        for each in taken:
            os.close(each)


def test_the_files_of_memory_that_nobody_has_any_more_are_closed_and_what_is_mapped_stays() -> None:
    memory = SlabMemory()
    buffer = memory.allocate(4096)
    file = memory.file(memory.number_of(buffer))
    buffer[:] = 7
    del memory
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
    assert (buffer == 7).all()
