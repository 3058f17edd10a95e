"""The other servers as the primary sees them: to each one ordered line of what it has to do, sent by one thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridsync.core.deadlines import snapshot_secs
from hybridsync.core.errors import HybridSyncError, InvalidMessage, RoleLost, StalePhase, WaitTimeout
from hybridsync.core.futures import result_within
from hybridsync.core.plan import MOST_ENTRIES, NO_PHASE, PhaseId
from hybridsync.interfaces.messages import Push, Snapshot, Update
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import ShardPort
from hybridsync.server.partition import Part, place
from hybridsync.training.snapshot import fetch

IDLE_SECS = 60.0

_CHIEFS_AFFAIR = (StalePhase, RoleLost, WaitTimeout)
"""Errors that end a replication stream but do not mean this server is broken; the chief decides who is lost."""


@dataclass(frozen=True)
class _Call:
    """A call other than an update: made once the updates before it were sent."""

    run: Callable[[ShardPort], Any]
    result: Future[Any]


@dataclass(frozen=True)
class PartSnapshot:
    """One server's part of the state, on its way.

    Args:
      part: part that the snapshot belongs to.
      line: line to the part's server.
      snapshot: the server's answer.
    """

    part: Part
    line: _Line
    snapshot: Future[Snapshot]

    def fetch(self) -> Any:
        """Return the part's state as numpy arrays, checked against its fingerprint.

        Raises:
          HybridSyncError: the server failed.
          WaitTimeout: the server did not take its snapshot in time.
        """
        snapshot = self.line.wait(self.snapshot, snapshot_secs(self.part.state.whole.nbytes))
        peer = self.line.peer
        return fetch(
            self.line.who,
            snapshot.snapshot_id,
            snapshot.held.fingerprint,
            self.part.state.layout,
            lambda address: peer,
        )


class Peers:
    """Asks of the other servers what the primary needs; with none of them every call is free.

    Args:
      parts: parts of all servers, the primary's first.
      connect: returns the server at an address.
      failed: called with an error after which the servers cannot go on together; the loss of a server is not such an
        error.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        connect: Callable[[str], ShardPort],
        failed: Callable[[HybridSyncError], None],
    ) -> None:
        self.parts, self._connect, self._failed = tuple(parts), connect, failed
        self.servers: tuple[str, ...] = ()
        self._lines: list[_Line] = []
        self._phase_id = NO_PHASE

    @classmethod
    def none(cls, parts: Sequence[Part]) -> Peers:
        """Return the peers of a primary that is alone."""

        def connect(address: str) -> ShardPort:
            raise AssertionError(f"there is no other server, not at {address}")

        return cls(parts, connect, lambda error: None)

    def __bool__(self) -> bool:
        return len(self.parts) > 1

    def check(self, phase: Phase) -> None:
        """Refuse a phase of a run with another number of servers.

        Raises:
          InvalidMessage: the phase names more or fewer servers than this run has.
        """
        if self and len(phase.servers) != len(self.parts):
            raise InvalidMessage(
                f"phase {phase.id} names {len(phase.servers)} servers, but this run has {len(self.parts)}; name each"
            )

    def enter(self, phase: Phase) -> None:
        """Drop what was still to be said, and begin the lines of `phase`."""
        self.close()
        self._phase_id, self.servers = phase.id, phase.servers
        if self:
            assert len(phase.servers) == len(self.parts), "a phase names every server"
            self._lines = [_Line(phase.id, self._connect(at), at, self._failed) for at in phase.servers[1:]]

    def update(self, update: Update) -> None:
        """Tell of an update that was decided."""
        for line in self._lines:
            line.put(update)

    def discard(self, push: Push) -> None:
        """Tell that a push was settled without being applied."""
        for line in self._lines:
            line.call(lambda peer: peer.discard(push))

    def forget(self, worker: int, incarnation: int) -> None:
        """Tell that a worker is gone, up to this incarnation."""
        phase_id = self._phase_id
        for line in self._lines:
            line.call(lambda peer: peer.forget(phase_id, worker, incarnation))

    def snapshot_part(self, sequence: int, final: bool, left: tuple[int, ...] = ()) -> list[PartSnapshot]:
        """Ask for the parts of the state after `sequence`, behind which nothing was said yet.

        Args:
          sequence: sequence of the primary's newest version.
          final: whether the phase ends with it.
          left: the workers whose optimizer states make up the state's.
        """
        phase_id = self._phase_id
        return [
            PartSnapshot(part, line, line.call(lambda peer: peer.snapshot_part(phase_id, sequence, final, left)))
            for part, line in zip(self.parts[1:], self._lines, strict=True)
        ]

    def gather(self, snapshots: Sequence[PartSnapshot], whole: np.ndarray) -> None:
        """Copy the parts of a snapshot into the buffer of the whole state, where the primary's is already.

        Raises:
          HybridSyncError: a server failed, or what it keeps contradicts another's.
          WaitTimeout: a server did not take its snapshot in time.
        """
        taken = {leaf.path for leaf in self.parts[0].state.layout.leaves}
        for snapshot in snapshots:
            place(snapshot.part.state, snapshot.fetch(), whole, taken)

    def close(self) -> None:
        """End the lines; what is still in them is not said any more."""
        lines, self._lines = self._lines, []
        for line in lines:
            line.close()


class _Line:
    """One server's line. The condition guards the queue and the current call; it is notified when they change.

    What waits for a call is let go as soon as the line closes, also while the call is tried again at a dead server.
    """

    def __init__(self, phase_id: PhaseId, peer: ShardPort, who: str, failed: Callable[[HybridSyncError], None]) -> None:
        self.peer, self.who = peer, who
        self._phase_id, self._failed = phase_id, failed
        self._condition = threading.Condition()
        self._queue: deque[Update | _Call] = deque()
        self._under_way: _Call | None = None
        self._closed: HybridSyncError | None = None
        threading.Thread(target=self._send, name=f"line to {who}", daemon=True).start()

    def put(self, item: Update | _Call) -> None:
        with self._condition:
            if self._closed is None:
                self._queue.append(item)
                self._condition.notify()
            elif isinstance(item, _Call):
                item.result.set_exception(self._closed)

    def call(self, run: Callable[[ShardPort], Any]) -> Future[Any]:
        item = _Call(run, Future())
        self.put(item)
        return item.result

    def wait(self, result: Future[Snapshot], secs: float) -> Snapshot:
        return result_within(result, secs, f"the server at {self.who} has not taken its snapshot within {secs:g} s")

    def close(self, why: HybridSyncError | None = None) -> bool:
        """End the line for a reason, by default the phase's end; returns whether it was open."""
        with self._condition:
            if self._closed is not None:
                return False
            self._closed = why or StalePhase(f"phase {self._phase_id} has ended; ask the chief for the next phase")
            for item in (self._under_way, *self._queue):
                if isinstance(item, _Call):
                    item.result.set_exception(self._closed)
            self._under_way = None
            self._queue.clear()
            self._condition.notify()
            return True

    def _send(self) -> None:
        while (item := self._next()) is not None:
            try:
                if isinstance(item, _Call):
                    self._answer(item, item.run(self.peer))
                else:
                    self.peer.apply(self._phase_id, item)
            except HybridSyncError as error:
                if self.close(error) and not isinstance(error, _CHIEFS_AFFAIR):
                    self._failed(error)

    def _answer(self, call: _Call, result: Any) -> None:
        with self._condition:
            if self._under_way is call:
                self._under_way = None
                call.result.set_result(result)

    def _next(self) -> tuple[Update, ...] | _Call | None:
        """Return the next call, or all updates before it; None when the line is closed."""
        with self._condition:
            while not self._queue and self._closed is None:
                self._condition.wait(IDLE_SECS)
            if not self._queue:
                return None
            first = self._queue.popleft()
            if isinstance(first, _Call):
                self._under_way = first
                return first
            updates = [first]
            while len(updates) < MOST_ENTRIES and self._queue and isinstance(following := self._queue[0], Update):
                updates.append(following)
                self._queue.popleft()
            return tuple(updates)
