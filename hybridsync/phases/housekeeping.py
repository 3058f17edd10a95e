"""Looks after the run while the controller waits: gives up silent and hanging roles, and writes the record."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from hybridsync.chief.run_state import RunControl
from hybridsync.config import HangConfig
from hybridsync.core.clock import Clock
from hybridsync.core.deadlines import LATE_SECS
from hybridsync.core.errors import WaitTimeout
from hybridsync.core.work_deadlines import Watching
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import ServerPort
from hybridsync.phases.checkpointing import SaveSchedule
from hybridsync.phases.hung_members import STEPS, Words, in_words, judge, silence_in_words, warn_secs
from hybridsync.phases.process_groups import ProcessGroups
from hybridsync.phases.reporter import Reporter
from hybridsync.phases.run_context import TICK_SECS, ControllerState, Reach


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


Role = tuple[str, int]
_RESUME = ": run the same command again to resume from the last checkpoint"


class ProgressWatchdog:
    """Judges the progress of the current phase.

    Args:
      control: times of the applied units, and the last reports of the roles.
      limits: how long a member may be at what it is at.
      drain_secs: how long the last units of an asynchronous phase may stay with their holders, in seconds.
      clock: clock for all times.
      reporter: writes the warnings, and shows the user a line.
      threads: workers are threads of this process, which cannot be given up, only named.
    """

    def __init__(
        self,
        control: RunControl,
        limits: HangConfig,
        drain_secs: float,
        clock: Clock,
        reporter: Reporter,
        *,
        threads: bool,
    ) -> None:
        self._control, self._limits, self._drain_secs = control, limits, drain_secs
        self._clock, self._reporter, self._threads = clock, reporter, threads
        self._look_secs = min(map(warn_secs, (limits.compute_secs, limits.read_secs, limits.compile_secs)))
        self._tail = clock.monotonic(), 0
        self._began = self._looked = clock.monotonic()
        self._slow: Collection[Role] = ()  # whom the user has been warned of
        self._silent: Collection[Role] = ()

    def unit_secs(self, phase: Phase) -> float:
        """Return the mean seconds of one worker's unit in the last second; 0 while that is not known.

        Under lock-step those of a step, in which a member may have several units.
        """
        with self._control.turn() as chief:
            rate = math.fsum(chief.worker_rates().values())
        return phase.num_places / rate if rate else 0.0

    def step_limit_secs(self, phase: Phase) -> float:
        """Return how long all members may wait in one step of a phase without servers; its first one may be long."""
        secs = self.unit_secs(phase) * phase.protocol.units_between_rounds
        return max(self._limits.compute_secs, STEPS * secs) if secs else self._limits.compile_secs

    def check(self, phase: Phase) -> None:
        """Give up the members that hang; a phase without servers breaks by that, or where all members only wait.

        Raises:
          WaitTimeout: they are threads, which cannot be given up.
        """
        now = self._clock.monotonic()
        if now - self._looked > LATE_SECS:  # this process stood still, and everybody may have waited for it
            self._began = now
        self._looked = now
        # A chief that was restarted, or announced the phase just now, has seen no member at anything before.
        watched = now - self._began
        with self._control.turn() as chief:
            doing = {
                worker: each if each.secs <= watched else replace(each, secs=watched)
                for worker, each in chief.doing(self._look_secs).items()
            }
        awaited = phase.protocol.awaits_workers or not phase.mode.is_served
        found = judge(
            phase,
            doing,
            self._limits,
            floor_secs=0.0 if awaited else self._drain_secs,
            step_secs=self.step_limit_secs(phase) if doing else 0.0,
        )
        slow = {
            ("worker", worker): in_words(doing[worker], limit, self._limits) for worker, limit in found.slow.items()
        }
        self._warn(slow, self._slow)
        self._slow = slow.keys()
        for worker, limit in found.hung.items():
            self._give_up(worker, in_words(doing[worker], limit, self._limits))
        if found.stands_still:
            why = f"all members have waited for {self.step_limit_secs(phase):.3g} s, and no step was completed"
            with self._control.turn() as chief:
                if self._threads:
                    behind = chief.phase_members.behind(chief.members.workers.ids())
                    raise WaitTimeout(f"{why}; workers {behind} are behind{_RESUME}")
                chief.break_phase(why)

    def warn_of_silent(self) -> None:
        """Name the processes whose heartbeats stay away, before they are given up."""
        limit = self._limits.silent_secs
        with self._control.turn() as chief:
            silent = [] if self._threads else chief.silent(warn_secs(limit))
        self._warn(dict.fromkeys(silent, silence_in_words(limit)), self._silent)
        self._silent = frozenset(silent)

    def _warn(self, found: Mapping[Role, Words], known: Collection[Role]) -> None:
        for (role, role_id), words in found.items():
            if (role, role_id) not in known:
                self._reporter.suspect_hang(role, role_id, words.what, words.limit_secs, words.setting)

    def _give_up(self, worker: int, words: Words) -> None:
        """Have a worker ended that hangs.

        Raises:
          WaitTimeout: it is a thread.
        """
        why = f"worker {worker} has been {words.what} for more than {words.limit_secs:.3g} s ({words.setting})"
        if self._threads:
            raise WaitTimeout(f"{why}{_RESUME}")
        with self._control.turn() as chief:
            chief.evict("worker", worker, f"{why}, and others wait for it")

    def await_together(self, phase: Phase, tick: Callable[[], None], *, final: bool) -> None:
        """Call everybody in a group phase to a full synchronisation, and wait until the first member has its state.

        No member is called once all have left: the last group round was such a synchronisation.

        Args:
          phase: the current phase.
          tick: called meanwhile.
          final: the phase is drained: all members have been to their last group round, unless one was lost before.

        Raises:
          PhaseBroken: a member was lost, or was waited for too long.
          WaitTimeout: these are threads, which cannot be given up.
        """
        first = phase.members[0]
        with self._control.turn() as chief:
            left = final or chief.is_drained()
            if not left:
                chief.call_together()
        while not left and not self._control.wait_until(
            lambda chief: chief.is_together(first) or chief.is_drained(), TICK_SECS
        ):
            tick()
            self.check(phase)
        with self._control.turn() as chief:
            chief.raise_broken()

    def begin(self) -> None:
        """Count from now on: another phase was announced."""
        self._began = self._looked = self._clock.monotonic()

    def reclaim_tail(self, phase: Phase | None) -> None:
        """Give the last units of an asynchronous phase to others when nothing was applied for drain_secs."""
        held: dict[str, int] = {}
        with self._control.turn() as chief:
            now, applied = self._clock.monotonic(), chief.ledger.num_applied
            if applied != self._tail[1] or phase is None or not phase.mode.is_served:
                self._tail = now, applied
            elif now - self._tail[0] > self._drain_secs and chief.ledger.room(phase.end_units) == 0:
                self._tail, held = (now, applied), chief.reclaim()
        if phase is not None and held:
            self._reporter.show_line(f"the last units of phase {phase.id} are given to others too: {held}")
