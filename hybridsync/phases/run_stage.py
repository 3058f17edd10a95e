"""Lets a phase run between two commands, until something is due."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hybridsync.chief.run_control import RunControl
from hybridsync.phases import state_machine
from hybridsync.phases.checkpointing import CommitStage, SaveSchedule
from hybridsync.phases.policy_driver import PolicyDriver
from hybridsync.phases.progress_watchdog import ProgressWatchdog
from hybridsync.phases.run_context import ControllerState


class RunStage:
    """Watches the current phase.

    Args:
      state: the current phase.
      workload: units of the run.
      control: applied units, and the event that ended the phase.
      pace: knows whether the phase makes progress.
      policy_driver: knows whether the phase is to be left for another one.
      saving: knows whether a save is due.
      commits: the commit in progress.
      tick: called again and again.
      tick_secs: interval, in seconds, at which a phase is checked of which no news arrives.
    """

    def __init__(
        self,
        state: ControllerState,
        workload: int,
        control: RunControl,
        pace: ProgressWatchdog,
        policy_driver: PolicyDriver,
        saving: SaveSchedule,
        commits: CommitStage,
        tick: Callable[[], None],
        tick_secs: float,
    ) -> None:
        self._state, self._workload, self._control = state, workload, control
        self._pace, self._policy_driver, self._saving, self._commits = pace, policy_driver, saving, commits
        self._tick, self._tick_secs = tick, tick_secs

    def watch(self) -> state_machine.Event:
        """Let the phase run until something is due.

        Raises:
          PhaseBroken: the phase lost a member without which it cannot go on, or a callback has stopped the run.
          WaitTimeout: it stands still, and its workers are threads, which cannot be given up.
        """
        phase = self._state.current_phase
        is_over = partial(self._pace.is_over, phase)
        while True:
            over = self._control.watch(is_over, min(self._tick_secs, self._saving.secs_to_retry))
            self._tick()
            if self._commits.is_over:
                return self._commits.await_commit()
            if over or self._control.preempted:
                if not over and self._control.stop_reason is not None and not phase.mode.has_group_rounds:
                    # A drain would apply all units in hand. The newest state that a role holds is whole, and is found
                    # as after a loss; replicas that meet in groups are one state after a drain alone.
                    self._control.break_phase(f"a callback has stopped the run: {self._control.stop_reason}")
                    raise self._control.as_broken()
                return self._ends()
            self._pace.check(phase)
            if self._control.stamps()[0]:
                self._state.num_broken = 0
            if (leaves := self._policy_driver.change_of(phase)) is not None:
                self._state.unit_secs = self._pace.unit_secs(phase)
                event, self._state.reason = leaves
                return event
            if self._saving.is_due(phase):
                return state_machine.Checkpoint()

    def _ends(self) -> state_machine.Event:
        """Return how the phase is left that is over, or that a signal ends."""
        state, phase = self._state, self._state.current_phase
        state.unit_secs = self._pace.unit_secs(phase)
        last = self._control.preempted or phase.end_units >= self._workload
        if self._pace.is_short(phase) and not self._control.preempted:
            state.reason = "dropped"
            return state_machine.Regroup()
        state.reason = "planned"
        return state_machine.Begin(last=last)
