"""Finds the state that the next phase begins from: captured where a phase ends, or gathered after one has broken."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from hybridsync.chief.membership import NOTHING, Doing
from hybridsync.core.deadlines import LATE_SECS
from hybridsync.core.errors import HybridSyncError, PhaseBroken, RoleLost, StalePhase
from hybridsync.interfaces.messages import Snapshot, StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import SnapshotSource
from hybridsync.phases import state_machine
from hybridsync.phases.entry import MemberWaits
from hybridsync.phases.housekeeping import Housekeeping
from hybridsync.phases.hung_members import limit_of
from hybridsync.phases.policy_driver import PolicyDriver
from hybridsync.phases.process_groups import ProcessGroups, check_replicas
from hybridsync.phases.run_context import GONE, TICK_SECS, UNREACHED, CommittedSource, Reach, RunContext
from hybridsync.phases.state_machine import Command, Step, Switching
from hybridsync.protocols.modes import SyncMode

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
      run: what the stages of a run share.
      holder_at: returns the role at an address that can take a snapshot of the state.
      committed_source: source of the last committed state.
      chief_address: the chief's address.
      gather_secs: the shortest time that a worker has to come back; threads, which cannot be given up, may compile.
    """

    def __init__(
        self,
        run: RunContext,
        holder_at: Callable[[str], SnapshotSource],
        committed_source: CommittedSource,
        chief_address: str,
        gather_secs: float = GATHER_SECS,
    ) -> None:
        self._run, self._holder_at, self._gather_secs = run, holder_at, gather_secs
        self._committed_source, self._chief_address = committed_source, chief_address
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
        if phase.mode.is_served and self._are_live(*phase.servers):
            served = self._from_servers(phase)
            if source == phase.servers[0]:
                source = GONE  # a holder has room for one snapshot: should this one fail, the last is lost too
        self._call_back(phase, max(self._gather_secs, 10 * unit_secs))
        if served is not None:
            return served
        # One may hold the newest state
        self._run.control.wait_until(lambda chief: not chief.unheard(), self._gather_secs)
        while snapshot.held.units >= self._committed_source.units and self._are_live(source):
            found = self._from_workers(snapshot.held.units, snapshot, phase.mode)
            if found is not None:
                return found
            if self._are_live(source):  # and was not evicted just now, being one of those workers
                return Found(snapshot, source, rolled_back=True)
        found = self._from_workers(self._committed_source.units, snapshot, phase.mode)
        newest = found.snapshot.held.units if found else self._committed_source.units
        if self._run.saving.await_newer(newest, self._run.tick):
            found = self._from_workers(self._committed_source.units, snapshot, phase.mode)
        return found or Found(self._committed_source.publish(), self._chief_address, rolled_back=True)

    def _from_servers(self, phase: Phase) -> Found | None:
        """Capture the state of a phase whose servers all live: it refuses every later push."""
        source = phase.servers[0]
        try:
            self._run.watchdog.progress()
            return Found(self._holder_at(source).take_snapshot(phase.id, True), source, rolled_back=False)
        except UNREACHED:  # not entered, or gone this moment: others may hold a state
            return None

    def _call_back(self, phase: Phase, secs: float) -> None:
        started = looked = self._run.clock.monotonic()
        while True:
            with self._run.control.turn() as chief:
                missing, doing = chief.missing_back(), chief.doing()
            if not missing:
                return
            now = self._run.clock.monotonic()
            if now - looked > LATE_SECS:  # this process stood still, and has heard of nobody meanwhile
                started = now
            looked = now
            allowed = {worker: max(secs, self._leave_secs(doing.get(worker, NOTHING))) for worker in missing}
            if late := [worker for worker in missing if now - started > allowed[worker]]:
                self._rescue(late, phase)
                with self._run.control.turn() as chief:
                    for worker in late:
                        why = f"did not come back from a broken phase within {allowed[worker]:g} s"
                        chief.evict("worker", worker, why)
                continue
            self._run.watchdog.progress()
            with self._run.control.turn() as chief:
                chief.expire()
            self._run.control.wait_until(lambda chief: not chief.missing_back(), EXPIRE_SECS)

    def _leave_secs(self, doing: Doing) -> float:
        """Return how long a worker may take to leave what it is at: a revocation ends waits alone."""
        limit, _ = limit_of(doing, self._run.config.hang)
        return self._run.config.hang.compute_secs if limit == math.inf else limit

    def _rescue(self, missing: list[int], phase: Phase) -> None:
        """Fetch the state of a worker that lives, but cannot come back: it may be the newest.

        Its training thread is where nothing can reach it, in the user's own code for example; its holder is not.
        """
        with self._run.control.turn() as chief:
            silent = chief.silent(GATHER_SECS)
        alive = [worker for worker in missing if ("worker", worker) not in silent]
        if not alive or not phase.mode.moves_together:
            return
        try:
            source = self._address_of(alive[0])
            holder = self._holder_at(source)
            self._run.watchdog.progress()
            snapshot = holder.take_snapshot(phase.id, True)
            with self._run.control.turn() as chief:
                resting = max((held.units for held in chief.members.held_states().values()), default=0)
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
        until = self._run.clock.monotonic() + self._run.config.hang.silent_secs
        while holders := self._holders(floor, stale):
            failed: dict[int, HybridSyncError] = {}
            for worker, held in holders.items():
                try:
                    source = self._address_of(worker)
                    self._run.watchdog.progress()
                    snapshot = self._holder_at(source).take_snapshot(held.phase_id, True)
                    return Found(
                        snapshot, source, rolled_back=not mode.moves_together or snapshot.held.units < last.held.units
                    )
                except StalePhase:  # threads share a replica, which has gone on since this one spoke
                    stale.add(worker)  # others name its phase
                except UNREACHED as error:
                    failed[worker] = error
            if self._run.clock.monotonic() >= until:
                with self._run.control.turn() as chief:
                    for worker, error in failed.items():
                        chief.evict("worker", worker, f"its state could not be captured: {error}")
            elif failed:
                with self._run.control.turn() as chief:
                    chief.expire()
                    live = chief.members.workers.ids()
                self._run.control.wait_until(lambda chief, live=live: chief.members.workers.ids() != live, EXPIRE_SECS)
        return None

    def _are_live(self, *addresses: str) -> bool:
        with self._run.control.turn() as chief:
            return all(map(chief.members.is_live, addresses))

    def _address_of(self, worker: int) -> str:
        with self._run.control.turn() as chief:
            return chief.members.address_of("worker", worker)

    def _holders(self, floor: int, stale: set[int]) -> dict[int, StateVersion]:
        """Return the workers that hold the newest state, if that has at least `floor` units, in order."""
        with self._run.control.turn() as chief:
            resting = chief.members.held_states()
        held = {
            worker: held
            for worker, held in resting.items()
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
      run: what the stages of a run share.
      recovery: finds the state.
      process_groups: process groups; the meshes with a lost member end.
      upkeep: knows the lost workers.
      forget: called with the sequence of the state that the run continues from when later updates are lost.
      guess_secs: taken for the seconds of a unit until one was seen.
    """

    def __init__(
        self,
        run: RunContext,
        recovery: Recovery,
        process_groups: ProcessGroups,
        upkeep: Housekeeping,
        forget: Callable[[int], object],
        guess_secs: float,
    ) -> None:
        self._run, self._recovery, self._process_groups, self._upkeep = run, recovery, process_groups, upkeep
        self._forget, self._guess_secs = forget, guess_secs

    def gather(self) -> state_machine.Event:
        """Find the newest state that someone holds, and make the ledger say what it does.

        Raises:
          RoleLost: too many phases in a row broke before they applied a unit.
          HybridSyncError: the run cannot go on.
        """
        state = self._run.state
        started = self._run.timer.start()
        with self._run.control.turn() as chief:
            reason = chief.gather() or state.broken_by  # on the way into a run's first phase, no phase has it
        self._upkeep.take_fenced()
        if state.phase is not None:
            unit_secs, self._guess_secs = self._run.pace.unit_secs(state.phase) or self._guess_secs, 0.0
            found = self._recovery.gather(state.phase, (state.snapshot, state.source), unit_secs)
            state.snapshot, state.source = found.snapshot, found.source
            self.go_on_from(found.snapshot, reason, rolled_back=found.rolled_back)
        self._process_groups.discard_meshes()
        state.num_broken += 1
        if state.num_broken > MAX_BROKEN:
            raise give_up(state.num_broken, reason)
        state.reason = "death"
        self._run.timer.record("gather", started)
        self._run.timer.restart()
        with self._run.control.turn() as chief:
            preempted, stopped = chief.preempted, chief.stop_reason is not None
        state.evaluates = stopped or state.snapshot.held.units >= self._run.config.workload
        return state_machine.Gathered(last=state.evaluates or preempted)

    def go_on_from(self, snapshot: Snapshot, why: str, *, rolled_back: bool) -> None:
        """Make ledger, apply log and record say what `snapshot` does, and what it lacks."""
        with self._run.control.turn() as chief:
            lost, preempted = chief.restore(snapshot, rolled_back=rolled_back), chief.preempted
        if lost and preempted:  # no phase follows that would apply them again
            self._run.state.lost_at_stop, self._run.state.lost_why = self._run.state.lost_at_stop + lost, why
        self._forget(snapshot.held.sequence)
        self._run.reporter.broke(snapshot, why, lost)


class CaptureStage:
    """Drains the current phase, and captures the state at the role that holds it.

    Args:
      run: what the stages of a run share.
      holder_at: returns the role at an address that can take a snapshot of the state.
    """

    def __init__(self, run: RunContext, holder_at: Callable[[str], SnapshotSource]) -> None:
        self._run, self._holder_at = run, holder_at

    def drain(self) -> state_machine.Event:
        """Stop the leases; where the members hold the state, wait until everybody has come back.

        Raises:
          PhaseBroken: a member was lost, or was waited for too long.
          WaitTimeout: these are threads, which cannot be given up.
        """
        phase = self._run.state.current_phase
        started = self._run.timer.start()
        with self._run.control.turn() as chief:
            chief.close_leases()
        while not phase.mode.is_served and not self._run.control.wait_until(
            lambda chief: chief.is_drained(), TICK_SECS
        ):
            self._run.tick()
            with self._run.control.turn() as chief:
                chief.raise_broken()
            self._run.pace.check(phase)
        with self._run.control.turn() as chief:
            if phase.mode.moves_together:
                chief.raise_broken()  # which ends the wait, too: some are still in a step
            ended = not phase.mode.is_served and chief.phase_members.units_reached() >= phase.end_units
        self._run.timer.restart()
        self._run.timer.record("drain", started)
        if ended:
            self._run.state.reason = "planned"
        return state_machine.Drained(ended, last=phase.end_units >= self._run.config.workload)

    def capture_final(self) -> state_machine.Event:
        """Capture the state with which the phase ends, and let its members go.

        Raises:
          PhaseBroken: the holder could not be reached, or a member was lost.
          HybridSyncError: the members' replicas are not equal.
        """
        started = self._run.timer.start()
        snapshot = self.take_snapshot(final=True)
        with self._run.control.turn() as chief:
            chief.record_snapshot(snapshot)
            chief.ledger.release_all()
            back = dict(chief.phase_members.back)
        check_replicas(back, snapshot, self._run.state.source)
        self._run.reporter.tick()
        self._run.reporter.ended(snapshot)
        is_last = snapshot.held.units >= self._run.config.workload
        with self._run.control.turn() as chief:
            self._run.state.evaluates = is_last or not chief.preempted or chief.stop_reason is not None
        if not self._run.state.evaluates:
            self._run.saving.leave(snapshot.held.units)
        self._run.saving.training.clear()
        self._run.timer.record("capture", started)
        return state_machine.Captured(last=is_last)

    def capture_live(self) -> state_machine.Event:
        """Capture the state while the phase goes on.

        Raises:
          PhaseBroken: the holder could not be reached, or a member was lost.
        """
        place = self._run.saving.next_place
        snapshot = self.take_snapshot(final=False, place=place)
        self._run.state.evaluates = 0 < place <= snapshot.held.units
        self._run.state.captured = snapshot.last_applied
        return state_machine.Captured()

    def take_snapshot(self, *, final: bool, place: int = 0) -> Snapshot:
        """Have the role that holds the state capture it, and return the snapshot (see `SnapshotSource.take_snapshot`).

        Raises:
          PhaseBroken: the holder could not be reached, or a member was lost.
        """
        state, phase = self._run.state, self._run.state.current_phase
        if phase.mode.has_group_rounds:
            self._run.pace.await_together(phase, self._run.tick, final=final)
        role, role_id = phase.mode.holder(phase.members)
        with Reach(self._run.control, f"the state of {role} {role_id} could not be captured"):
            with self._run.control.turn() as chief:
                source = chief.members.address_of(role, role_id)
            if source == state.source:
                state.source = GONE  # a holder has room for one snapshot: should this one fail, the last is lost too
            snapshot = self._holder_at(source).take_snapshot(phase.id, final, place)
        with self._run.control.turn() as chief:
            first, last = chief.stamps_of(role, role_id, snapshot)
        state.snapshot, state.source = replace(snapshot, first_applied=first, last_applied=last), source
        return state.snapshot


class Rejoining:
    """Finds the phase that an earlier chief left, and goes on with it.

    Args:
      run: what the stages of a run share.
      arrivals: waits for the roles.
      policy_driver: takes up a detour that no commit contains.
      process_groups: takes up the meshes that were chosen before.
      capture_stage: captures the state of a phase that continues.
      gather: goes back to the last commit if no role is left.
    """

    def __init__(
        self,
        run: RunContext,
        arrivals: MemberWaits,
        policy_driver: PolicyDriver,
        process_groups: ProcessGroups,
        capture_stage: CaptureStage,
        gather: GatherStage,
    ) -> None:
        self._run, self._arrivals, self._policy_driver = run, arrivals, policy_driver
        self._process_groups, self._capture_stage, self._gather = process_groups, capture_stage, gather

    def rejoin_phase(self) -> tuple[Switching, tuple[Command, ...]] | None:
        """Return the machine of the phase that the roles are in, with its first commands; None where nobody is left.

        An asynchronous phase whose servers are in it continues as it is. Any other is broken: its workers wait for
        units already, and the next phase begins from the newest state they hold.

        Raises:
          HybridSyncError: the run cannot go on.
        """
        self._arrivals.await_registrations(self._run.reporter.present)
        with self._run.control.turn() as chief:
            role_states = chief.members.role_states()
        phase = max((role_state.phase for role_state in role_states.values()), key=lambda p: p.id, default=None)
        if phase is None:
            with self._run.control.turn() as chief:
                chief.adopt(None)
            why = "the chief was restarted, and nobody was left"
            self._gather.go_on_from(self._run.state.snapshot, why, rolled_back=True)
            return None
        served = [s for (role, _), s in role_states.items() if role == "server" and s.phase.id == phase.id]
        is_whole = phase.mode.is_served and len(served) == len(phase.servers) and all(s.open for s in served)
        self._adopt(phase, is_whole=is_whole)
        state = Switching(Step.RUN, phase.id.number)
        if is_whole:
            try:
                snapshot = self._capture_stage.take_snapshot(final=False)
                with self._run.control.turn() as chief:
                    chief.record_snapshot(snapshot, final=False)
                    chief.open_leases()
                return state, ()
            except PhaseBroken as broken:  # a server is lost as well
                self._run.state.broken_by = str(broken)
        return state_machine.advance(state, state_machine.Broken())

    def _adopt(self, phase: Phase, *, is_whole: bool) -> None:
        self._run.state.phase, self._run.state.phase_id = phase, phase.id
        with self._run.control.turn() as chief:
            chief.adopt(phase, "" if is_whole else "the chief was restarted")
        self._policy_driver.adopt(phase)
        self._run.reporter.continues(phase)
        for members, device_choice in self._run.reporter.meshes_used():
            self._process_groups.used(members, device_choice)
