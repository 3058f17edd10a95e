"""Lets a phase run between two commands, until something is due."""

from __future__ import annotations

from hybridsync.phases import state_machine
from hybridsync.phases.checkpointing import CommitStage
from hybridsync.phases.policy_driver import PolicyDriver
from hybridsync.phases.run_context import RunContext


class RunStage:
    """Watches the current phase.

    Args:
      run: what the stages of a run share.
      policy_driver: knows whether the phase is to be left for another one.
      commits: the commit in progress.
      tick_secs: interval, in seconds, at which a phase is checked of which no news arrives.
    """

    def __init__(self, run: RunContext, policy_driver: PolicyDriver, commits: CommitStage, tick_secs: float) -> None:
        self._run, self._policy_driver, self._commits, self._tick_secs = run, policy_driver, commits, tick_secs

    def watch(self) -> state_machine.Event:
        """Let the phase run until something is due.

        Raises:
          PhaseBroken: the phase lost a member without which it cannot go on, or a callback has stopped the run.
          WaitTimeout: it stands still, and its workers are threads, which cannot be given up.
        """
        phase = self._run.state.current_phase
        while True:
            over = self._run.control.watch(
                lambda chief: chief.is_over(phase), min(self._tick_secs, self._run.saving.secs_to_retry)
            )
            self._run.tick()
            if self._commits.is_over:
                return self._commits.await_commit()
            with self._run.control.turn() as chief:
                preempted, stop_reason = chief.preempted, chief.stop_reason
                first_applied, _ = chief.phase_members.first_and_last()
                if not over and stop_reason is not None and not phase.mode.has_group_rounds:
                    # A drain would apply all units in hand. The newest state that a role holds is whole, and is found
                    # as after a loss; replicas that meet in groups are one state after a drain alone.
                    chief.break_phase(f"a callback has stopped the run: {stop_reason}")
                    raise chief.as_broken()
            if over or preempted:
                return self._ends()
            self._run.pace.check(phase)
            if first_applied:
                self._run.state.num_broken = 0
            if (leaves := self._policy_driver.change_of(phase)) is not None:
                self._run.state.unit_secs = self._run.pace.unit_secs(phase)
                event, self._run.state.reason = leaves
                return event
            if self._run.saving.is_due(phase):
                return state_machine.Checkpoint()

    def _ends(self) -> state_machine.Event:
        """Return how the phase is left that is over, or that a signal ends."""
        state, phase = self._run.state, self._run.state.current_phase
        state.unit_secs = self._run.pace.unit_secs(phase)
        with self._run.control.turn() as chief:
            preempted = chief.preempted
            is_short = phase.mode.is_short(phase.end_units, chief.phase_members.units_reached())
        if is_short and not preempted:
            state.reason = "dropped"
            return state_machine.Regroup()
        state.reason = "planned"
        return state_machine.Begin(last=preempted or phase.end_units >= self._run.config.workload)
