"""Finds the state that the next phase begins from: captured where a phase ends, or gathered after one has broken."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hybridsync.chief.membership import NOTHING, Doing
from hybridsync.chief.run_control import RunControl
from hybridsync.config import HangConfig
from hybridsync.core.clock import Clock
from hybridsync.core.deadlines import LATE_SECS
from hybridsync.core.errors import HybridSyncError, PhaseBroken, RoleLost, StalePhase
from hybridsync.core.work_deadlines import UNWATCHED, Watching
from hybridsync.interfaces.messages import Snapshot, StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import SnapshotSource
from hybridsync.phases import state_machine
from hybridsync.phases.checkpointing import SaveSchedule
from hybridsync.phases.housekeeping import Housekeeping
from hybridsync.phases.hung_members import limit_of
from hybridsync.phases.member_waits import TICK_SECS, MemberWaits
from hybridsync.phases.policy_driver import PolicyDriver
from hybridsync.phases.process_groups import ProcessGroups, check_replicas
from hybridsync.phases.progress_watchdog import ProgressWatchdog
from hybridsync.phases.reporter import Reporter
from hybridsync.phases.run_context import GONE, UNREACHED, CommittedSource, ControllerState, Reach
from hybridsync.phases.state_machine import Command, Step, Switching
from hybridsync.protocols.modes import SyncMode
from hybridsync.telemetry.switch_costs import StageTimer

GATHER_SECS = 2.0
"""The shortest time that a worker's process has to come back from a broken phase, once it was notified."""
EXPIRE_SECS = 0.25
"""Between two looks at who has not been heard of."""


@dataclass(frozen=True)
class Found:
    """The newest state that someone holds.

    Args:
      snapshot: snapshot of the state.
      source: address where it is read.
      rolled_back: whether all roles that had a newer state are gone.
    """

    snapshot: Snapshot
    source: str
    rolled_back: bool


class Recovery:
    """Ends a broken phase.

    Args:
      control: members and the phase.
      holder_at: returns the role at an address that can take a snapshot of the state.
      committed_source: source of the last committed state.
      chief_address: the chief's address.
      clock: clock for deadlines.
      await_newer: waits for an in-flight commit whose state has more than this many units; returns whether there was
        one.
      limits: how long a worker may be at what keeps it from coming back.
      gather_secs: the shortest time that a worker has to come back; threads, which cannot be given up, may compile.
      watchdog: watchdog of the process.
    """

    def __init__(
        self,
        control: RunControl,
        holder_at: Callable[[str], SnapshotSource],
        committed_source: CommittedSource,
        chief_address: str,
        clock: Clock,
        await_newer: Callable[[int], bool],
        limits: HangConfig,
        gather_secs: float = GATHER_SECS,
        watchdog: Watching = UNWATCHED,
    ) -> None:
        self._watchdog, self._limits = watchdog, limits
        self._control, self._holder_at, self._committed_source, self._chief_address = (
            control,
            holder_at,
            committed_source,
            chief_address,
        )
        self._clock, self._await_newer, self._gather_secs = clock, await_newer, gather_secs
        self._cuts: list[tuple[int, int]] = []

    def gather(self, phase: Phase, captured: tuple[Snapshot, str], unit_secs: float) -> Found:
        """Call everybody back and return the newest state; a worker that does not come back in time is evicted.

        Args:
          phase: phase that broke.
          captured: the last snapshot taken, and the address of its holder.
          unit_secs: mean seconds of one unit in that phase.

        Raises:
          HybridSyncError: the run cannot go on.
        """
        self._cut(phase.id.number - 1, phase.sequence)
        found = self._newest(phase, captured, unit_secs)
        self._cut(phase.id.number, found.snapshot.held.sequence)
        return found

    def _cut(self, phase_number: int, sequence: int) -> None:
        """Go on from update `sequence`: what phases up to `phase_number` applied after it is lost."""
        while self._cuts and self._cuts[-1][1] >= sequence:
            self._cuts.pop()
        self._cuts.append((phase_number, sequence))

    def _is_past(self, held: StateVersion) -> bool:
        """Return whether the run went on from before this state: another past, whose updates the apply log has lost."""
        return any(
            held.phase_id.number <= phase_number and held.sequence > sequence for phase_number, sequence in self._cuts
        )

    def _newest(self, phase: Phase, captured: tuple[Snapshot, str], unit_secs: float) -> Found:
        snapshot, source = captured
        served = None
        if phase.mode.is_served and all(map(self._control.members.is_live, phase.servers)):
            served = self._from_servers(phase)
            if source == phase.servers[0]:
                source = GONE  # a holder has room for one snapshot: should this one fail, the last is lost too
        self._call_back(phase, max(self._gather_secs, 10 * unit_secs))
        if served is not None:
            return served
        # One may hold the newest state
        self._control.wait_until(lambda: not self._control.members.unheard(), self._gather_secs)
        while snapshot.held.units >= self._committed_source.units and self._control.members.is_live(source):
            found = self._from_workers(snapshot.held.units, snapshot, phase.mode)
            if found is not None:
                return found
            if self._control.members.is_live(source):  # and was not evicted just now, being one of those workers
                return Found(snapshot, source, rolled_back=True)
        found = self._from_workers(self._committed_source.units, snapshot, phase.mode)
        if self._await_newer(found.snapshot.held.units if found else self._committed_source.units):
            found = self._from_workers(self._committed_source.units, snapshot, phase.mode)
        return found or Found(self._committed_source.publish(), self._chief_address, rolled_back=True)

    def _from_servers(self, phase: Phase) -> Found | None:
        """Capture the state of a phase whose servers all live: it refuses every later push."""
        source = phase.servers[0]
        try:
            self._watchdog.progress()
            return Found(self._holder_at(source).take_snapshot(phase.id, True), source, rolled_back=False)
        except UNREACHED:  # not entered, or gone this moment: others may hold a state
            return None

    def _call_back(self, phase: Phase, secs: float) -> None:
        started = looked = self._clock.monotonic()
        while missing := self._control.missing_back():
            now = self._clock.monotonic()
            if now - looked > LATE_SECS:  # this process stood still, and has heard of nobody meanwhile
                started = now
            looked, doing = now, self._control.doing()
            allowed = {worker: max(secs, self._leave_secs(doing.get(worker, NOTHING))) for worker in missing}
            if late := [worker for worker in missing if now - started > allowed[worker]]:
                self._rescue(late, phase)
                for worker in late:
                    why = f"did not come back from a broken phase within {allowed[worker]:g} s"
                    self._control.members.evict(worker, why)
                continue
            self._watchdog.progress()
            self._control.members.expire()
            self._control.wait_until(lambda: not self._control.missing_back(), EXPIRE_SECS)

    def _leave_secs(self, doing: Doing) -> float:
        """Return how long a worker may take to leave what it is at: a revocation ends waits alone."""
        limit, _ = limit_of(doing, self._limits)
        return self._limits.compute_secs if limit == math.inf else limit

    def _rescue(self, missing: list[int], phase: Phase) -> None:
        """Fetch the state of a worker that lives, but cannot come back: it may be the newest.

        Its training thread is where nothing can reach it, in the user's own code for example; its holder is not.
        """
        silent = self._control.members.silent(GATHER_SECS)
        alive = [worker for worker in missing if ("worker", worker) not in silent]
        if not alive or not phase.mode.moves_together:
            return
        try:
            source = self._control.members.address_of("worker", alive[0])
            holder = self._holder_at(source)
            self._watchdog.progress()
            snapshot = holder.take_snapshot(phase.id, True)
            resting = max((held.units for held in self._control.members.resting().values()), default=0)
            if snapshot.held.units > max(resting, self._committed_source.units):
                self._committed_source.adopt(snapshot, source, holder)
        except UNREACHED:
            return

    def _from_workers(self, floor: int, last: Snapshot, mode: SyncMode) -> Found | None:
        """Capture at the worker that holds the newest state, if that has at least `floor` units.

        Of those that hold it, one that lives and is out of reach may get no processor, so all are asked again for
        `hang.silent_secs`: that state is lost with the last of them.
        """
        stale: set[int] = set()
        until = self._clock.monotonic() + self._limits.silent_secs
        while holders := self._holders(floor, stale):
            failed: dict[int, HybridSyncError] = {}
            for worker, held in holders.items():
                try:
                    source = self._control.members.address_of("worker", worker)
                    self._watchdog.progress()
                    snapshot = self._holder_at(source).take_snapshot(held.phase_id, True)
                    return Found(
                        snapshot, source, rolled_back=not mode.moves_together or snapshot.held.units < last.held.units
                    )
                except StalePhase:  # threads share a replica, which has gone on since this one spoke
                    stale.add(worker)  # others name its phase
                except UNREACHED as error:
                    failed[worker] = error
            if self._clock.monotonic() >= until:
                for worker, error in failed.items():
                    self._control.members.evict(worker, f"its state could not be captured: {error}")
            elif failed:
                self._control.members.expire()
                live = self._control.members.live_workers()
                self._control.wait_until(partial(self._has_lost, live), EXPIRE_SECS)
        return None

    def _has_lost(self, workers: Sequence[int]) -> bool:
        return self._control.members.live_workers() != tuple(workers)

    def _holders(self, floor: int, stale: set[int]) -> dict[int, StateVersion]:
        """Return the workers that hold the newest state, if that has at least `floor` units, in order."""
        held = {
            worker: held
            for worker, held in self._control.members.resting().items()
            if worker not in stale and held.units >= floor and not self._is_past(held)
        }
        newest = max((each.units for each in held.values()), default=0)
        return {worker: held[worker] for worker in sorted(held) if held[worker].units == newest}


def give_up(num_tries: int, reason: str) -> HybridSyncError:
    """Return the error of a run whose every next phase breaks before it has applied a unit."""
    return RoleLost(
        f"{num_tries} phases in a row broke before they had applied a unit, the last one because {reason}; see the "
        "roles' logs, then run the same command again: it resumes from the last commit"
    )


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


class Rejoining:
    """Finds the phase that an earlier chief left, and goes on with it.

    Args:
      state: takes the phase.
      control: the states that the roles report.
      arrivals: waits for the roles.
      policy_driver: takes up a detour that no commit contains.
      process_groups: takes up the meshes that were chosen before.
      reporter: knows from the record which workers took part.
      capture_stage: captures the state of a phase that continues.
      gather: goes back to the last commit if no role is left.
    """

    def __init__(
        self,
        state: ControllerState,
        control: RunControl,
        arrivals: MemberWaits,
        policy_driver: PolicyDriver,
        process_groups: ProcessGroups,
        reporter: Reporter,
        capture_stage: CaptureStage,
        gather: GatherStage,
    ) -> None:
        self._state, self._control, self._arrivals = state, control, arrivals
        self._policy_driver, self._process_groups, self._reporter = policy_driver, process_groups, reporter
        self._capture_stage, self._gather = capture_stage, gather

    def rejoin_phase(self) -> tuple[Switching, tuple[Command, ...]] | None:
        """Return the machine of the phase that the roles are in, with its first commands; None where nobody is left.

        An asynchronous phase whose servers are in it continues as it is. Any other is broken: its workers wait for
        units already, and the next phase begins from the newest state they hold.

        Raises:
          HybridSyncError: the run cannot go on.
        """
        self._arrivals.await_registrations(self._reporter.present)
        role_states = self._control.members.role_states()
        phase = max((role_state.phase for role_state in role_states.values()), key=lambda p: p.id, default=None)
        if phase is None:
            self._control.adopt(None)
            why = "the chief was restarted, and nobody was left"
            self._gather.go_on_from(self._state.snapshot, why, rolled_back=True)
            return None
        served = [s for (role, _), s in role_states.items() if role == "server" and s.phase.id == phase.id]
        is_whole = phase.mode.is_served and len(served) == len(phase.servers) and all(s.open for s in served)
        self._adopt(phase, is_whole=is_whole)
        state = Switching(Step.RUN, phase.id.number)
        if is_whole:
            try:
                self._control.record(self._capture_stage.take_snapshot(final=False), final=False)
                self._control.open_leases()
                return state, ()
            except PhaseBroken as broken:  # a server is lost as well
                self._state.broken_by = str(broken)
        return state_machine.advance(state, state_machine.Broken())

    def _adopt(self, phase: Phase, *, is_whole: bool) -> None:
        self._state.phase, self._state.phase_id = phase, phase.id
        self._control.adopt(phase, "" if is_whole else "the chief was restarted")
        self._policy_driver.adopt(phase)
        self._reporter.continues(phase)
        for members, device_choice in self._reporter.meshes_used():
            self._process_groups.used(members, device_choice)
