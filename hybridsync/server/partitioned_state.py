"""The training state as the primary holds it: its own shard, the other servers that follow it, and the apply log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hybridsync.core.clock import Clock
from hybridsync.interfaces.messages import Push, Update
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Span
from hybridsync.protocols.base import Change, Compensation
from hybridsync.server.held_pushes import Decided
from hybridsync.server.replication import PartSnapshot, Peers
from hybridsync.server.shard_state import Shard
from hybridsync.storage.apply_log import ApplyLog
from hybridsync.storage.apply_log_entries import Entry, Left, Stepped
from hybridsync.training.state import TrainState


class PartitionedState:
    """A `StateHolder` for the primary. Its owner lets one thread at a time in, but for `fetch`.

    Args:
      shard: the primary's part of the state.
      peers: the other servers.
      apply_log: log to which updates are written.
      clock: clock for spans.

    Attributes:
      current: lends the newest parameters.
      first_applied: monotonic seconds of the phase's first update; 0 before it.
      last_applied: monotonic seconds of the phase's last update.
    """

    def __init__(self, shard: Shard, peers: Peers, apply_log: ApplyLog, clock: Clock) -> None:
        self._shard, self._peers, self._apply_log, self._now = shard, peers, apply_log, clock.monotonic
        self._is_divided = bool(peers)
        self.current: Callable[[], Any] = shard.publisher.current
        self._phase_number = 0
        self._change: Change = "optimizer"
        # (worker, incarnation) -> versions whose parts it may still read at the other servers
        self._unread: dict[tuple[int, int], set[int]] = {}
        self._spans: list[tuple[float, float, int, int]] = []  # begin, seconds, phase and units of each update
        self.first_applied = self.last_applied = 0.0

    @property
    def empty(self) -> bool:
        """Return whether no phase was entered yet."""
        return self._shard.empty

    def check(self, phase: Phase) -> None:
        """Refuse a phase of a run with another number of servers (see `Peers.check`)."""
        self._peers.check(phase)

    def reserve(self) -> None:
        """Take the memory of the first phase now (see `Shard.reserve`)."""
        self._shard.reserve()

    def fetch(self, phase: Phase) -> TrainState:
        """Fetch the phase's starting state (see `Shard.fetch`); called while others use the state that is here."""
        return self._shard.fetch(phase)

    def adopt_state(self, phase: Phase, state: TrainState | None) -> None:
        """Take over the starting state of `phase`; None where it is here already."""
        if state is not None:
            self._shard.adopt_state(state)
        self._phase_number, self._unread = phase.id.number, {}
        self.first_applied = self.last_applied = 0.0
        self._apply_log.clear()
        self._peers.enter(phase)

    def begin(self, compensation: Compensation | None, change: Change, wire: str) -> None:
        """Begin the phase with the state that was taken over.

        Args:
          compensation: compensation of the phase's protocol for staleness.
          change: kind of update: it decides the use of the contributions.
          wire: number format of contributions and parameters between processes.
        """
        self._change = change
        self._shard.begin(compensation, wire)
        self._shard.publish()

    def take_report(self) -> tuple[Span, ...]:
        """Return and forget the spans of what was applied."""
        spans, self._spans = self._spans, []
        return tuple(Span("apply", "server", *span) for span in spans)

    def opt_state(self) -> Any:
        """Return a copy of the optimizer state (see `Shard.opt_state`)."""
        return self._shard.opt_state()

    def upload_opt_state(self, worker: int, opt_state: Any) -> None:
        """Keep what a worker that stepped by itself leaves behind."""
        self._shard.upload_opt_state(worker, opt_state)

    def pack_inside(self, whole: np.ndarray) -> None:
        """Copy the primary's part to its place in a buffer of the whole state."""
        self._shard.pack_inside(whole)

    def snapshot_part(self, sequence: int, final: bool, left: tuple[int, ...]) -> list[PartSnapshot]:
        """Ask the other servers for their parts (see `Peers.snapshot_part`)."""
        return self._peers.snapshot_part(sequence, final, left)

    def detach_log(self) -> Callable[[], None]:
        """Return what writes the log of the updates so far (see `ApplyLog.detach`)."""
        return self._apply_log.detach()

    def gather(self, snapshots: Sequence[PartSnapshot], whole: np.ndarray) -> None:
        """Copy the other servers' parts into the buffer of the whole state (see `Peers.gather`)."""
        self._peers.gather(snapshots, whole)

    # --- what the core decides (StateHolder) ---

    def check_base(self, push: Push) -> None:
        """See `StateHolder`."""
        self._shard.check_base(push)

    def record_read(self, push: Push) -> None:
        """See `StateHolder`."""
        if not push.push_only:
            self._unread.pop((push.worker, push.incarnation), None)

    def apply(self, update: Decided, sequence: int) -> None:
        """See `StateHolder`; the other servers begin while the primary's shard is updated."""
        started, units = self._now(), update.units
        if self._is_divided:
            wanted = tuple(sorted(set().union(*self._unread.values())))
            self._peers.update(Update(sequence, update.pushes, update.lr_factor, wanted, update.weights))
        self._shard.update(
            update.pushes,
            update.contributions,
            rate=update.lr_factor,
            blend=update.blend,
            weights=update.weights,
            change=self._change,
        )
        self.last_applied = self._now()
        self.first_applied = self.first_applied or self.last_applied
        self._apply_log.write(
            Entry(
                self._phase_number,
                sequence,
                units,
                base=update.base,
                rate=update.lr_factor,
                weight=float(len(units)),
                blend=update.blend,
                parts=update.parts,
                stepped=tuple([Stepped(*push) for push in update.stepped]) if update.local_updates else (),
            )
        )
        self._spans.append((started, self.last_applied - started, self._phase_number, len(units)))

    def discard(self, push: Push) -> None:
        """See `StateHolder`."""
        self._peers.discard(push)

    def record_sent(self, push: Push, sequence: int) -> None:
        """See `StateHolder`; the other servers keep this version for the worker until it has read it."""
        if self._is_divided and not push.push_only:
            reader = push.worker, push.incarnation
            unread = self._unread.setdefault(reader, set())
            if not push.units and unread:  # a pull reads what it is answered; a repeat of it may read the last answer
                self._unread[reader] = unread = {max(unread)}
            unread.add(sequence)
        self._shard.record_sent(push, sequence, self.current)

    def forget(self, worker: int, incarnation: int) -> None:
        """See `StateHolder`."""
        for reader in [reader for reader in self._unread if reader[0] == worker and reader[1] <= incarnation]:
            del self._unread[reader]
        self._shard.forget(worker, incarnation)
        self._peers.forget(worker, incarnation)

    def retain(self, contribution: Any) -> Any:
        """See `StateHolder`; the caller's buffer is filled again when its call has ended."""
        return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, contribution)

    def take_uploads(self, left: tuple[tuple[int, int], ...], sequence: int) -> None:
        """See `StateHolder`."""
        self._shard.take_uploads([worker for worker, _ in left])
        self._apply_log.record_left(Left(self._phase_number, sequence, left))
