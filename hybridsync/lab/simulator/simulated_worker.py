"""A worker in virtual time: it takes one phase after the other, which the engines of the other runtimes run."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hybridsync.core.errors import HybridSyncError
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.interfaces.messages import PhaseReply, PhaseRequest, RoleState, Snapshot, StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Report
from hybridsync.lab.simulator.drive_events import EventDriver
from hybridsync.lab.simulator.engines import driver_of
from hybridsync.lab.simulator.simulated_process import Process
from hybridsync.lab.simulator.simulated_replica import Replica
from hybridsync.worker.self_probe import Rhythm
from hybridsync.worker.stats import WorkerRecorder

if TYPE_CHECKING:
    from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster


class Worker(Process):
    """One worker process.

    Attributes:
      unit: unit that the worker computes; -1 between two units.
      seconds: what its device takes for one unit after another; infinite once it hangs.
    """

    def __init__(self, simulated: SimulatedCluster, role_id: int, restart_count: int) -> None:
        super().__init__(simulated, "worker", role_id, restart_count)
        config = simulated.run_.config
        policy = config.policy
        self.recorder = WorkerRecorder(role_id, simulated.clock, simulated.keeps_spans, policy.detects, config.hang)
        self.replica = Replica(simulated, self)
        self.unit = -1
        self.recorder.at_unit = partial(setattr, self, "unit")
        self.seconds = simulated.seconds_of(role_id)
        self._hangs = False
        self._phase: Phase | None = None
        self._waits: PhaseRequest | None = None
        self._rhythm = Rhythm()
        self._driver: EventDriver | None = None

    def registered(self) -> None:
        self.recorder.incarnation = self.incarnation
        self._next(NO_PHASE, "")

    def take_report(self) -> Report:
        return self.recorder.take_report()

    def role_state(self) -> RoleState | None:
        if self._phase is None:
            return None
        if self._driver is None:
            return RoleState(self._phase, False)
        return RoleState(self._phase, True, self._driver.leases.ranges, self.recorder.completed)

    def kill(self) -> None:
        super().kill()
        if self._driver is not None:
            self._driver.close()

    def hang(self) -> None:
        """Never end a unit again from the next one on; the process lives, and goes on to report."""
        self.seconds, self._hangs = itertools.repeat(math.inf), True

    @property
    def out_of_reach(self) -> bool:
        """Return whether it is in a unit that never ends: nobody calls it back from its phase."""
        return self._hangs and self.unit >= 0

    def held(self) -> StateVersion | None:
        """Return the state that the process holds; None where it holds none."""
        return self.replica.held()

    # --- phases ---

    def revoke(self, phase_id: PhaseId) -> None:
        if self._driver is not None and self._phase is not None and self._phase.id == phase_id:
            self._driver.revoke(f"phase {phase_id} was revoked")

    def end_phase(self, failure: str) -> None:
        """Go to the next phase: the engine has ended."""
        assert self._phase is not None
        self._driver = None
        self._next(self._phase.id, failure)

    def _next(self, after: PhaseId, failure: str) -> None:
        self._waits = PhaseRequest(self.id, self.incarnation, after, self.replica.held(), failure)
        self._ask(self._waits)

    def _ask(self, request: PhaseRequest) -> None:
        self.calls.ask("next_phase", lambda: self.simulated.phase_for(request), self._told)

    def _told(self, reply: PhaseReply | HybridSyncError) -> None:
        if isinstance(reply, HybridSyncError) or reply.done:
            self.leave()
            return
        if reply.phase is None:
            self.simulated.loop.after(
                self._probe_secs(reply.probe), self._measured, self._waits, self.simulated.loop.now
            )
            return
        self._phase, self._waits, self._rhythm = reply.phase, None, Rhythm()
        phase = reply.phase
        self.recorder.enter(phase.id, not phase.protocol.awaits_workers)
        self._driver = driver_of(self, phase)
        self._driver.begin()

    # --- while it is left out ---

    def unit_secs(self, unit: int) -> float:
        """Return how long this worker's device takes for `unit`, beginning now."""
        secs, simulated = next(self.seconds), self.simulated
        return simulated.slowness(self.id, unit).compute_secs(secs) if simulated.slow else secs

    def _probe_secs(self, unit: int) -> float:
        """Return what a unit and its part in a collective take, beginning now."""
        return self.unit_secs(unit) + self.simulated.part_secs(self.id, unit, "contribution")

    def _measured(self, waits: PhaseRequest, started: float) -> None:
        """Note what a unit for nothing took, and rest, ready to be called back."""
        if self.halted(self._measured, waits, started):
            return
        now = self.simulated.loop.now
        self.recorder.probe(started, now)
        rest_secs = self._rhythm.rest_secs(now - started)
        self._ask(replace(waits, rest_secs=rest_secs))
        if rest_secs:
            self.simulated.loop.after(rest_secs, self._rested, waits)

    def _rested(self, waits: PhaseRequest) -> None:
        if not self.halted(self._rested, waits) and self._waits is waits:  # else it was called back meanwhile
            self._ask(waits)

    def take_snapshot(self, phase_id: PhaseId, final: bool, place: int = 0) -> Snapshot:
        """Keep a copy of the replica (see `SnapshotSource.take_snapshot`)."""
        self.await_reached()
        snapshot = self.replica.take_snapshot(phase_id, final, place)
        self.simulated.spend(self.simulated.network.cluster.costs.capture_secs)
        return snapshot
