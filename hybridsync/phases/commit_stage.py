"""The commands COMMIT, AWAIT_COMMIT and AWAIT_RETRY: the captured state is made durable behind the training."""

from __future__ import annotations

from collections.abc import Callable

from hybridsync.chief.run_control import RunControl
from hybridsync.core.errors import CheckpointError
from hybridsync.phases import state_machine
from hybridsync.phases.checkpointing import Commit
from hybridsync.phases.controller_state import ControllerState
from hybridsync.phases.progress_watchdog import ProgressWatchdog
from hybridsync.phases.recovery import UNREACHED
from hybridsync.phases.reporter import Reporter
from hybridsync.phases.save_schedule import SaveSchedule


class CommitStage:
    """Submits the newest captured state, and takes note of what came of it.

    Args:
      state: the captured state, and whether it is the run's last.
      start_phase: number of the phase that the run begins above.
      control: knows whether the current phase is broken.
      pace: knows whether the phase makes progress while a commit is waited for.
      saving: the commit in progress.
      reporter: writes the record.
      tick: called while a commit is waited for.
    """

    def __init__(
        self,
        state: ControllerState,
        start_phase: int,
        control: RunControl,
        pace: ProgressWatchdog,
        saving: SaveSchedule,
        reporter: Reporter,
        tick: Callable[[], None],
    ) -> None:
        self._state, self._start_phase, self._control = state, start_phase, control
        self._pace, self._saving, self._reporter, self._tick = pace, saving, reporter, tick

    @property
    def is_over(self) -> bool:
        """Return whether a commit has ended, one way or the other, that nobody has taken note of yet."""
        return self._saving.done

    @property
    def is_under_way(self) -> bool:
        """Return whether a commit has been submitted that nobody has taken note of yet."""
        return self._saving.under_way

    @property
    def covers_newest(self) -> bool:
        """Return whether the newest captured state is the one that was submitted last, and has not failed."""
        return self._saving.submitted is self._state.snapshot

    def submit(self) -> None:
        """Begin to commit the newest captured state."""
        state = self._state
        phase_number = state.phase_id.number if state.phase_id else self._start_phase
        captured, state.captured = state.captured, 0.0
        self._saving.submit(state.snapshot, state.source, phase_number, evaluate=state.evaluates, captured=captured)

    def await_commit(self) -> state_machine.Event:
        """Wait for the pending commit; training goes on when it failed, unless it was the run's last.

        Raises:
          PhaseBroken: the current phase was broken meanwhile.
          WaitTimeout: the phase stands still, and its workers are threads, which cannot be given up.
          CheckpointError: the run's last state could not be written.
        """
        try:
            commit = self._wait()
        except (CheckpointError, *UNREACHED) as error:
            if self._saving.under_way:  # it was the phase that met this, or the run
                raise
            return self._failed(error)
        self._reporter.committed(commit)
        return state_machine.Committed()

    def await_retry(self) -> None:
        """Let a while pass until the state is captured and committed anew for whose commit the phase's end waits.

        Raises:
          PhaseBroken, WaitTimeout: see `await_commit`.
        """
        self._saving.await_retry(self._look_around)

    def commit(self) -> None:
        """Commit the newest captured state, and return when it is durable.

        Raises:
          PhaseBroken, WaitTimeout, CheckpointError, RoleLost, StalePhase: the state did not become durable.
        """
        self.submit()
        self._reporter.committed(self._wait())

    def _failed(self, error: Exception) -> state_machine.Event:
        state = self._state
        if state.is_ending and isinstance(error, CheckpointError):  # no training follows that could be saved later
            raise error
        if state.is_ending:
            state.broken_by = f"the last state could not be fetched: {error}"
            self._control.break_phase(state.broken_by)
            return state_machine.CommitFailed()
        self._reporter.not_durable(state.snapshot.held.units, str(error))
        self._saving.put_off()
        return state_machine.CommitFailed()

    def _wait(self) -> Commit:
        return self._saving.wait(self._look_around)

    def _look_around(self) -> None:
        """Do what is due while a commit is waited for; where a phase goes on meanwhile, see that it does."""
        self._tick()
        if self._state.is_ending or self._control.gathering:
            return
        if self._control.broken:
            raise self._control.as_broken()
        phase = self._state.phase
        if phase is not None and not self._pace.is_over(phase):
            self._pace.check(phase)
