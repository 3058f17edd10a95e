"""A worker that pushes and pulls, in virtual time: the SERVER path (see `hybridsync.paths.server`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridsync.errors import HybridSyncError, StaleIncarnation
from hybridsync.messages import Push, PushReply
from hybridsync.plan import Phase
from hybridsync.sim.network import Insisting
from hybridsync.sim.worker import PENDING, Engine, Worker

if TYPE_CHECKING:
    from hybridsync.sim.server import Server


class ServerEngine(Engine):
    """Drives the program of a worker that pushes to the servers."""

    def __init__(self, worker: Worker, phase: Phase) -> None:
        super().__init__(worker, phase)
        world, network = self.world, self.world.network
        insisting = Insisting(network, world.loop, world.retry_secs, self._stale)
        self._send = network.to_server if network.reliable else insisting.to_server
        self._sent_at = 0.0
        self._push: Push
        self._server: Server = self.world.at(phase.servers[0])

    def tell_idle(self) -> None:
        worker = self.worker
        push = Push(self.phase.epoch, worker.id, worker.incarnation, (), 0)
        self._send(push, 0, self._server.idle, push, self._noted)

    def Lease(self, effect: Any) -> Any:
        allotment, count = self.allotment, effect.count
        if allotment.position + count > allotment.calm_until:
            return self.take(count)
        return allotment.take(count)

    def Pull(self, effect: Any) -> Any:
        worker = self.worker
        push = self._push = Push(self.phase.epoch, worker.id, worker.incarnation, (), 0)
        self._sent_at = self.world.loop.now
        self._send(push, 0, self._server.pull, push, self._answered)
        return PENDING

    def Compute(self, effect: Any) -> Any:
        units, (base, parameters) = effect.units, effect.parameters
        (unit,) = units
        world = self.world
        self.worker.unit, self.recorder.doing = unit, "compute"
        gradient = units, base, world.arithmetic.gradient(parameters, unit)
        loop = world.loop
        loop.after(self.compute_secs(unit), self._computed, gradient, loop.now)
        return PENDING

    def _computed(self, gradient: Any, started: float) -> None:
        worker, world = self.worker, self.world
        if self._over or (worker.stopped and worker.halted(self._computed, gradient, started)):
            return
        worker.unit, self.recorder.doing = -1, ""
        self.recorder.compute("server", started, world.loop.now, world.arithmetic.loss(gradient[2]))
        self.resume(gradient)

    def PushPull(self, effect: Any) -> Any:
        units, base, contribution = effect.gradient
        worker, world = self.worker, self.world
        push = self._push = Push(self.phase.epoch, worker.id, worker.incarnation, units, base)
        self._sent_at = world.loop.now
        size = world.arithmetic.sizes.gradient
        self._send(push, size, self._server.push, push, contribution, self._answered)
        return PENDING

    def Ready(self, effect: Any) -> Any:
        units, base, _ = effect.gradient
        worker, self._sent_at = self.worker, self.world.loop.now
        push = Push(self.phase.epoch, worker.id, worker.incarnation, units, base)
        self._send(push, 0, self._server.ready, push, self._granted)
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
            self.recorder.wait("ready", "server", self._sent_at, self.world.loop.now)
            self.resume(None)

    def _answered(self, answer: PushReply | HybridSyncError, parameters: Any) -> None:
        if not isinstance(answer, PushReply) or self._over:
            self._is_served(answer)
            return
        push, world = self._push, self.world
        self.recorder.wait("push_pull" if push.units else "pull", "server", self._sent_at, world.loop.now)
        if push.units:
            self.recorder.completed = self.allotment.position
            if world.watches:
                world.watch.pushed(push, answer)
        self.resume((answer.sequence, parameters))
