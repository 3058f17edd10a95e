"""A worker in virtual time: it carries out the effects of the very programs that the other runtimes run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from hybridsync import protocols
from hybridsync.errors import HybridSyncError, PhaseRevoked
from hybridsync.messages import (
    Capture,
    Held,
    LeaseReply,
    LeaseRequest,
    PhaseReply,
    PhaseRequest,
    Standing,
)
from hybridsync.paths.allotment import Allotment
from hybridsync.paths.measuring import Rhythm
from hybridsync.paths.recorder import WorkerRecorder
from hybridsync.plan import NO_EPOCH, Epoch, Phase
from hybridsync.protocols.base import Effect
from hybridsync.reports import Report
from hybridsync.sim.drive_events import PENDING, EventDriver
from hybridsync.sim.process import Process
from hybridsync.sim.replica import Replica

if TYPE_CHECKING:
    from hybridsync.sim.world import World

Units = tuple[int, ...]
EFFECTS = {kind.__name__: kind for kind in get_args(Effect)}


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
        self._engine: Engine | EventDriver | None = None

    def registered(self) -> None:
        self.recorder.incarnation = self.incarnation
        self._next(NO_EPOCH, "")

    def drain(self) -> Report:
        return self.recorder.drain()

    def standing(self) -> Standing | None:
        if self._phase is None:
            return None
        if self._engine is None:
            return Standing(self._phase, False)
        return Standing(self._phase, True, self._engine.leases.ranges, self.recorder.completed)

    def kill(self) -> None:
        super().kill()
        if self._engine is not None:
            self._engine.close()

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
        if self._engine is not None and self._phase is not None and self._phase.epoch == epoch:
            self._engine.revoke(f"epoch {epoch} was revoked")

    def left(self, failure: str) -> None:
        """Go to the next phase: the engine has ended."""
        assert self._phase is not None
        self._engine = None
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
        self.recorder.enter(phase.epoch, not protocols.parse(phase.spec).awaits_workers)
        self._engine = self.world.engine_of(self, phase)
        self._engine.begin()

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


class Engine:
    """Drives one program in one phase; what it waits for calls `resume`.

    Args:
      worker: whose program it is.
      phase: that it takes part in.
    """

    # Of the class, as what each of many engines has of its own is in no cache when its turn comes.
    _handlers: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {}

    def __init__(self, worker: Worker, phase: Phase) -> None:
        self.worker, self.phase, self.world = worker, phase, worker.world
        self.recorder = worker.recorder
        self.protocol = protocols.parse(phase.spec)
        self.allotment = self.leases = Allotment()
        self._program = self.protocol.worker_program(len(phase.members))
        self._asking = False
        self._wanted = 0
        self._at_once = self.protocol.awaits_workers
        self._refused: HybridSyncError | None = None
        self._over = False

    def __init_subclass__(cls) -> None:
        cls._handlers = {kind: getattr(cls, name) for name, kind in EFFECTS.items() if hasattr(cls, name)}

    def begin(self) -> None:
        """Take part in the phase."""
        self.resume(None)

    def resume(self, result: Any) -> None:
        """Go on with the result of the effect that was waited for."""
        send, handlers = self._program.send, self._handlers
        try:
            effect = send(result)
            while (result := handlers[type(effect)](self, effect)) is not PENDING:
                effect = send(result)
        except StopIteration:
            self._end("")

    def revoke(self, reason: str) -> None:
        """Throw the revocation into the program, which does not survive it."""
        if self._over or self.worker.out_of_reach:
            return
        try:
            self._program.throw(PhaseRevoked(reason))
        except (PhaseRevoked, StopIteration):
            self._end(f"PhaseRevoked: {reason}")
            return
        raise AssertionError("a worker program went on after its phase was revoked; PhaseRevoked is not to be caught")

    def close(self) -> None:
        """End with the process."""
        self._over = True
        self._program.close()

    def _end(self, failure: str) -> None:
        self._over = True
        self.worker.left(failure)

    def _stale(self, call: Any, *args: Any) -> bool:
        """Whether what comes now is not for this engine any more, or not yet."""
        return self._over or self.worker.halted(call, *args)

    # --- units ---

    def take(self, count: int) -> Any:
        """Return the next `count` units, or PENDING until the chief gives more."""
        allotment = self.allotment
        if self._refused is not None:
            self.revoke(str(self._refused))
            return PENDING
        if allotment.lacks(count):
            self._wanted = count
            self._ask()
            return PENDING
        units = allotment.take(count)
        if allotment.is_low and not self._asking:
            self._ask()
        return self.taken(units)

    def taken(self, units: tuple[int, ...]) -> Any:
        """Return what a Lease results in."""
        return units or None

    def _ask(self) -> None:
        if self._asking:
            return
        self._asking = True
        worker, allotment = self.worker, self.allotment
        completed = min(self.recorder.completed, allotment.known)
        asked = allotment.known, completed, self._at_once or self.takes_fewer, self._wanted or 1
        request = LeaseRequest(worker.id, worker.incarnation, self.phase.epoch, *asked)
        worker.call("lease", lambda: self.world.units_for(request), self._given)

    def _given(self, reply: LeaseReply | HybridSyncError) -> None:
        if self._over:
            return
        self._asking = False
        if isinstance(reply, HybridSyncError):
            self._refused = reply  # of a renewal it is heard with the next lease, as in a thread
            if self._wanted:
                self.revoke(str(reply))
            return
        self.world.watch.leased(self.worker, self.phase, reply)
        self.allotment.extend(reply)
        self.extended(reply)

    def extended(self, reply: LeaseReply) -> None:
        """Go on with what the chief has given, if it is enough."""
        if self._at_once and self._wanted and self.allotment.lacks(self._wanted):
            self._at_once = False  # from now on the answer may take its time
            self.tell_idle()
            return
        if self._wanted:
            count, self._wanted = self._wanted, 0
            self._at_once = self.protocol.awaits_workers
            result = self.take(count)
            if result is not PENDING:
                self.resume(result)

    @property
    def takes_fewer(self) -> bool:
        """Whether the units in hand will do where the chief has no more to give now, though they are fewer."""
        return False

    def tell_idle(self) -> None:
        """Tell whoever waits for this worker that it has nothing to compute, and ask for units again."""
        raise AssertionError(f"nobody waits for a worker of the {self.protocol.path.value} path")

    def compute_secs(self, unit: int) -> float:
        """Return how long this worker's device takes for `unit`, beginning now."""
        return self.worker.unit_secs(unit)
