"""A role's captured copy of the training state: taken between updates, read by the roles that need it, handed over.

The canonical buffer is the whole TrainState packed by its layout; handing it over is bit-exact and checked by
fingerprint. A snapshot stays readable until the next one.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from absl import logging

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.errors import DamagedState, HybridSyncError, StalePhase, WaitTimeout
from hybridsync.core.plan import PhaseId
from hybridsync.core.units import Range, num_units
from hybridsync.interfaces.messages import Snapshot, StateVersion
from hybridsync.interfaces.ports import ReaderPort
from hybridsync.training.buffer_layout import Layout, fingerprint
from hybridsync.training.lent_buffers import LentBuffers, own_memory
from hybridsync.training.state import TrainState

ReaderAt = Callable[[str], ReaderPort]
"""Address of a role -> the role as one that keeps a captured state."""


@dataclass(frozen=True)
class LentView:
    """A captured buffer in a reader's hands: read-only uint8, given back once by `release`."""

    buffer: np.ndarray
    release: Callable[[], None]


@dataclass(frozen=True)
class Account:
    """Says what a captured state holds: the fields of `Snapshot` that its holder knows."""

    sequence: int
    applied: tuple[Range, ...]
    dropped: tuple[Range, ...]
    first_applied: float
    last_applied: float

    @property
    def units(self) -> int:
        """Return the number of applied units."""
        return num_units(self.applied)


class SnapshotBuffer:
    """Keeps the newest snapshot of a training state, and a state in a second buffer that may become the next one.

    The condition guards the buffer and counts its readers: a snapshot waits until the last of them is done. `room` is
    that wait alone, for an owner whose own lock must stay free meanwhile.

    Args:
      layout: layout of the state.
      allocate: makes a buffer of so many bytes (see `Transport.allocate`); None for memory of this process.
    """

    def __init__(self, layout: Layout, allocate: Callable[[int], np.ndarray] | None = None) -> None:
        self.layout = layout
        self._allocate = allocate or (lambda num_bytes: layout.empty())
        self._capturing = threading.Lock()
        self._condition = threading.Condition()
        self._read_secs = transfer_secs(layout.nbytes)
        self._readers = 0
        self._buffer: np.ndarray | None = None
        self._spare: np.ndarray | None = None  # of `keep`; its owner calls that and `use_kept` one at a time
        self._snapshot: Snapshot | None = None
        self._next_id = secrets.randbits(40)  # another process at this address must not have the same

    def reserve(self) -> None:
        """Take the buffer's memory now, because the first snapshot is taken while training waits for it."""
        with self._condition:
            self._take_memory()

    def _take_memory(self) -> np.ndarray:
        if self._buffer is None:
            self._buffer = self._allocate(self.layout.nbytes)
        return self._buffer

    @contextmanager
    def room(self) -> Iterator[None]:
        """Take one snapshot at a time inside this block, which is entered when nobody reads the last one any more.

        The owner takes its own lock inside, not around it: the readers may be slow.

        Raises:
          WaitTimeout: a reader still reads the last snapshot, or a caller takes a new one.
        """
        deadline = SYSTEM_CLOCK.monotonic() + self._read_secs
        if not self._capturing.acquire(timeout=self._read_secs):
            raise WaitTimeout(f"another snapshot has been under way for more than {self._read_secs:g} s; ask again")
        try:
            with self._condition:
                self._await_readers(deadline - SYSTEM_CLOCK.monotonic())
            yield
        finally:
            self._capturing.release()

    def pack(self, state: TrainState) -> None:
        """Copy `state` into the buffer; the caller keeps updates away meanwhile.

        Raises:
          WaitTimeout: a reader still reads the last snapshot.
        """
        self.fill(lambda buffer: self.layout.pack(state, out=buffer))

    def fill(self, write: Callable[[np.ndarray], object]) -> None:
        """Let `write` put a state into the canonical buffer, or a part of it: nobody reads it before `finalize`.

        Raises:
          WaitTimeout: a reader still reads the last snapshot.
        """
        with self._condition:
            self._await_readers(self._read_secs)
            write(self._take_memory())

    def keep(self, write: Callable[[np.ndarray], object]) -> bool:
        """Let `write` put a state into the second buffer, whose memory is taken at the first call.

        Readers of the last snapshot are not waited for. Returns whether there is memory for it.
        """
        if self._spare is None:
            try:
                self._spare = self._allocate(self.layout.nbytes)
            except (HybridSyncError, MemoryError) as error:
                logging.warning("no state can be kept for its evaluation, a later one is evaluated: %s", error)
                return False
        write(self._spare)
        return True

    def use_kept(self) -> None:
        """Put what was kept in the place of the last snapshot, as `fill` would.

        Raises:
          WaitTimeout: a reader still reads the last snapshot.
        """
        with self._condition:
            self._await_readers(self._read_secs)
            self._buffer, self._spare = self._spare, self._buffer

    def _await_readers(self, secs: float) -> None:
        self._snapshot = None  # no new reader comes, so that a stream of them cannot keep the next snapshot away
        if not self._condition.wait_for(lambda: not self._readers, secs):
            raise WaitTimeout(
                f"{self._readers} reader(s) of the last snapshot have not ended within {self._read_secs:g} s; "
                "no other snapshot can be taken"
            )

    def complete(self, write: Callable[[np.ndarray], object]) -> None:
        """Let `write` put in what is missing between `fill` and `finalize`; the lock is free meanwhile."""
        assert self._buffer is not None and self._snapshot is None, "complete follows fill"
        write(self._buffer)

    def finalize(
        self,
        phase_id: PhaseId,
        *,
        sequence: int,
        applied: Iterable[Range],
        dropped: Iterable[Range] = (),
        first_applied: float = 0.0,
        last_applied: float = 0.0,
    ) -> Snapshot:
        """Fingerprint what was packed and make it readable; updates may go on meanwhile."""
        with self._condition:
            assert self._buffer is not None, "finalize follows pack"
            applied = tuple(applied)
            digest = fingerprint(self.layout.unpack(self._buffer))
            units = sum(stop - start for start, stop in applied)
            self._snapshot = Snapshot(
                snapshot_id=self._next_id,
                held=StateVersion(phase_id, units, sequence, digest),
                applied=applied,
                dropped=tuple(dropped),
                num_bytes=self.layout.nbytes,
                first_applied=first_applied,
                last_applied=last_applied,
            )
            self._next_id += 1
            return self._snapshot

    def read(self, snapshot_id: int, into: np.ndarray) -> None:
        """Copy the captured buffer.

        Raises:
          StalePhase: another snapshot has taken its place.
        """
        view = self.lend(snapshot_id)
        try:
            np.copyto(into, view.buffer)
        finally:
            view.release()

    def lend(self, snapshot_id: int) -> LentView:
        """Lend the captured buffer, read-only (see `SnapshotBackend.lend`)."""
        with self._condition:
            if self._snapshot is None or self._buffer is None or self._snapshot.snapshot_id != snapshot_id:
                raise _not_kept(snapshot_id, self._snapshot)
            self._readers += 1
            view = self._buffer.view()
            view.flags.writeable = False
            return LentView(view, self._release)

    def _release(self) -> None:
        with self._condition:
            self._readers -= 1
            self._condition.notify_all()


class CommittedState:
    """The chief as a holder: it keeps the last committed state, for when nobody holds a newer one.

    A state lies in memory that others read in place, which is used again once nobody sees the state. What was published
    stays readable until a state of a later phase is kept: by then all are in the phase that began with it. The lock
    guards what is kept and what is published.

    Args:
      layout: layout of the state.
      snapshot: snapshot of the state that the run starts from; it is published.
      state: the state that the run starts from, which is copied.
      allocate: makes the memory of a state (see `Transport.allocate`); None for memory of this process.
    """

    def __init__(
        self,
        layout: Layout,
        snapshot: Snapshot,
        state: TrainState,
        allocate: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        self._layout, self._lock = layout, threading.Lock()
        self._buffers = LentBuffers(layout.nbytes, allocate or own_memory)
        buffer = self.buffer()
        layout.pack(state, out=buffer)
        self._kept = snapshot, buffer
        self._published: tuple[Snapshot, np.ndarray] | None = self._kept
        self._next_id = snapshot.snapshot_id + 1

    def buffer(self) -> np.ndarray:
        """Return memory for one more state, to be stored."""
        return self._buffers.lend()

    @property
    def state(self) -> TrainState:
        """The kept state, as views of its memory."""
        return self._layout.unpack(self._kept[1])

    def store(self, snapshot: Snapshot, buffer: np.ndarray) -> None:
        """Keep a state in such memory, unless a newer one is kept: a commit may end late."""
        with self._lock:
            kept, kept_buffer = self._kept
            if snapshot.held.is_before(kept.held):
                return
            self._kept = snapshot, kept_buffer if snapshot.held == kept.held else buffer
            if self._published is not None and snapshot.held.phase_id.number > self._published[0].held.phase_id.number:
                self._published = None

    def adopt(self, snapshot: Snapshot, source: str, reader: ReaderPort) -> None:
        """Fetch and keep another state instead, though it is not committed.

        Raises:
          StalePhase: the source no longer keeps that snapshot.
          DamagedState: what arrived is not the state that was captured.
        """
        buffer, digest = self.buffer(), snapshot.held.fingerprint
        fetch(source, snapshot.snapshot_id, digest, self._layout, lambda address: reader, buffer=buffer)
        self.store(snapshot, buffer)

    @property
    def units(self) -> int:
        """Units applied in the kept state."""
        return self._kept[0].held.units

    def publish(self) -> Snapshot:
        """Return a snapshot of the kept state, readable here; it takes the place of the one before."""
        with self._lock:
            kept, buffer = self._kept
            snapshot = replace(
                kept,
                snapshot_id=self._next_id,
                num_bytes=self._layout.nbytes,
                first_applied=0.0,
                last_applied=0.0,
            )
            self._next_id += 1
            self._published = snapshot, buffer
            return snapshot

    def take_snapshot(self, phase_id: PhaseId, final: bool, place: int = 0) -> Snapshot:
        """Refuse: the chief takes part in no phase.

        Raises:
          StalePhase: always.
        """
        raise StalePhase(f"the chief keeps the last committed state only and takes no part in phase {phase_id}")

    def read(self, snapshot_id: int, into: np.ndarray) -> None:
        """Copy what was published last (see `SnapshotBuffer.read`)."""
        np.copyto(into, self.lend(snapshot_id).buffer)

    def lend(self, snapshot_id: int) -> LentView:
        """Lend what was published last (see `SnapshotBuffer.lend`); it stays as it is while the view is there."""
        with self._lock:
            published = self._published
        if published is None or published[0].snapshot_id != snapshot_id:
            raise _not_kept(snapshot_id, published and published[0])
        view = published[1].view()
        view.flags.writeable = False
        return LentView(view, lambda: None)


def _not_kept(snapshot_id: int, kept: Snapshot | None) -> StalePhase:
    have = kept.snapshot_id if kept else "none"
    return StalePhase(f"snapshot {snapshot_id} is no longer kept here (kept: {have}); ask the chief again")


def fetch(
    source: str,
    snapshot_id: int,
    digest: str,
    layout: Layout,
    reader_at: ReaderAt,
    buffer: np.ndarray | None = None,
) -> TrainState:
    """Return a captured state as numpy views of one buffer, checked against its fingerprint.

    Args:
      source: address of the role that keeps it.
      snapshot_id: number of the snapshot.
      digest: fingerprint of the snapshot.
      layout: layout of the state.
      reader_at: returns a reader of the role at an address.
      buffer: uint8[layout.nbytes] that has no other use from now on; None for a fresh one.

    Raises:
      DamagedState: what arrived is not the state that was captured.
      StalePhase: the source no longer keeps that snapshot.
    """
    buffer = layout.empty() if buffer is None else buffer
    reader_at(source).read(snapshot_id, buffer)
    state = layout.unpack(buffer)
    got = fingerprint(state)
    if got != digest:
        raise DamagedState(
            f"the state handed over by {source} has fingerprint {got}, but {digest} was captured; nothing was trained "
            "on it, run the same command again to resume from the last checkpoint"
        )
    return state
