"""A worker in virtual time: it carries out the effects of the very programs that the other runtimes run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from hybridsync import protocols
from hybridsync.errors import HybridSyncError, PhaseRevoked, RoleLost, StaleIncarnation, WaitTimeout
from hybridsync.messages import (
    NON_FINITE,
    WAITING,
    Capture,
    Held,
    LeaseReply,
    LeaseRequest,
    PhaseReply,
    PhaseRequest,
    Push,
    PushReply,
    Report,
    Standing,
)
from hybridsync.paths.allotment import Allotment
from hybridsync.paths.recorder import WorkerRecorder
from hybridsync.plan import NO_EPOCH, Epoch, Phase
from hybridsync.protocols.base import Effect
from hybridsync.sim.network import Insisting
from hybridsync.sim.process import TRY_SECS, Process, is_lost
from hybridsync.sim.replica import Replica
from hybridsync.sim.server import Server

if TYPE_CHECKING:
    from hybridsync.sim.world import World

Units = tuple[int, ...]
EFFECTS = {kind.__name__: kind for kind in get_args(Effect)}
PENDING: Any = object()
"""What a handler returns whose effect's result comes later."""


class Worker(Process):
    """One worker process.

    Attributes:
      unit: whose computation began last; -1 when it has ended.
      seconds: what its device takes for one unit after another.
    """

    def __init__(self, world: World, role_id: int, life: int) -> None:
        super().__init__(world, "worker", role_id, life)
        policy = world.run_.config.policy
        self.recorder = WorkerRecorder(role_id, world.clock, world.keeps_spans, policy.detects)
        self.replica = Replica(world, self)
        self.unit = -1
        self.seconds = world.network.cluster.device(role_id).seconds(world.normals)
        self._phase: Phase | None = None
        self._engine: Engine | None = None

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
        return Standing(self._phase, True, self._engine.allotment.ranges, self.recorder.completed)

    def kill(self) -> None:
        super().kill()
        if self._engine is not None:
            self._engine.close()

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
        request = PhaseRequest(self.id, self.incarnation, after, self.replica.held(), failure)
        self.call("next_phase", lambda: self.world.phase_for(request), self._told)

    def _told(self, reply: PhaseReply | HybridSyncError) -> None:
        if isinstance(reply, HybridSyncError) or reply.done:
            self.leave()
            return
        assert reply.phase is not None
        self._phase = phase = reply.phase
        self.recorder.enter(phase.epoch, not protocols.parse(phase.spec).awaits_workers)
        self._engine = self.world.engine_of(self, phase)
        self._engine.begin()

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

    def __init__(self, worker: Worker, phase: Phase) -> None:
        self.worker, self.phase, self.world = worker, phase, worker.world
        self.recorder = worker.recorder
        self.protocol = protocols.parse(phase.spec)
        self.allotment = Allotment()
        self._program = self.protocol.worker_program(len(phase.members))
        self._handlers = {kind: getattr(self, name) for name, kind in EFFECTS.items() if hasattr(self, name)}
        self._asking = False
        self._wanted = 0
        self._at_once = self.protocol.awaits_workers
        self._over = False

    def begin(self) -> None:
        """Take part in the phase."""
        self.resume(None)

    def resume(self, result: Any) -> None:
        """Go on with the result of the effect that was waited for."""
        send, handlers = self._program.send, self._handlers
        try:
            while result is not PENDING:
                effect = send(result)
                result = handlers[type(effect)](effect)
        except StopIteration:
            self._end("")

    def revoke(self, reason: str) -> None:
        """Throw the revocation into the program, which does not survive it."""
        if self._over:
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
        worker = self.worker
        secs, world = next(worker.seconds), worker.world
        return world.slowed(worker.id, unit, secs) if world.slow else secs


class ServerEngine(Engine):
    """The SERVER path."""

    def __init__(self, worker: Worker, phase: Phase) -> None:
        super().__init__(worker, phase)
        world, network = self.world, self.world.network
        insisting = Insisting(network, world.loop, world.retry_secs, self._stale)
        self._send = network.to_server if network.reliable else insisting.to_server
        self._sent_at = 0.0
        self._push: Push
        self._server: Server = self.world.at(phase.servers[0])
        self._take_push, self._hear, self._end_unit = self._server.push, self._answered, self._computed

    def tell_idle(self) -> None:
        worker = self.worker
        push = Push(self.phase.epoch, worker.id, worker.incarnation, (), 0)
        self._send(worker.id, 0, self._server.idle, push, self._noted)

    def Lease(self, effect: Any) -> Any:
        allotment, count = self.allotment, effect.count
        if allotment.position + count > allotment.calm_until:
            return self.take(count)
        return allotment.take(count)

    def Pull(self, effect: Any) -> Any:
        worker = self.worker
        push = self._push = Push(self.phase.epoch, worker.id, worker.incarnation, (), 0)
        self._sent_at = self.world.loop.now
        self._send(worker.id, 0, self._server.pull, push, self._answered)
        return PENDING

    def Compute(self, effect: Any) -> Any:
        units, (base, parameters) = effect.units, effect.parameters
        (unit,) = units
        world = self.world
        self.worker.unit, self.recorder.doing = unit, "compute"
        gradient, loop = (units, base, world.arithmetic.gradient(parameters, unit)), world.loop
        loop.after(self.compute_secs(unit), self._end_unit, gradient, loop.now)
        return PENDING

    def _computed(self, gradient: Any, started: float) -> None:
        worker, world = self.worker, self.world
        if self._over or (worker.stopped and worker.halted(self._computed, gradient, started)):
            return
        worker.unit, self.recorder.doing = -1, ""
        self.recorder.computed("server", started, world.loop.now, world.arithmetic.loss(gradient[2]))
        self.resume(gradient)

    def PushPull(self, effect: Any) -> Any:
        units, base, contribution = effect.gradient
        worker, world = self.worker, self.world
        push = self._push = Push(self.phase.epoch, worker.id, worker.incarnation, units, base)
        self._sent_at = world.loop.now
        self._send(worker.id, world.arithmetic.sizes.gradient, self._take_push, push, contribution, self._hear)
        return PENDING

    def Ready(self, effect: Any) -> Any:
        units, base, _ = effect.gradient
        worker, self._sent_at = self.worker, self.world.loop.now
        push = Push(self.phase.epoch, worker.id, worker.incarnation, units, base)
        self._send(worker.id, 0, self._server.ready, push, self._granted)
        return PENDING

    def _is_served(self, answer: PushReply | HybridSyncError) -> bool:
        """Whether a call brought what it was made for; else the engine ends, if it has not."""
        if self._over or isinstance(answer, PushReply):
            return not self._over
        if isinstance(answer, StaleIncarnation):  # another has this place: the process ends
            self.worker.leave()
        else:
            self.revoke(f"{type(answer).__name__}: {answer}")
        return False

    def _noted(self, answer: PushReply | HybridSyncError, parameters: Any) -> None:
        if self._is_served(answer):
            self._ask()

    def _granted(self, answer: PushReply | HybridSyncError, parameters: Any) -> None:
        if self._is_served(answer):
            self.recorder.waited("ready", "server", self._sent_at, self.world.loop.now)
            self.resume(None)

    def _answered(self, answer: PushReply | HybridSyncError, parameters: Any) -> None:
        if not isinstance(answer, PushReply) or self._over:
            self._is_served(answer)
            return
        push, world, recorder = self._push, self.world, self.recorder
        if push.units:
            recorder.waited("push_pull", "server", self._sent_at, world.loop.now)
            recorder.completed = self.allotment.position
            if world.watches:
                world.watch.pushed(push, answer)
        else:
            recorder.waited("pull", "server", self._sent_at, world.loop.now)
        self.resume((answer.sequence, parameters))


class ReplicaEngine(Engine):
    """A worker that holds the state itself."""

    def begin(self) -> None:
        replica, world = self.worker.replica, self.world
        secs = world.transfer_secs if replica.lacks(self.phase) else 0.0
        world.loop.after(secs, self._enter, world.loop.now)

    def _enter(self, began: float) -> None:
        if self._stale(self._enter, began):
            return
        try:
            self.worker.replica.enter(self.phase)
        except HybridSyncError as error:
            if isinstance(error, (RoleLost, WaitTimeout)) and not is_lost(error, self.world.loop.now - began):
                self.world.loop.after(TRY_SECS, self._enter, began)
                return
            self._program.close()
            self._end(f"{type(error).__name__}: {error}")
            return
        self.recorder.stamps = self.worker.replica.stamps
        self.entered()

    def entered(self) -> None:
        """Begin the program: the replica is here."""
        self.resume(None)


class SyncEngine(ReplicaEngine):
    """The SYNC path."""

    def __init__(self, worker: Worker, phase: Phase) -> None:
        super().__init__(worker, phase)
        self._index = phase.members.index(worker.id)
        self._units: tuple[int, ...] = ()
        self._unfit = ""
        self._began = 0.0
        self._meeting = self.world.meeting(phase)

    def Lease(self, effect: Any) -> Any:
        return self.take(len(self.phase.members))

    def taken(self, units: tuple[int, ...]) -> Any:
        self._units, self._began = units, self.world.loop.now
        return units[self._index : self._index + 1] if units else None

    def Compute(self, effect: Any) -> Any:
        world, self._unfit = self.world, ""
        if not effect.units:
            return world.arithmetic.zero
        (unit,) = effect.units
        self.worker.unit, self.recorder.doing = unit, "compute"
        parameters = world.arithmetic.parameters(self.worker.replica.state)
        gradient = world.arithmetic.gradient(parameters, unit)
        world.loop.after(self.compute_secs(unit), self._computed, gradient, world.loop.now)
        return PENDING

    def _computed(self, gradient: Any, started: float) -> None:
        if self._stale(self._computed, gradient, started):
            return
        world, self.worker.unit = self.world, -1
        self.recorder.computed("sync", started, world.loop.now, world.arithmetic.loss(gradient))
        found = world.arithmetic.non_finite(gradient)
        self._unfit = f"{NON_FINITE}: {found}" if found else ""
        self.resume(world.arithmetic.zero if found else gradient)

    def Average(self, effect: Any) -> Any:
        self.recorder.doing = WAITING
        started = self.world.loop.now
        self._meeting.deliver(
            self._index, effect.gradient, self._unfit, self.worker, lambda total: self._averaged(total, started)
        )
        return PENDING

    def _averaged(self, total: Any, started: float) -> None:
        if self._stale(self._averaged, total, started):
            return
        self.recorder.waited("average", "sync", started, self.world.loop.now)
        self.recorder.doing = ""
        self.resume(total)

    def LocalUpdate(self, effect: Any) -> Any:
        replica, total = self.worker.replica, effect.mean
        units, slots, dropped = self._outcome(total.reasons)
        factor = self.protocol.rate(len(units), len(self.phase.members))
        state = total.applied_to(replica.state, units=len(units), factor=factor) if units else replica.state
        secs = self.world.network.cluster.costs.update_secs
        self.world.loop.after(secs, self._updated, state, factor, units, slots, dropped)
        return PENDING

    def _outcome(self, reasons: tuple[str, ...]) -> tuple[Units, Units, tuple[tuple[int, str], ...]]:
        """Return the step's units that are in the total, in whose places of the mesh, and what was dropped and why."""
        if not any(reasons):
            return self._units, (), ()
        kept = [(slot, unit) for slot, unit in enumerate(self._units) if not reasons[slot]]
        dropped = tuple((unit, reasons[slot]) for slot, unit in enumerate(self._units) if reasons[slot])
        return tuple(unit for _, unit in kept), tuple(slot for slot, _ in kept), dropped

    def _updated(
        self, state: Any, factor: float, units: Units, slots: Units, dropped: tuple[tuple[int, str], ...]
    ) -> None:
        if self._stale(self._updated, state, factor, units, slots, dropped):
            return
        worker = self.worker
        worker.replica.update(units, state, factor, slots, tuple(unit for unit, _ in dropped))
        if self._index == 0:  # one member speaks for the mesh, so that what it says keeps the order of the steps
            self.recorder.settled(units, dropped)
        self.recorder.completed = self.allotment.position
        self.recorder.step(self._began, self.world.loop.now, len(units))
        self.resume(None)
