"""Looks after the run while the controller waits: gives up silent roles, passes losses on, and writes the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hybridsync.chief.run_control import RunControl
from hybridsync.core.work_deadlines import Watching
from hybridsync.interfaces.ports import ServerPort
from hybridsync.phases.checkpointing import SaveSchedule
from hybridsync.phases.process_groups import ProcessGroups
from hybridsync.phases.progress_watchdog import ProgressWatchdog
from hybridsync.phases.reporter import Reporter
from hybridsync.phases.run_context import ControllerState, Reach


class Housekeeping:
    """Does what is due at every tick of the controller.

    Args:
      state: the current phase.
      control: members, and lost workers.
      servers: returns the servers of the current phase by address.
      pace: gives the last units of a phase to others.
      saving: evaluations in the background of the training.
      process_groups: process groups; the meshes with a lost worker end.
      reporter: writes the record.
      watchdog: watchdog of the process.
    """

    def __init__(
        self,
        state: ControllerState,
        control: RunControl,
        servers: Callable[[], Mapping[str, ServerPort]],
        pace: ProgressWatchdog,
        saving: SaveSchedule,
        process_groups: ProcessGroups,
        reporter: Reporter,
        watchdog: Watching,
    ) -> None:
        self._state, self._control, self._servers = state, control, servers
        self._pace, self._saving, self._process_groups = pace, saving, process_groups
        self._reporter, self._watchdog = reporter, watchdog

    def look_around(self) -> None:
        """Give up who is silent, and write the record.

        This is the tick while servers enter a phase: they hear of lost workers once they have entered.
        """
        self._watchdog.progress()
        with self._control.turn() as chief:
            chief.expire()  # first: after a pause of this process nobody counts as silent
        self._pace.warn_of_silent()
        self._reporter.tick()

    def tick(self) -> None:
        """Give up who is silent, tell the primary of lost workers, write the record.

        Raises:
          PhaseBroken: the primary could not be notified.
        """
        self._watchdog.progress()
        with self._control.turn() as chief:
            chief.expire()  # first: after a pause of this process nobody counts as silent
        self._pace.warn_of_silent()
        self._pace.reclaim_tail(self._state.phase)
        with self._control.turn() as chief:
            first_applied, _ = chief.phase_members.first_and_last()
        if first_applied:
            self._saving.training.set()
        for worker, incarnation in self.take_fenced():
            self._fence(worker, incarnation)
        self._reporter.tick()
        self._saving.collect()

    def take_fenced(self) -> list[tuple[int, int]]:
        """Return the workers lost since the last call, with their incarnations."""
        with self._control.turn() as chief:
            lost = chief.take_fenced()
        if lost:
            self._process_groups.discard_meshes()
        return lost

    def _fence(self, worker: int, incarnation: int) -> None:
        phase = self._state.phase
        with self._control.turn() as chief:
            broken = chief.phase_members.broken
        if phase is None or not phase.mode.is_served or broken:
            return
        with Reach(self._control, f"the primary could not be told of the loss of worker {worker}"):
            primary, *_ = self._servers().values()  # which notifies the others, at its place in the order of updates
            primary.fence(phase.id, worker, incarnation)
