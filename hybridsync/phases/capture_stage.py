"""The commands STOP_LEASES, CAPTURE and CAPTURE_LIVE: a phase is drained, and its state captured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hybridsync.chief.run_control import RunControl
from hybridsync.interfaces.messages import Snapshot
from hybridsync.interfaces.ports import SnapshotSource
from hybridsync.phases import state_machine
from hybridsync.phases.controller_state import ControllerState
from hybridsync.phases.member_waits import TICK_SECS
from hybridsync.phases.process_groups import check_replicas
from hybridsync.phases.progress_watchdog import ProgressWatchdog
from hybridsync.phases.recovery import GONE, Reach
from hybridsync.phases.reporter import Reporter
from hybridsync.phases.save_schedule import SaveSchedule
from hybridsync.telemetry.switch_costs import StageTimer


class CaptureStage:
    """Drains the current phase, and captures the state at the role that holds it.

    Args:
      state: the current phase; takes the new snapshot.
      workload: units of the run.
      control: leases, and the states that the roles hold.
      holder_at: returns the role at an address that can take a snapshot of the state.
      pace: knows whether all members have come back, and how long that may take.
      saving: knows at which place the next evaluation is.
      reporter: writes the record.
      timer: measures the stages.
      tick: called while members are waited for.
    """

    def __init__(
        self,
        state: ControllerState,
        workload: int,
        control: RunControl,
        holder_at: Callable[[str], SnapshotSource],
        pace: ProgressWatchdog,
        saving: SaveSchedule,
        reporter: Reporter,
        timer: StageTimer,
        tick: Callable[[], None],
    ) -> None:
        self._state, self._workload, self._control, self._holder_at = state, workload, control, holder_at
        self._pace, self._saving, self._reporter = pace, saving, reporter
        self._timer, self._tick = timer, tick

    def drain(self) -> state_machine.Event:
        """Stop the leases; where the members hold the state, wait until everybody has come back.

        Raises:
          PhaseBroken: a member was lost, or was waited for too long.
          WaitTimeout: these are threads, which cannot be given up.
        """
        phase = self._state.current_phase
        started = self._timer.start()
        self._control.close_leases()
        while not phase.mode.is_served and not self._control.wait_until(self._pace.is_drained, TICK_SECS):
            self._tick()
            if self._control.broken:
                raise self._control.as_broken()
            self._pace.check(phase)
        if phase.mode.moves_together and self._control.broken:  # which ends the wait, too: some are still in a step
            raise self._control.as_broken()
        self._timer.restart()
        self._timer.record("drain", started)
        if ended := not phase.mode.is_served and self._pace.units_reached() >= phase.end_units:
            self._state.reason = "planned"
        return state_machine.Drained(ended, last=phase.end_units >= self._workload)

    def capture_final(self) -> state_machine.Event:
        """Capture the state with which the phase ends, and let its members go.

        Raises:
          PhaseBroken: the holder could not be reached, or a member was lost.
          HybridSyncError: the members' replicas are not equal.
        """
        started = self._timer.start()
        snapshot = self.take_snapshot(final=True)
        self._control.record(snapshot)
        self._control.release_all()
        check_replicas(self._control.drained(), snapshot, self._state.source)
        self._reporter.tick()
        self._reporter.ended(snapshot)
        is_last = snapshot.held.units >= self._workload
        self._state.evaluates = is_last or not self._control.preempted or self._control.stop_reason is not None
        if not self._state.evaluates:
            self._saving.leave(snapshot.held.units)
        self._saving.training.clear()
        self._timer.record("capture", started)
        return state_machine.Captured(last=is_last)

    def capture_live(self) -> state_machine.Event:
        """Capture the state while the phase goes on.

        Raises:
          PhaseBroken: the holder could not be reached, or a member was lost.
        """
        place = self._saving.next_place
        snapshot = self.take_snapshot(final=False, place=place)
        self._state.evaluates = 0 < place <= snapshot.held.units
        self._state.captured = snapshot.last_applied
        return state_machine.Captured()

    def take_snapshot(self, *, final: bool, place: int = 0) -> Snapshot:
        """Have the role that holds the state capture it, and return the snapshot (see `SnapshotSource.take_snapshot`).

        Raises:
          PhaseBroken: the holder could not be reached, or a member was lost.
        """
        state, phase = self._state, self._state.current_phase
        if phase.mode.has_group_rounds:
            self._pace.await_together(phase, self._tick, final=final)
        role, role_id = phase.mode.holder(phase.members)
        with Reach(self._control, f"the state of {role} {role_id} could not be captured"):
            source = self._control.members.address_of(role, role_id)
            if source == state.source:
                state.source = GONE  # a holder has room for one snapshot: should this one fail, the last is lost too
            snapshot = self._holder_at(source).take_snapshot(phase.id, final, place)
        first, last = self._control.stamps_of(role, role_id, snapshot)
        state.snapshot, state.source = replace(snapshot, first_applied=first, last_applied=last), source
        return state.snapshot
