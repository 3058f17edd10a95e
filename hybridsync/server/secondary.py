"""A parameter server that is not the primary: keeps its part of the state and applies what the primary decides."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridsync.core.clock import Clock
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.errors import HybridSyncError, InvalidMessage, ServersApart, StalePhase, WaitTimeout
from hybridsync.core.plan import NO_PHASE, PhaseId, most_issued
from hybridsync.core.work_deadlines import UNWATCHED, Watching
from hybridsync.interfaces.messages import Push, RoleState, Snapshot, StateVersion, Update
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import BufferView
from hybridsync.interfaces.reports import Span
from hybridsync.protocols.base import Change, Protocol
from hybridsync.server.partition import Contributions, Part
from hybridsync.server.publisher import ParameterPool, PublishedParameters
from hybridsync.server.push_checks import (
    check_block,
    check_current,
    check_member,
    check_phase_id,
    check_place,
    check_updates,
    served,
)
from hybridsync.server.shard_state import RELEASE_SECS, Progress, Shard
from hybridsync.server.turns import Entrance, Turn
from hybridsync.training.buffer_layout import first_non_finite
from hybridsync.training.snapshot import LentView, ReaderAt, SnapshotBuffer
from hybridsync.training.state import TrainState


@dataclass(frozen=True)
class _Block:
    contribution: Any
    served: BufferView


class Secondary:
    """Stages contributions, applies them in the primary's order, and lends exactly the parameters that are asked for.

    The condition guards everything below it; it is notified by every update and when a phase ends. A block that was
    staged is kept until the primary applies, discards or forgets it, or another phase is entered.

    Args:
      part: part of the trees that this server keeps.
      reader_at: returns a reader of the role at an address that holds a phase's starting state.
      clock: clock for spans.
      watchdog: watchdog of the process.
      failed: called with the reason why this server cannot go on (see `Turn`).
      allocate: makes buffers for parameters and snapshots (see `ParameterPool`).
    """

    def __init__(
        self,
        part: Part,
        reader_at: ReaderAt,
        clock: Clock,
        watchdog: Watching = UNWATCHED,
        failed: Callable[[HybridSyncError], None] = lambda error: None,
        allocate: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        self._part, self._clock = part, clock
        self._pool = ParameterPool(part.programs.parameters_layout, allocate, part.narrow_parameters)
        self._contributions = Contributions(part)
        self._shard = Shard(part, self._pool, reader_at, watchdog)
        self._snapshot_buffer = SnapshotBuffer(part.state.layout, allocate)
        self._condition = threading.Condition()
        self._turn = Turn(self._condition, self._abandon, failed)
        self._entrance = Entrance(self._condition, transfer_secs(part.state.whole.nbytes))
        self._phase: Phase | None = None
        self._open = False
        self._sequence = 0
        self._staged: dict[Push, _Block] = {}
        self._kept: dict[int, PublishedParameters] = {}
        self._incarnations: dict[int, int] = {}
        self._spans: list[Span] = []
        self._change: Change = "optimizer"
        self._left: tuple[int, ...] | None = None

    # --- what the chief calls ---

    def enter(self, phase: Phase) -> StateVersion:
        """Take over this part of the phase's starting state; repeating the call is harmless.

        Raises:
          PlanError, InvalidMessage: no server can serve it (see `hybridsync.server.push_checks.served`).
          StalePhase: a newer phase is served or being entered.
          WaitTimeout: the state did not arrive in time.
          HybridSyncError: what arrived is not the state that was captured.
        """
        protocol = served(phase, self._part.programs.workload)
        return self._entrance.enter(
            phase.id,
            held=lambda: self._held(phase),
            leave=self._close,
            fetch=lambda: self._shard.fetch(phase),
            swap=lambda state: self._begin(phase, protocol, state),
        )

    def _held(self, phase: Phase) -> StateVersion | None:
        """Return what is held of `phase`; None where it may be entered.

        Raises:
          StalePhase: a newer phase is served.
        """
        if self._phase is not None and phase.id == self._phase.id:
            units = sum(stop - start for start, stop in phase.applied)
            return StateVersion(phase.id, units, self._sequence, phase.fingerprint)
        if phase.id.number <= self.phase_id.number:
            offered, held = phase.id.beside(self.phase_id)
            raise StalePhase(f"phase {offered} is not newer than phase {held}, which is served; reserve another")
        return None

    def _close(self) -> None:
        """Take no more blocks of the phase; a restarted chief hears that it does not go on here."""
        self._open = False
        self._condition.notify_all()

    def _abandon(self) -> None:
        """Serve no phase: what the state is, nobody knows. Called under the condition."""
        self._open, self._phase = False, None

    def _begin(self, phase: Phase, protocol: Protocol, state: TrainState) -> StateVersion:
        """Serve `phase` from `state`; called under the condition."""
        with self._turn:
            self._shard.adopt_state(state)
            self._change, self._left = protocol.change(len(phase.members)), None
            self._phase, self._sequence, self._open = phase, phase.sequence, True
            self._shard.begin(protocol.compensated, protocol.wire_dtype)
            self._release([*self._staged], [*self._kept])
            self._publish()
            self._condition.notify_all()
        held = self._held(phase)
        assert held is not None
        return held

    def fence(self, phase_id: PhaseId, worker: int, incarnation: int) -> None:
        """Leave it to the primary, which tells when no update of that worker is on its way here (`forget`)."""

    @property
    def phase_id(self) -> PhaseId:
        """The phase being served."""
        return self._phase.id if self._phase else NO_PHASE

    def role_state(self) -> RoleState | None:
        """Return the phase that is served, for a chief that has not heard of it."""
        with self._condition:
            return RoleState(self._phase, self._open) if self._phase is not None else None

    def take_report(self) -> Progress:
        """Return and forget what happened since the last call; units are told of by the primary."""
        with self._condition:
            spans, self._spans = tuple(self._spans), []
            return Progress(
                self.phase_id,
                applied=(),
                dropped=(),
                staleness=(),
                spans=spans,
                sequence=self._sequence,
                first_applied=0.0,
                last_applied=0.0,
                doing=self._entrance.doing,
            )

    # --- what workers call (ShardBackend) ---

    def stage(self, push: Push, block: BufferView) -> str:
        """Keep a part of a contribution until the primary decides (see `ShardBackend.stage`)."""
        kept = False
        try:
            contribution = self._contributions.unpack(block.buffer)
            is_finite = self._contributions.is_finite(block.buffer)
            if not is_finite and (found := first_non_finite(contribution)):
                return found
            with self._condition:
                check_block(push, self._admit(push), most_issued(self._part.programs.workload))
                self._shard.check_base(push)
                if push not in self._staged:
                    self._staged[push] = _Block(contribution, block)
                    kept = True
            return ""
        finally:
            if not kept:
                block.release()

    def pull_at(self, push: Push) -> BufferView:
        """Lend the parameters after update `push.base` (see `ShardBackend.pull_at`)."""
        with self._condition:
            check_member(push, self._admit(push))
            if not self._condition.wait_for(
                lambda: self._sequence >= push.base or self.phase_id != push.phase_id or not self._open, RELEASE_SECS
            ):
                raise WaitTimeout(
                    f"update {push.base} did not come to server {self._part.server} within {RELEASE_SECS:g} s, which "
                    f"is at {self._sequence}; the primary, server 0, is missing"
                )
            self._expect(push.phase_id)
            snapshot = self._kept.get(push.base)
            if snapshot is None:
                raise StalePhase(
                    f"the parameters after update {push.base} are no longer kept for worker {push.worker}, only those "
                    f"after {sorted(self._kept)}; ask the chief again"
                )
            self._shard.record_sent(push, push.base, lambda: self._pool.lend(snapshot))
            return self._pool.lend(snapshot)

    def download_opt_state(self, push: Push) -> Any:
        """Return this part of the optimizer state that the phase began with (see `Primary.download_opt_state`)."""
        with self._condition:
            self._admit(push)
            return self._shard.opt_state()

    def upload_opt_state(self, push: Push, opt_state: Any) -> None:
        """Keep a part of what a worker leaves behind; the primary tells at the end whose are taken.

        Raises:
          StalePhase: another phase is served.
        """
        with self._condition:
            check_member(push, self._expect(push.phase_id))
            self._shard.upload_opt_state(push.worker, opt_state)

    # --- what the primary calls (ShardPort) ---

    def apply(self, phase_id: PhaseId, updates: tuple[Update, ...]) -> None:
        """Apply staged contributions in the primary's order (see `ShardPort.apply`)."""
        with self._turn:
            self._expect(phase_id)
            news = check_updates(updates, self._sequence)
            self._check_order(news)  # all of them before the first: a refused message changes nothing
            for update in news:
                self._apply(update)
                self._condition.notify_all()

    def discard(self, push: Push) -> None:
        """Drop what was staged for a push (see `ShardPort.discard`)."""
        with self._condition:
            self._expect(push.phase_id)
            self._release([push] if push in self._staged else [], [])

    def forget(self, phase_id: PhaseId, worker: int, incarnation: int) -> None:
        """Drop and refuse a worker's blocks (see `ShardPort.forget`)."""
        check_place(worker)
        with self._condition:
            self._expect(phase_id)
            self._incarnations[worker] = max(self._incarnations.get(worker, 0), incarnation + 1)
            gone = [push for push in self._staged if push.worker == worker and push.incarnation <= incarnation]
            self._release(gone, [])
            self._shard.forget(worker, incarnation)

    def snapshot_part(self, phase_id: PhaseId, sequence: int, final: bool, left: tuple[int, ...] = ()) -> Snapshot:
        """Keep a copy of this part of the state (see `ShardPort.snapshot_part`)."""
        if len(set(left)) < len(left):
            raise InvalidMessage(f"{len(left)} workers left states, {len(set(left))} of them different; name each once")
        with self._condition:
            self._expect(phase_id)
        with self._snapshot_buffer.room():
            with self._turn:
                phase = self._expect(phase_id)
                if self._sequence != sequence:
                    raise self._apart(f"is asked for its state after update {sequence}")
                if final:
                    self._take_uploads(left)
                    self._open = False
                self._snapshot_buffer.pack(self._shard.state)
            return self._snapshot_buffer.finalize(
                phase.id, sequence=sequence, applied=phase.applied, dropped=phase.dropped
            )

    def read(self, snapshot_id: int, into: Any) -> None:
        """Copy a snapshot (see `SnapshotBuffer.read`)."""
        self._snapshot_buffer.read(snapshot_id, into)

    def lend(self, snapshot_id: int) -> LentView:
        """Lend a snapshot (see `SnapshotBuffer.lend`)."""
        return self._snapshot_buffer.lend(snapshot_id)

    def reserve(self) -> None:
        """See `Primary.reserve`."""
        self._snapshot_buffer.reserve()
        self._shard.reserve()

    def take_snapshot(self, phase_id: PhaseId, final: bool, place: int = 0) -> Snapshot:
        """Refuse: the whole state is captured by the primary.

        Raises:
          StalePhase: always.
        """
        raise StalePhase(
            f"server {self._part.server} keeps a part of the state only; the primary, server 0, captures phase "
            f"{phase_id}"
        )

    # --- inside ---

    def _take_uploads(self, left: tuple[int, ...]) -> None:
        if self._left is None:
            if missing := [worker for worker in left if not self._shard.has_uploads([worker])]:
                raise self._apart(f"is to take the optimizer state of worker {missing[0]}, which never came")
            self._shard.take_uploads(left)
            self._left = left

    def _check_order(self, updates: tuple[Update, ...]) -> None:
        for expected, update in enumerate(updates, self._sequence + 1):
            missing = [push for push in update.pushes if push not in self._staged]
            if missing or update.sequence != expected:
                before = update.sequence != expected
                what = "an update before it" if before else f"the contribution of worker {missing[0].worker} to it"
                raise self._apart(f"is to apply update {update.sequence}, but {what} never came")

    def _apply(self, update: Update) -> None:
        assert self._phase is not None
        started = self._clock.monotonic()
        num_units = sum(len(push.units) for push in update.pushes)
        contributions = [self._staged[push].contribution for push in update.pushes]
        blend = 1.0  # the model's state is the primary's
        self._shard.update(
            update.pushes,
            contributions,
            rate=update.rate,
            blend=blend,
            weights=update.weights,
            change=self._change,
        )
        self._sequence = update.sequence
        self._release(update.pushes, [at for at in self._kept if at not in update.wanted])
        self._keep()
        secs = self._clock.monotonic() - started
        self._spans.append(Span("apply", "server", started, secs, phase=self._phase.id.number, units=num_units))

    def _publish(self) -> None:
        self._shard.publish()
        self._keep()

    def _keep(self) -> None:
        self._kept[self._sequence] = self._pool.current()

    def _release(self, pushes: Any, sequences: Any) -> None:
        for push in pushes:
            self._staged.pop(push).served.release()
        for sequence in sequences:
            self._kept.pop(sequence).release()

    def _expect(self, phase_id: PhaseId) -> Phase:
        return check_phase_id(phase_id, self._phase)

    def _admit(self, push: Push) -> Phase:
        phase = self._expect(push.phase_id)
        check_current(push, self._open, self._incarnations.get(push.worker, 0))
        return phase

    def _apart(self, what: str) -> ServersApart:
        return ServersApart(
            f"server {self._part.server} is at update {self._sequence} of phase {self.phase_id} and {what}: the "
            "servers have come apart; run the same command again to resume from the last checkpoint"
        )
