"""The primary of a job's servers: lets the threads of its callers into a `ServerCore`, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging

from hybridsync.core.clock import Clock
from hybridsync.core.deadlines import UPLOAD_SECS, transfer_secs
from hybridsync.core.errors import HybridSyncError, StillHeld
from hybridsync.core.plan import PhaseId
from hybridsync.core.work_deadlines import UNWATCHED, Watching
from hybridsync.interfaces.messages import Push, PushReply, RoleState, Snapshot, StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.protocols.base import FLOAT32
from hybridsync.server.partition import PRIMARY, partition
from hybridsync.server.partitioned_state import PartitionedState
from hybridsync.server.push_checks import check_phase_id
from hybridsync.server.replication import PartSnapshot, Peers
from hybridsync.server.sequencer import Sequencer
from hybridsync.server.server_core import HeldCall, ServerCore
from hybridsync.server.shard_state import Progress, Publisher, Shard
from hybridsync.server.turns import Entrance, Turn
from hybridsync.storage.apply_log import ApplyLog
from hybridsync.training.buffer_layout import first_non_finite
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.snapshot import Account, LentView, ReaderAt, SnapshotBuffer
from hybridsync.training.state import TrainState

HELD_SECS = 20.0
"""How long one call waits for the rule's release before the worker is told to ask again; a client waits longer."""


class Primary:
    """The server that runs the rule; it keeps the whole state, or its part of it where there are other servers.

    The condition guards everything below it; it is notified at the end of each turn, when calls may be released. The
    other servers are notified of every decision in the order in which it was made under this condition. Heartbeats need
    it, so nothing that takes as long as a transfer of the state is waited for under it.

    Args:
      programs: the run's compiled programs; of them `update` and `total` are used.
      publisher: lends parameters to callers.
      reader_at: returns a reader of the role at an address that holds a phase's starting state.
      clock: clock for spans.
      apply_log: log to which updates are written.
      completed: set when the phase's units are all applied, so that the chief hears of it at once.
      peers: the other servers; None if there is no other server.
      watchdog: watchdog of the process.
      failed: called with the reason why this server cannot go on (see `Turn`).
      allocate: makes buffers for snapshots (see `SnapshotBuffer`).
    """

    def __init__(
        self,
        programs: Programs,
        publisher: Publisher,
        reader_at: ReaderAt,
        clock: Clock,
        apply_log: ApplyLog,
        completed: threading.Event,
        peers: Peers | None = None,
        watchdog: Watching = UNWATCHED,
        failed: Callable[[HybridSyncError], None] = lambda error: None,
        allocate: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        peers = peers or Peers.none(partition(programs, 1))
        shard = Shard(peers.parts[PRIMARY], publisher, reader_at, watchdog)
        self._clock, self._completed = clock, completed
        self._snapshot_buffer = SnapshotBuffer(programs.state_layout, allocate)
        self._condition = threading.Condition()
        self._turn = Turn(self._condition, self._abandon, failed)
        self._entrance = Entrance(self._condition, transfer_secs(programs.state_layout.nbytes))
        self._state = PartitionedState(shard, peers, apply_log, clock)
        self._core = ServerCore(self._state, clock.monotonic, Sequencer(programs.workload), self._keep)
        self._sequencer = self._core.sequencer
        self._fingerprint = ""
        self._entered = ""
        self._kept: tuple[Account, list[PartSnapshot]] | None = None  # the state in the second buffer
        self._gathers = False  # the other servers' parts of a snapshot: each keeps one

    # --- what the chief calls ---

    def enter(self, phase: Phase) -> StateVersion:
        """Take over the phase's starting state and serve it; repeating the call is harmless.

        The phase before takes no more pushes from now on. While the state is fetched it can still be captured.

        Raises:
          ConfigError: the protocol is unknown, has no server rule, or cannot work with these members.
          InvalidMessage: the phase has no members.
          StalePhase: a newer phase, or a different one of that number, is served or being entered.
          DamagedState: what arrived is not the state that was captured.
          WaitTimeout: the state did not arrive in time.
        """
        return self._entrance.enter(
            phase.id,
            held=lambda: self._held_of(phase),
            leave=self._close,
            fetch=lambda: self._fetch(phase),
            swap=lambda state: self._begin(phase, state),
        )

    def _held_of(self, phase: Phase) -> StateVersion | None:
        """Return what is held of `phase`; None where it may be entered."""
        if self._sequencer.check_phase(phase):
            return self._held()
        self._state.check(phase)
        return None

    def _fetch(self, phase: Phase) -> TrainState | None:
        """Return the starting state of `phase`; None where it is here: a closed phase changes nothing any more."""
        kept = not self._state.empty and self._fingerprint == phase.fingerprint
        return None if kept else self._state.fetch(phase)

    def _begin(self, phase: Phase, state: TrainState | None) -> StateVersion:
        """Serve `phase` from `state`, or from the one that is here; called under the condition."""
        self._fingerprint, self._kept = "", None
        with self._turn:
            self._state.adopt_state(phase, state)
            self._core.enter(phase)
            self._state.begin(self._sequencer.compensation, self._sequencer.change, phase.protocol.wire_dtype)
        self._entered = phase.fingerprint
        self._release()
        return self._held()

    def _close(self) -> None:
        """Refuse every later push of the phase, also those that wait."""
        self._core.close()
        self._release()

    def break_off(self, reason: str) -> None:
        """Refuse every later push of the phase, also those that wait: the run is over, whatever it is that they say."""
        with self._condition:
            self._close()

    def _abandon(self) -> None:
        """Serve no phase: what the state is, nobody knows. Called under the condition."""
        self._fingerprint = ""
        self._core.abandon()
        self._release()

    def reserve(self) -> None:
        """Take the memory of snapshots and of the first phase now, for which training waits later.

        Raises:
          HybridSyncError: there is no memory for them.
        """
        self._snapshot_buffer.reserve()
        self._state.reserve()

    def take_snapshot(self, phase_id: PhaseId, final: bool, place: int = 0) -> Snapshot:
        """Copy the whole state between two updates; `final` refuses every later push of the phase.

        The state that was kept at `place`, or at a later one, is taken in place of the newest.

        Raises:
          StalePhase: another phase is served.
          WaitTimeout: a reader still reads the last snapshot, or another server did not hand over its part in time.
          HybridSyncError: another server failed.
        """
        with self._condition:
            check_phase_id(phase_id, self._sequencer.phase)  # a late call must not cost the last snapshot
        # Before the condition: readers of the last snapshot may take long, pushes go on
        with self._snapshot_buffer.room():
            with self._turn:
                phase = check_phase_id(phase_id, self._sequencer.phase)
                left: tuple[int, ...] = ()
                if final:
                    self._close()
                    left = self._take_uploads(phase)
                kept, self._kept = self._kept, None
                if kept is not None and not final and 0 < place <= kept[0].units:
                    self._snapshot_buffer.use_kept()
                    account, parts = kept
                else:
                    self._snapshot_buffer.fill(self._state.pack_inside)
                    account, parts = self._account(), self._state.snapshot_part(self._sequencer.sequence, final, left)
                self._gathers = bool(parts)
                write_log = self._state.detach_log()
            write_log()  # heartbeats and pushes do not wait for the disk
            try:
                self._snapshot_buffer.complete(lambda whole: self._state.gather(parts, whole))
            finally:
                self._gathers = False
            snapshot = self._snapshot_buffer.finalize(phase.id, **vars(account))
        if final:
            self._fingerprint = snapshot.held.fingerprint
        return snapshot

    def read(self, snapshot_id: int, into: Any) -> None:
        """Copy a snapshot (see `SnapshotBuffer.read`)."""
        self._snapshot_buffer.read(snapshot_id, into)

    def lend(self, snapshot_id: int) -> LentView:
        """Lend a snapshot (see `SnapshotBuffer.lend`)."""
        return self._snapshot_buffer.lend(snapshot_id)

    def fence(self, phase_id: PhaseId, worker: int, incarnation: int) -> None:
        """Refuse `worker` up to `incarnation`: its process is gone, and so is what it pushed and nobody applied.

        Raises:
          UnknownRole: no run has a worker of that number.
        """
        with self._turn:
            self._core.fence(phase_id, worker, incarnation)
            self._end_turn()
            self._condition.notify_all()  # nobody waits for what that process would leave behind

    def role_state(self) -> RoleState | None:
        """Return the phase that is served, for a chief that has not heard of it."""
        with self._condition:
            phase = self._sequencer.phase
            return RoleState(phase, self._sequencer.open) if phase is not None else None

    def take_report(self) -> Progress:
        """Return and forget what happened since the last call."""
        with self._condition:
            applied, dropped, staleness = self._sequencer.count.take_report()
            return Progress(
                self._sequencer.phase_id,
                applied,
                dropped,
                staleness,
                spans=self._state.take_report(),
                sequence=self._sequencer.sequence,
                first_applied=self._state.first_applied,
                last_applied=self._state.last_applied,
                doing=self._entrance.doing,
            )

    @property
    def phase_id(self) -> PhaseId:
        """The phase being served."""
        return self._sequencer.phase_id

    @property
    def wire_dtype(self) -> str:
        """Return the number format on the wire in the phase being served (see `Protocol.wire_dtype`)."""
        phase = self._sequencer.phase
        return FLOAT32 if phase is None else phase.protocol.wire_dtype

    # --- what workers call ---

    def pull(self, push: Push) -> tuple[PushReply, Any]:
        """Return the current sequence and parameters.

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date.
          UnknownRole: the caller takes no part in the phase.
        """
        with self._turn:
            answer = self._core.pull(push), self._state.current()
            self._end_turn()
            return answer

    def idle(self, push: Push) -> None:
        """Hear that a worker has nothing to compute: nobody is to wait for it.

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date.
          UnknownRole: the caller takes no part in the phase.
        """
        with self._turn:
            self._core.idle(push)
            self._end_turn()

    def ready(self, push: Push) -> None:
        """Wait until the rule grants the transfer of what the worker would push.

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date.
          UnknownRole: the caller takes no part in the phase.
          StillHeld: it is not granted yet; repeat the call.
        """
        with self._turn:
            call = self._core.ready(push)
            self._end_turn()
            self._await(call, "is not granted its transfer yet by", "say again that it is ready")

    def push_pull(self, push: Push, contribution: Any, *, is_finite: bool = False) -> tuple[PushReply, Any]:
        """Offer a contribution tree; returns when the rule releases it, with the newest parameters then.

        A unit is applied once: a repeated push waits for the first one's release and gets its result. A push stays held
        when its call ends; the same units find it again. A contribution that is not finite is dropped without asking
        the rule.

        Args:
          push: what is pushed.
          contribution: what it brings.
          is_finite: whether the contribution is known to be.

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date; nothing was applied.
          InvalidMessage: the units or the base cannot be.
          StillHeld: the rule has not released the push yet; push the same units again.
        """
        found = push.non_finite if is_finite else first_non_finite(contribution) or push.non_finite
        with self._turn:
            reply = self._core.push(push._replace(non_finite="") if push.non_finite else push, contribution, found)
            if isinstance(reply, HeldCall):
                self._end_turn()
                reply = self._await(reply, "is still held by", "push the same units again")
                return reply, self._state.current()
            answer = reply, self._state.current()  # before the turn ends, in which held pushes may be applied
            self._end_turn()
            return answer

    def download_opt_state(self, push: Push) -> Any:
        """Return the optimizer state that the phase began with, for a worker that makes local updates.

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date.
          UnknownRole: the caller takes no part in the phase.
        """
        with self._turn:
            self._sequencer.admit(push)
            return self._state.opt_state()

    def upload_opt_state(self, push: Push, opt_state: Any) -> None:
        """Take the optimizer state that a worker leaves behind, as it was after the push of `push.units`.

        The phase may have ended; what comes after its final snapshot, or is of another push than the worker's last one
        that was applied, is not taken.

        Raises:
          StalePhase: the server is in another phase.
        """
        with self._turn:
            if self._core.upload_opt_state(push):
                self._state.upload_opt_state(push.worker, opt_state)
                self._condition.notify_all()

    # --- inside ---

    def _keep(self) -> None:
        """Keep the state, which has come to a place, until the chief asks for it; a later place takes it over.

        Not while another snapshot is gathered: the other servers keep one part each.
        """
        if not self._gathers and self._snapshot_buffer.keep(self._state.pack_inside):
            self._kept = self._account(), self._state.snapshot_part(self._sequencer.sequence, False, ())

    def _account(self) -> Account:
        count, state = self._sequencer.count, self._state
        return Account(
            self._sequencer.sequence,
            applied=count.applied.ranges(),
            dropped=count.dropped.ranges(),
            first_applied=state.first_applied,
            last_applied=state.last_applied,
        )

    def _take_uploads(self, phase: Phase) -> tuple[int, ...]:
        """Wait for what the workers leave behind; returns whose optimizer states make up the next phase's."""
        core = self._core
        self._condition.wait_for(lambda: not core.missing_uploads, UPLOAD_SECS)
        left = core.take_uploads()
        if missing := sorted(self._sequencer.last_applied.keys() - set(left)):
            logging.warning(
                "phase %s: worker(s) %s left no optimizer state behind within %g s; the mean is of %s",
                phase.id,
                ", ".join(map(str, missing)),
                UPLOAD_SECS,
                ", ".join(map(str, left)) or "nobody's",
            )
        return left

    def _await(self, call: HeldCall, what: str, again: str) -> PushReply:
        """Wait for a call's end; returns its reply.

        Raises:
          HybridSyncError: the call is refused.
          StillHeld: it has not ended yet; its push is held on.
        """
        if self._condition.wait_for(lambda: call.outcome is not None, HELD_SECS):
            check_phase_id(call.push.phase_id, self._sequencer.phase)  # this thread may wake up in the next one
            return self._core.answer(call)
        self._core.withdraw(call)
        push = call.push
        raise StillHeld(
            f"the push of worker {push.worker} with units {push.units} {what} {self._sequencer.waiting_for()}: {again}"
        )

    def _end_turn(self) -> None:
        """Let callers go whose calls have ended, and tell the chief of a phase whose units are all applied."""
        if self._core.release():
            self._condition.notify_all()
        if self._sequencer.count.complete:
            self._completed.set()

    def _release(self) -> None:
        """Wake all that wait: the phase takes no more pushes, or another one is served."""
        self._core.release()
        self._condition.notify_all()

    def _held(self) -> StateVersion:
        return StateVersion(self.phase_id, len(self._sequencer.count.applied), self._sequencer.sequence, self._entered)
