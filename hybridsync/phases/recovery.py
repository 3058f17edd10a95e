"""Ends a broken phase: calls everybody back, and finds the newest state that someone holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from hybridsync.chief.membership import NOTHING, Doing
from hybridsync.chief.run_control import RunControl
from hybridsync.config import HangConfig
from hybridsync.core.clock import Clock
from hybridsync.core.deadlines import LATE_SECS
from hybridsync.core.errors import HybridSyncError, PhaseBroken, RoleLost, StalePhase, WaitTimeout
from hybridsync.core.units import Range
from hybridsync.core.work_deadlines import UNWATCHED, Watching
from hybridsync.interfaces.messages import Snapshot, StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import ReaderPort, SnapshotSource
from hybridsync.phases.hung_members import limit_of
from hybridsync.protocols.modes import SyncMode

GATHER_SECS = 2.0
"""The shortest time that a worker's process has to come back from a broken phase, once it was notified."""
EXPIRE_SECS = 0.25
"""Between two looks at who has not been heard of."""
GONE = ""
"""The address of a snapshot that no role keeps any more."""

UNREACHED = (RoleLost, StalePhase, WaitTimeout)
"""The errors of a call on a role that is gone, or is in a later phase."""


@dataclass(frozen=True)
class Start:
    """Describes the beginning of a run: a captured state, who holds it, and why; and the detours from its plan."""

    snapshot: Snapshot
    source: str
    reason: str
    phase_number: int
    committed: bool
    detours: tuple[Range, ...] = ()


class CommittedSource(Protocol):
    """Keeps the last committed state in the chief's memory."""

    @property
    def units(self) -> int:
        """Units applied in it."""
        ...

    def publish(self) -> Snapshot:
        """Return a snapshot of it, readable at the chief."""
        ...

    def adopt(self, snapshot: Snapshot, source: str, reader: ReaderPort) -> None:
        """Fetch and keep another state instead, though it is not committed."""
        ...


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


class Reach:
    """Turns what a call on a role ends with, when the role is gone, into a broken phase."""

    def __init__(self, control: RunControl, doing: str) -> None:
        self._control, self._doing = control, doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UNREACHED) and error is not self._control.failure:
            self._control.break_phase(f"{self._doing}: {error}")
            raise PhaseBroken(f"{self._doing}: {error}") from error


def give_up(num_tries: int, reason: str) -> HybridSyncError:
    """Return the error of a run whose every next phase breaks before it has applied a unit."""
    return RoleLost(
        f"{num_tries} phases in a row broke before they had applied a unit, the last one because {reason}; see the "
        "roles' logs, then run the same command again: it resumes from the last commit"
    )
