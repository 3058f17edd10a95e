"""The commands COMMIT and AWAIT_COMMIT: the captured state is made durable behind the training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from hybridsync.chief.run_control import RunControl
from hybridsync.core.errors import CheckpointError, PhaseBroken
from hybridsync.phases import state_machine
from hybridsync.phases.checkpointing import Commit
from hybridsync.phases.controller_state import ControllerState
from hybridsync.phases.recovery import UNREACHED
from hybridsync.phases.reporter import Reporter
from hybridsync.phases.save_schedule import SaveSchedule

RETRY_SECS = 1.0
"""Until a state that could not be made durable is tried again, the first time; then twice as long each time."""
MOST_RETRY_SECS = 60.0
"""The longest such pause; shorter where saves are more frequent."""


class CommitStage:
    """Submits the newest captured state, and takes note of what came of it.

    Args:
      state: the captured state, and whether it is the run's last.
      start_phase: number of the phase that the run begins above.
      control: whether the phase under way is broken.
      saving: the commit under way.
      reporter: writes the record.
      tick: called while a commit is waited for.
    """

    def __init__(
        self,
        state: ControllerState,
        start_phase: int,
        control: RunControl,
        saving: SaveSchedule,
        reporter: Reporter,
        tick: Callable[[], None],
    ) -> None:
        self._state, self._start_phase, self._control = state, start_phase, control
        self._saving, self._reporter, self._tick = saving, reporter, tick
        self._retry_secs = RETRY_SECS

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
        self._saving.submit(state.snapshot, state.source, phase_number, evaluate=state.evaluates)

    def await_commit(self) -> state_machine.Event:
        """Wait for the commit under way; training goes on when it failed, unless it was the run's last.

        Raises:
          PhaseBroken: the phase under way was broken meanwhile.
          WaitTimeout: the commit did not end in time.
          CheckpointError: the run's last state could not be written.
        """
        try:
            commit = self._wait()
        except (CheckpointError, *UNREACHED) as error:
            return self._failed(error)
        self._retry_secs = RETRY_SECS
        self._reporter.committed(commit)
        return state_machine.Committed()

    def commit(self) -> None:
        """Commit the newest captured state, and return when it is durable.

        Raises:
          PhaseBroken, WaitTimeout, CheckpointError, RoleLost, StalePhase: it did not become durable.
        """
        self.submit()
        self._reporter.committed(self._wait())

    def _failed(self, error: Exception) -> state_machine.Event:
        state = self._state
        if state.is_ending and isinstance(error, CheckpointError):  # nothing goes on that could be saved later
            raise error
        if state.is_ending:
            state.broken_by = f"the last state could not be fetched: {error}"
            self._control.break_phase(state.broken_by)
            return state_machine.CommitFailed()
        self._reporter.not_durable(state.snapshot.held.units, str(error))
        self._pause(self._retry_secs)
        most = max(RETRY_SECS, min(self._saving.interval_secs, MOST_RETRY_SECS))
        self._retry_secs = min(2 * self._retry_secs, most)
        return state_machine.CommitFailed()

    def _pause(self, secs: float) -> None:
        """Let a while pass, unless the phase breaks, or the run is to stop."""

        def is_over() -> bool:
            return self._control.preempted or bool(self._control.broken)

        while not self._control.wait_until(is_over, min(secs, RETRY_SECS)) and (secs := secs - RETRY_SECS) > 0:
            with contextlib.suppress(PhaseBroken):  # that ends the pause; the commit must be taken note of before
                self._tick()

    def _wait(self) -> Commit:
        def tick() -> None:
            self._tick()
            if self._control.broken and not (self._state.is_ending or self._control.gathering):
                raise self._control.as_broken()

        return self._saving.wait(tick)
