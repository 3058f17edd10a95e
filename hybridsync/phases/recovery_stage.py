"""The command GATHER: after a broken phase the newest state that someone holds is found."""

from __future__ import annotations

from collections.abc import Callable

from hybridsync.chief.run_control import RunControl
from hybridsync.interfaces.messages import Snapshot
from hybridsync.phases import state_machine
from hybridsync.phases.controller_state import ControllerState
from hybridsync.phases.housekeeping import Housekeeping
from hybridsync.phases.process_groups import ProcessGroups
from hybridsync.phases.progress_watchdog import ProgressWatchdog
from hybridsync.phases.recovery import Recovery, give_up
from hybridsync.phases.reporter import Reporter
from hybridsync.telemetry.switch_costs import StageTimer

MAX_BROKEN = 10
"""How many phases in a row may break before one applies a unit."""


class GatherStage:
    """Takes the run back to the newest state that someone holds.

    Args:
      state: the phase that broke; takes the state that was found.
      workload: units of the run.
      control: members and ledger.
      pace: mean duration of a unit.
      recovery: finds the state.
      process_groups: process groups; the meshes with a lost member end.
      reporter: writes the record.
      timer: measures the stage.
      upkeep: knows the lost workers.
      forget: called with the sequence of the state that the run continues from when later updates are lost.
      guess_secs: taken for the seconds of a unit until one was seen.
    """

    def __init__(
        self,
        state: ControllerState,
        workload: int,
        control: RunControl,
        pace: ProgressWatchdog,
        recovery: Recovery,
        process_groups: ProcessGroups,
        reporter: Reporter,
        timer: StageTimer,
        upkeep: Housekeeping,
        forget: Callable[[int], object],
        guess_secs: float,
    ) -> None:
        self._state, self._workload, self._control = state, workload, control
        self._pace, self._recovery, self._process_groups = pace, recovery, process_groups
        self._reporter, self._timer, self._upkeep = reporter, timer, upkeep
        self._forget, self._guess_secs = forget, guess_secs

    def gather(self) -> state_machine.Event:
        """Find the newest state that someone holds, and make the ledger say what it does.

        Raises:
          RoleLost: too many phases in a row broke before they applied a unit.
          HybridSyncError: the run cannot go on.
        """
        state = self._state
        started = self._timer.start()
        reason = self._control.gather() or state.broken_by  # on the way into a run's first phase, no phase has it
        self._upkeep.take_fenced()
        if state.phase is not None:
            unit_secs, self._guess_secs = self._pace.unit_secs(state.phase) or self._guess_secs, 0.0
            found = self._recovery.gather(state.phase, (state.snapshot, state.source), unit_secs)
            state.snapshot, state.source = found.snapshot, found.source
            self.go_on_from(found.snapshot, reason, rolled_back=found.rolled_back)
        self._process_groups.discard_meshes()
        state.num_broken += 1
        if state.num_broken > MAX_BROKEN:
            raise give_up(state.num_broken, reason)
        state.reason = "death"
        self._timer.record("gather", started)
        self._timer.restart()
        stopped = self._control.stop_reason is not None
        state.evaluates = stopped or state.snapshot.held.units >= self._workload
        return state_machine.Gathered(last=state.evaluates or self._control.preempted)

    def go_on_from(self, snapshot: Snapshot, why: str, *, rolled_back: bool) -> None:
        """Make ledger, apply log and record say what `snapshot` does, and what it lacks."""
        lost = self._control.restore(snapshot, rolled_back=rolled_back)
        if lost and self._control.preempted:  # no phase follows that would apply them again
            self._state.lost_at_stop, self._state.lost_why = self._state.lost_at_stop + lost, why
        self._forget(snapshot.held.sequence)
        self._reporter.broke(snapshot, why, lost)
