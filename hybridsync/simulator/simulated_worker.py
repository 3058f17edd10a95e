"""A worker in virtual time: it takes one phase after the other, which the engines of the other runtimes run."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hybridsync.core.errors import HybridSyncError
from hybridsync.core.plan import NO_EPOCH, Epoch
from hybridsync.interfaces.messages import Capture, Held, PhaseReply, PhaseRequest, Standing
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Report
from hybridsync.simulator.drive_events import EventDriver
from hybridsync.simulator.engines import driver_of
from hybridsync.simulator.simulated_process import Process
from hybridsync.simulator.simulated_replica import Replica
from hybridsync.worker.self_probe import Rhythm
from hybridsync.worker.stats import WorkerRecorder

if TYPE_CHECKING:
    from hybridsync.simulator.simulated_cluster import World


class Worker(Process):
    """One worker process.

    Attributes:
      unit: whose computation began last; -1 when it has ended.
      seconds: what its device takes for one unit after another; infinite once it hangs.
    """

    def __init__(self, world: World, role_id: int, life: int) -> None:
        super().__init__(world, "worker", role_id, life)
        policy = world.run_.config.policy
        self.recorder = WorkerRecorder(role_id, world.clock, world.keeps_spans, policy.detects)
        self.replica = Replica(world, self)
        self.unit = -1
        self.recorder.at_unit = partial(setattr, self, "unit")
        self.seconds = world.seconds_of(role_id)
        self._hangs = False
        self._phase: Phase | None = None
        self._waits: PhaseRequest | None = None
        self._rhythm = Rhythm()
        self._driver: EventDriver | None = None

    def registered(self) -> None:
        self.recorder.incarnation = self.incarnation
        self._next(NO_EPOCH, "")

    def drain(self) -> Report:
        return self.recorder.drain()

    def standing(self) -> Standing | None:
        if self._phase is None:
            return None
        if self._driver is None:
            return Standing(self._phase, False)
        return Standing(self._phase, True, self._driver.leases.ranges, self.recorder.completed)

    def kill(self) -> None:
        super().kill()
        if self._driver is not None:
            self._driver.close()

    def hang(self) -> None:
        """Never end a unit again from the next one on; the process lives, and goes on to report."""
        self.seconds, self._hangs = itertools.repeat(math.inf), True

    @property
    def out_of_reach(self) -> bool:
        """Whether it is in a unit that never ends: nobody calls it back from its phase."""
        return self._hangs and self.unit >= 0

    def held(self) -> Held | None:
        """Return the state that the process holds; None where it holds none."""
        return self.replica.held()

    # --- phases ---

    def revoke(self, epoch: Epoch) -> None:
        if self._driver is not None and self._phase is not None and self._phase.epoch == epoch:
            self._driver.revoke(f"epoch {epoch} was revoked")

    def left(self, failure: str) -> None:
        """Go to the next phase: the engine has ended."""
        assert self._phase is not None
        self._driver = None
        self._next(self._phase.epoch, failure)

    def _next(self, after: Epoch, failure: str) -> None:
        self._waits = PhaseRequest(self.id, self.incarnation, after, self.replica.held(), failure)
        self._ask(self._waits)

    def _ask(self, request: PhaseRequest) -> None:
        self.call("next_phase", lambda: self.world.phase_for(request), self._told)

    def _told(self, reply: PhaseReply | HybridSyncError) -> None:
        if isinstance(reply, HybridSyncError) or reply.done:
            self.leave()
            return
        if reply.phase is None:
            self.world.loop.after(self._probe_secs(reply.probe), self._measured, self._waits, self.world.loop.now)
            return
        self._phase, self._waits, self._rhythm = reply.phase, None, Rhythm()
        phase = reply.phase
        self.recorder.enter(phase.epoch, not phase.protocol.awaits_workers)
        self._driver = driver_of(self, phase)
        self._driver.begin()

    # --- while it is left out ---

    def unit_secs(self, unit: int) -> float:
        """Return how long this worker's device takes for `unit`, beginning now."""
        secs, world = next(self.seconds), self.world
        return world.slowness(self.id, unit).compute_secs(secs) if world.slow else secs

    def _probe_secs(self, unit: int) -> float:
        """Return what a unit and its part in a collective take, beginning now."""
        world, secs = self.world, self.unit_secs(unit)
        sizes = world.arithmetic.sizes
        return secs + (world.slowness(self.id, unit).transfer_secs(sizes.gradient) if world.late else 0.0)

    def _measured(self, waits: PhaseRequest, started: float) -> None:
        """Note what a unit for nothing took, and rest, ready to be called back."""
        if self.halted(self._measured, waits, started):
            return
        now = self.world.loop.now
        self.recorder.probe(started, now)
        rest_secs = self._rhythm.rest_secs(now - started)
        self._ask(replace(waits, rest_secs=rest_secs))
        if rest_secs:
            self.world.loop.after(rest_secs, self._rested, waits)

    def _rested(self, waits: PhaseRequest) -> None:
        if not self.halted(self._rested, waits) and self._waits is waits:  # else it was called back meanwhile
            self._ask(waits)

    def capture(self, epoch: Epoch, final: bool) -> Capture:
        """Keep a copy of the replica (see `HolderPort.capture`)."""
        self.await_reached()
        capture = self.replica.capture(epoch)
        self.world.spend(self.world.network.cluster.costs.capture_secs)
        return capture
