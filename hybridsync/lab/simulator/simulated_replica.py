"""A worker's own copy of the state in lock-step: stepped, kept between phases, captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridsync.core.errors import StalePhase
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.core.units import UnitSet
from hybridsync.interfaces.messages import GroupReply, Snapshot, StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.storage.apply_log_entries import Entry
from hybridsync.training.snapshot import Account

if TYPE_CHECKING:
    from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster
    from hybridsync.lab.simulator.simulated_process import Process


class Replica:
    """Simulates a `hybridsync.worker.replica.Replica`, with any arithmetic's values and without threads."""

    def __init__(self, simulated: SimulatedCluster, owner: Process) -> None:
        self._simulated, self._owner = simulated, owner
        self._log = simulated.apply_log()
        self.state: Any = None
        self._phase: Phase | None = None
        self._sequence = 0
        self._applied, self._dropped = UnitSet(), UnitSet()
        self._fingerprint = ""
        self._kept: tuple[Account, Any] | None = None  # at a place, with the state
        self.first_applied = self.last_applied = 0.0

    def lacks(self, phase: Phase) -> bool:
        """Return whether the phase's starting state is not here and has to be fetched."""
        return self.state is None or self._fingerprint != phase.fingerprint

    def enter(self, phase: Phase) -> None:
        """Hold the phase's starting state.

        Raises:
          HybridSyncError: the holder of the state cannot be reached, or keeps a different one.
        """
        if self.lacks(phase):
            self.state = self._simulated.fetch(phase)
        self._log.clear()
        self._phase, self._sequence, self._kept = phase, phase.sequence, None
        self._applied, self._dropped = UnitSet(phase.applied), UnitSet(phase.dropped)
        self._fingerprint = phase.fingerprint
        self.first_applied = self.last_applied = 0.0
        self._simulated.watch.entered(self._owner, phase, self.state)
        taken, self.state = self.state, self._simulated.arithmetic.entered(self.state)
        if self.state is not taken:
            self._fingerprint = ""

    def update(
        self,
        units: tuple[int, ...],
        state: Any,
        factor: float,
        slots: tuple[int, ...] = (),
        dropped: tuple[int, ...] = (),
    ) -> None:
        """Hold `state`, to which one update applied `units` (see `hybridsync.worker.replica.Replica.update`)."""
        assert self._phase is not None
        for unit in dropped:
            self._dropped.add(unit)
        if not units:
            return
        self.state = state
        self._sequence += 1
        before = len(self._applied)
        for start, stop in _ranges(units):
            self._applied.add_range(start, stop)
        self._fingerprint = ""
        self.last_applied = self._simulated.loop.now
        self._simulated.watch.applied(self._owner, self._phase, self._sequence, (), units)
        self.first_applied = self.first_applied or self.last_applied
        if self._simulated.logs_updates:
            phase_id, base, weight = self._phase.id.number, self._sequence - 1, float(len(units))
            self._log.write(
                Entry(phase_id, self._sequence, units, base=base, rate=factor, weight=weight, blend=1.0, slots=slots)
            )
        if self._phase.passes_place(before, before + len(units)):
            self._kept = self._account(), state

    def store_full_sync(self, reply: GroupReply, state: Any, factor: float) -> None:
        """Hold what a full synchronisation made of everybody's replicas (see `hybridsync.worker.replica.Replica`)."""
        assert self._phase is not None
        self.state, self._sequence, self._fingerprint = state, reply.sequence, ""
        self._applied, self._dropped = UnitSet(reply.applied), UnitSet(reply.dropped)
        for update in reply.updates:
            self._log.write(Entry.of_groups(self._phase.id.number, update, factor))
        self._simulated.watch.synchronised(self._owner, self._phase, reply, state)

    def stamp_update(self) -> None:
        """Note that a unit was applied now to a replica that goes its own way."""
        self.last_applied = self._simulated.loop.now
        self.first_applied = self.first_applied or self.last_applied

    def held(self) -> StateVersion | None:
        """Return what is held between two phases; None before the first."""
        if self.state is None or self._phase is None:
            return None
        if not self._fingerprint:
            self._fingerprint = self._simulated.arithmetic.fingerprint(self.state)
        return StateVersion(self._phase.id, len(self._applied), self._sequence, self._fingerprint)

    def stamps(self) -> tuple[float, float]:
        """Return when the phase's first and last update were, 0 before them."""
        return self.first_applied, self.last_applied

    def take_snapshot(self, phase_id: PhaseId, final: bool, place: int) -> Snapshot:
        """Keep a copy of the state between two steps (see `hybridsync.worker.replica.Replica`).

        Raises:
          StalePhase: the replica is in another phase.
        """
        have = self._phase.id if self._phase else NO_PHASE
        if have != phase_id:
            raise StalePhase(f"phase {phase_id} was named, but this replica is in phase {have}")
        self._log.flush()
        kept, self._kept = self._kept, None
        account, state = kept if kept and not final and 0 < place <= kept[0].units else (self._account(), self.state)
        return self._owner.captured.store(state, phase_id, account)

    def _account(self) -> Account:
        return Account(
            self._sequence, self._applied.ranges(), self._dropped.ranges(), self.first_applied, self.last_applied
        )


def _ranges(units: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return units in ascending order as ranges: a step's are mostly one."""
    if units[-1] - units[0] + 1 == len(units):
        return [(units[0], units[-1] + 1)]
    return [(unit, unit + 1) for unit in units]
