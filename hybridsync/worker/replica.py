"""A lock-step replica of the training state: updated once a step, captured between steps.

In the process runtime every worker has its own; in one process all workers share one, and the first of them to bring
a step's total updates it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hybridsync.core.clock import Clock
from hybridsync.core.errors import StalePhase
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.core.units import UnitSet
from hybridsync.devices.placement import let_go_of_arguments
from hybridsync.interfaces.messages import GroupReply, Snapshot, StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.storage.apply_log import ApplyLog
from hybridsync.storage.apply_log_entries import Entry
from hybridsync.training.averaging import copied
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.compiled_programs import Parameters, Programs
from hybridsync.training.snapshot import Account, LentView, ReaderAt, SnapshotBuffer, fetch
from hybridsync.training.state import TrainState


class Replica:
    """One copy of the state, in lock-step and group phases.

    The lock guards state and position: a snapshot sees whole steps only.

    Args:
      programs: the compiled programs.
      reader_at: returns a reader of the role at an address that holds a phase's starting state.
      clock: clock for the stamps of the first and last update.
      apply_log: log of updates; the member that is captured writes them down.
      allocate: makes buffers for snapshots (see `SnapshotBuffer`).
    """

    def __init__(
        self,
        programs: Programs,
        reader_at: ReaderAt,
        clock: Clock,
        apply_log: ApplyLog,
        allocate: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        self._programs, self._reader_at, self._clock, self._apply_log = programs, reader_at, clock, apply_log
        self._snapshot_buffer = SnapshotBuffer(programs.state_layout, allocate)
        self._lock = threading.Lock()
        self._room: np.ndarray | None = None
        self._state: TrainState | None = None
        self._parameters: Sequence[Parameters] = ()
        self._phase: Phase | None = None
        self._step = self._sequence = 0
        self._is_captured = False
        self._kept: Account | None = None  # the state in the second buffer
        self._applied, self._dropped = UnitSet(), UnitSet()
        self._fingerprint = ""
        self._stamps = 0.0, 0.0  # one value, which a heartbeat reads without the lock: an update may hold it for long

    def enter(self, phase: Phase, worker: int) -> None:
        """Hold the phase's starting state: keep it where it is held already, else take it over.

        Args:
          phase: phase to enter.
          worker: worker that enters it; threads share the replica.

        Raises:
          HybridSyncError: what was handed over is not what was captured.
        """
        with self._lock:
            is_captured = phase.mode.holder(phase.members) == ("worker", worker)
            if self._phase is not None and self._phase.id == phase.id:
                self._is_captured |= is_captured
                return
            if self._state is None or self._fingerprint != phase.fingerprint:
                # The old state stays until its successor is here: should the sender die, another role may need it.
                room, self._room = self._room, None
                layout, (source, digest) = self._programs.state_layout, (phase.source, phase.fingerprint)
                fetched = fetch(source, phase.snapshot_id, digest, layout, self._reader_at, buffer=room)
                self._state = self._programs.placement.put(fetched)
                del fetched, room
                let_go_of_arguments()
            self._apply_log.clear()  # the phase's starting state was captured, and its updates were written, elsewhere
            self._phase, self._is_captured, self._kept = phase, is_captured, None
            self._step, self._sequence = 0, phase.sequence
            self._applied, self._dropped = UnitSet(phase.applied), UnitSet(phase.dropped)
            taken = self._state
            assert taken is not None
            self._state = self._programs.entered(taken)
            self._see()
            self._fingerprint = phase.fingerprint if self._state is taken else ""
            self._stamps = 0.0, 0.0

    @property
    def holds(self) -> bool:
        """Return whether there is a state."""
        return self._state is not None

    def parameters(self, worker: int) -> Parameters:
        """Return the replica's own parameters as a worker has them; only valid until its next update."""
        views = self._parameters
        if not views:
            with self._lock:
                views = self._parameters = self._parameters or self._programs.placement.views(self.joint_parameters)
        return views[worker % len(views)]

    def _see(self) -> None:
        """Have the parameters seen as they are now: at several seats once somebody asks, as one program seldom does."""
        at = self._programs.placement
        self._parameters = at.views(self.joint_parameters) if at.num_seats == 1 else ()

    @property
    def joint_parameters(self) -> Parameters:
        """The replica's own parameters where it lies; only valid until its next update."""
        assert self._state is not None
        return Parameters(self._state.params, self._state.model_state)

    def update(
        self,
        step: int,
        units: tuple[int, ...],
        total: Any,
        factor: float,
        *,
        slots: tuple[int, ...] = (),
        dropped: tuple[int, ...] = (),
    ) -> None:
        """Apply the total of `step` with `units`; a step that was applied already is ignored.

        Args:
          step: number of the step, counted from the phase's beginning.
          units: units whose contributions are in the total; without any the state stays as it is.
          total: total of the members' contributions.
          factor: factor of the protocol on the schedule's learning rate.
          slots: places of the step that they have (see `hybridsync.core.step_assignment`); () for the first ones.
          dropped: the step's other units, which are final.
        """
        with self._lock:
            if step < self._step:
                return
            assert self._state is not None and self._phase is not None and step == self._step
            self._step += 1
            self._dropped.add_all(dropped)
            if not units:
                return
            total = self._programs.placement.at_replica(total)
            self._state = self._programs.update(self._state, total, units=len(units), factor=factor, blend=1.0)
            self._see()
            self._sequence += 1
            before = len(self._applied)
            self._applied.add_all(units)
            self._fingerprint = ""
            self._stamp()
            phase_id, base, weight = self._phase.id.number, self._sequence - 1, float(len(units))
            self._apply_log.write(
                Entry(phase_id, self._sequence, units, base, rate=factor, weight=weight, blend=1.0, slots=slots)
            )
            if self._is_captured and self._phase.passes_place(before, before + len(units)):
                self._keep(self._state)

    def _keep(self, state: TrainState) -> None:
        """Keep the state, which has come to a place, until the chief asks for it; a later place takes it over."""
        if self._snapshot_buffer.keep(lambda buffer: self._programs.state_layout.pack(state, out=buffer)):
            self._kept = self._account()

    def settle(self) -> None:
        """Wait until the last update has ended, and has read its total."""
        with self._lock:
            jax.block_until_ready(self._state)

    def branch(self, worker: int) -> TrainState:
        """Return a copy of the state for a worker that goes its own way from here."""
        with self._lock:
            assert self._state is not None
            return copied(self._programs.placement.at_worker(self._state, worker))

    def store_full_sync(self, reply: GroupReply, state: TrainState, factor: float) -> None:
        """Hold what a full synchronisation has made of everybody's replicas; threads share it: the first brings it.

        Args:
          reply: reply to the request for that group round.
          state: the averaged state; no other caller may donate a part of it.
          factor: factor of the protocol on the schedule's learning rate of each unit.
        """
        with self._lock:
            assert self._phase is not None
            if reply.sequence <= self._sequence:
                return
            self._state = self._programs.placement.at_replica(state)
            self._see()
            self._sequence, self._fingerprint = reply.sequence, ""
            self._applied, self._dropped = UnitSet(reply.applied), UnitSet(reply.dropped)
            phase_id = self._phase.id.number
            for update in reply.updates:
                self._apply_log.write(Entry.of_groups(phase_id, update, factor))

    def stamp_update(self) -> None:
        """Note that a unit was applied now to a replica that goes its own way."""
        with self._lock:
            self._stamp()

    def _stamp(self) -> None:
        now = self._clock.monotonic()
        self._stamps = self._stamps[0] or now, now

    def held(self) -> StateVersion | None:
        """Return what is held between two phases, with its fingerprint; None before the first."""
        with self._lock:
            if self._state is None or self._phase is None:
                return None
            if not self._fingerprint:
                self._fingerprint = fingerprint(self._state)
            return StateVersion(self._phase.id, len(self._applied), self._sequence, self._fingerprint)

    def stamps(self) -> tuple[float, float]:
        """Return the monotonic seconds of the phase's first and last update, 0 before them; waits for no update."""
        return self._stamps

    def reserve(self, *, captured: bool) -> None:
        """Take the memory of the first starting state that is handed over now: training will wait for it then.

        Args:
          captured: whether snapshots may be taken of this replica: then their memory is reserved, too.
        """
        room = self._programs.state_layout.empty()
        room.fill(0)  # its pages exist from now on
        with self._lock:
            self._room = room
        if captured:
            self._snapshot_buffer.reserve()

    def take_snapshot(self, phase_id: PhaseId, final: bool, place: int = 0) -> Snapshot:
        """Copy the state between two steps; a lock-step phase ends by its stream, so `final` refuses nothing here.

        The state that was kept at `place`, or at a later one, is taken in place of the newest.

        Raises:
          StalePhase: the replica is in another phase.
          WaitTimeout: a reader still reads the last snapshot.
        """
        with self._lock:
            self._expect(phase_id)  # a late call must not cost the last snapshot
        # Before the lock: heartbeats and steps do not wait for the last snapshot's readers
        with self._snapshot_buffer.room():
            with self._lock:
                state = self._expect(phase_id)
                account, self._kept = self._kept, None
                if account is not None and not final and 0 < place <= account.units:
                    self._snapshot_buffer.use_kept()
                else:
                    self._snapshot_buffer.pack(state)
                    account = self._account()
                write_log = self._apply_log.detach()
            write_log()  # heartbeats and steps do not wait for the disk
            return self._snapshot_buffer.finalize(phase_id, **vars(account))

    def _account(self) -> Account:
        first, last = self._stamps
        return Account(self._sequence, self._applied.ranges(), self._dropped.ranges(), first, last)

    def _expect(self, phase_id: PhaseId) -> TrainState:
        """Return the state, if it is one of `phase_id`."""
        if self._phase is None or self._phase.id != phase_id or self._state is None:
            have = self._phase.id if self._phase else NO_PHASE
            named, held = phase_id.beside(have)
            raise StalePhase(f"phase {named} was named, but this replica is in phase {held}; ask the chief again")
        return self._state

    def read(self, snapshot_id: int, into: Any) -> None:
        """Copy a snapshot (see `SnapshotBuffer.read`)."""
        self._snapshot_buffer.read(snapshot_id, into)

    def lend(self, snapshot_id: int) -> LentView:
        """Lend a snapshot (see `SnapshotBuffer.lend`)."""
        return self._snapshot_buffer.lend(snapshot_id)
