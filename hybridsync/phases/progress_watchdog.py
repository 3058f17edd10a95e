"""Watches that a phase goes on: for whom it stands still, and whose last units are to go to others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from hybridsync.chief.run_control import RunControl
from hybridsync.core.clock import Clock
from hybridsync.core.errors import WaitTimeout
from hybridsync.interfaces.phase import Phase
from hybridsync.phases.hung_members import hung
from hybridsync.phases.member_waits import TICK_SECS

STUCK_SECS = 2.0
"""The shortest time without a lock-step step, or at one unit, after which a process is given up."""
THREADS_STUCK_SECS = 60.0
"""The same where workers are threads: they cannot be given up, only named."""
FIRST_STEP_SECS = 600.0
"""Before the phase's first step, or a worker's first unit in it, roles may be compiling."""
SILENT_SHARE = 0.5
"""Of that time without a heartbeat: a worker that is stopped, and not only waiting for others."""
STEPS = 10
"""How many times its own recent step a lock-step phase may stand still, and a worker its own recent unit."""


class ProgressWatchdog:
    """Judges the progress of the current phase.

    Args:
      control: times of the applied units, and the last reports of the roles.
      drain_secs: how long the last units of an asynchronous phase may stay with their holders, in seconds.
      clock: clock for all times.
      say: shows the user a line.
      threads: workers are threads of this process.
    """

    def __init__(
        self, control: RunControl, drain_secs: float, clock: Clock, say: Callable[[str], None], *, threads: bool
    ) -> None:
        self._control, self._drain_secs, self._clock = control, drain_secs, clock
        self._say, self._threads = say, threads
        self._stuck_secs = THREADS_STUCK_SECS if threads else STUCK_SECS
        self._tail = self._moved = (clock.monotonic(), 0)
        self._began = clock.monotonic()

    def unit_secs(self, phase: Phase) -> float:
        """Return the mean seconds of one worker's unit in the last second; 0 while that is not known.

        Under lock-step those of a step, in which a member may have several units.
        """
        rate = math.fsum(self._control.worker_rates().values())
        return phase.num_places / rate if rate else 0.0

    def is_over(self, phase: Phase) -> bool:
        """Return whether a phase has come to its end: in lock-step, whether everybody has come back from it."""
        control, members = self._control, phase.members
        return phase.mode.is_over(phase.end_units, control.num_applied, len(members), len(control.drained()))

    def is_short(self, phase: Phase) -> bool:
        """Return whether a lock-step phase has ended with units dropped, so that its stage goes on with fresh ones."""
        return phase.mode.is_short(phase.end_units, self.units_reached())

    def is_drained(self) -> bool:
        """Return whether everybody has come back from a lock-step phase, or it has broken."""
        return not self._control.missing_drained() or bool(self._control.broken)

    def units_reached(self) -> int:
        """Return the units that members hold who have come back; -1 where none has."""
        return max((held.units for held in self._control.drained().values() if held is not None), default=-1)

    def limit_secs(self, unit_secs: float) -> float:
        """Return how long a step may take of which one usually takes `unit_secs`."""
        return max(self._stuck_secs, STEPS * unit_secs)

    def step_limit_secs(self, phase: Phase) -> float:
        """Return how long the current step of a lock-step phase may take; its first one may be compiling."""
        if not self._control.stamps()[0]:
            return FIRST_STEP_SECS
        return self.limit_secs(self.unit_secs(phase) * phase.protocol.units_between_rounds)

    def check(self, phase: Phase) -> None:
        """Give up the members for whom the phase stands still; where no server holds the state, it breaks by that.

        Raises:
          WaitTimeout: they are threads, which cannot be given up.
        """
        now, applied = self._clock.monotonic(), self._control.num_applied
        waits = phase.protocol.awaits_workers or not phase.mode.is_served
        self._check_hung(phase, 0.0 if waits else self._drain_secs)
        if phase.mode.is_served:
            return
        if phase.mode.has_group_rounds:
            self._check_groups(phase.protocol.units_between_rounds)
        if applied != self._moved[1]:
            self._moved = now, applied
            return
        limit = self.step_limit_secs(phase)
        if now - self._moved[0] <= limit:
            return
        self._moved = now, applied
        self.give_up(self._control.stuck(SILENT_SHARE * limit), f"no lock-step step was completed for {limit:.3g} s")

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
        first, control = phase.members[0], self._control
        left = final or self.is_drained()
        if not left:
            control.call_together()
        while not left and not control.wait_until(lambda: control.is_together(first) or self.is_drained(), TICK_SECS):
            tick()
            self.check(phase)
        if self._control.broken:
            raise self._control.as_broken()

    def _check_hung(self, phase: Phase, floor_secs: float) -> None:
        """Give up the members that hang at a unit while others wait for them; after `floor_secs` at the earliest."""

        def limit_secs(usual_secs: float) -> float:
            return max(floor_secs, self.limit_secs(usual_secs)) if usual_secs else FIRST_STEP_SECS

        # A chief that was restarted, or announced the phase just now, has seen no member wait before.
        watched = self._clock.monotonic() - self._began
        doing = {
            worker: each if each.secs <= watched else replace(each, secs=watched)
            for worker, each in self._control.doing(self._stuck_secs).items()  # no limit is shorter
        }
        late = hung(phase, doing, limit_secs)
        why = "at one unit for more than {:.3g} s, and others wait for it"
        if late and self._threads:
            self.give_up([*late], f"workers {[*late]} have been {why.format(max(late.values()))}")
        for worker, limit in late.items():
            self._control.members.evict(worker, f"worker {worker} has been {why.format(limit)}")

    def _check_groups(self, num_units: int) -> None:
        """Give up the members of a group phase for whom others wait much longer than their units take.

        Args:
          num_units: number of units that each member computes between two group rounds.
        """
        rates, late = self._control.worker_rates(), {}
        for worker, secs in self._control.waited_for().items():
            rate = rates.get(worker, 0.0)
            limit = self.limit_secs(num_units / rate) if rate else FIRST_STEP_SECS
            if secs > limit:
                late[worker] = limit
        if late:
            secs = min(late.values())
            stuck = [worker for worker in self._control.stuck(SILENT_SHARE * secs) if worker in late]
            # A member that averages with a stopped one has not come either, and is not to blame.
            self.give_up(stuck, f"a group has waited for workers {stuck or [*late]} for more than {secs:.3g} s")

    def give_up(self, workers: list[int], why: str) -> None:
        """Go on without those for whom a lock-step phase stands still.

        Raises:
          WaitTimeout: they are threads, which cannot be given up.
        """
        if self._threads:
            raise WaitTimeout(
                f"{why}; workers {workers or self._control.behind()} are behind: run the same command again to resume "
                "from the last checkpoint"
            )
        for worker in workers:
            self._control.members.evict(worker, f"{why}, and worker {worker} was not waiting for the others")
        self._control.break_phase(why)

    def begin(self) -> None:
        """Count from now on: another phase was announced."""
        self._began = self._clock.monotonic()
        self._moved = self._began, self._control.num_applied

    def reclaim_tail(self, phase: Phase | None) -> None:
        """Give the last units of an asynchronous phase to others when nothing was applied for drain_secs."""
        now, applied = self._clock.monotonic(), self._control.num_applied
        if applied != self._tail[1] or phase is None or not phase.mode.is_served:
            self._tail = now, applied
        elif now - self._tail[0] > self._drain_secs and self._control.all_leased(phase):
            self._tail = now, applied
            if held := self._control.reclaim():
                self._say(f"the last units of phase {phase.id} are given to others too: {held}")
