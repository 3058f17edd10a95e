"""Lock-step in virtual time: a worker that holds the state itself, and meets the others at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridsync.dealing import outcome_of
from hybridsync.errors import HybridSyncError, RoleLost, WaitTimeout
from hybridsync.messages import NON_FINITE
from hybridsync.phase import Phase
from hybridsync.reports import COMPUTING, SEND, WAITING
from hybridsync.sim.process import TRY_SECS, is_lost
from hybridsync.sim.worker import PENDING, Engine, Units, Worker


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

    def send(self, category: str, unit: int, num_bytes: int, then: Callable[..., object], *args: Any) -> bool:
        """Let a slow worker's part of a collective take its time, and `then` go on; returns whether it takes any."""
        world = self.world
        secs = world.slowness(self.worker.id, unit).transfer_secs(num_bytes) if world.late else 0.0
        if secs:
            world.loop.after(secs, self._sent, category, world.loop.now, then, args)
        return secs > 0

    def _sent(self, category: str, started: float, then: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self._stale(self._sent, category, started, then, args):
            return
        self.recorder.waited(SEND, category, started, self.world.loop.now)
        then(*args)


class SyncEngine(ReplicaEngine):
    """The SYNC path."""

    def __init__(self, worker: Worker, phase: Phase) -> None:
        super().__init__(worker, phase)
        self._index, self._deal = phase.members.index(worker.id), phase.deal
        self._places = self._deal.places(self._index)
        self._units: Units = ()
        self._to_compute: list[int] = []
        self._total: Any = None
        self._unfit: list[str] = []
        self._began = 0.0
        self._meeting = self.world.meeting(phase)

    def Lease(self, effect: Any) -> Any:
        return self.take(self._deal.num_places)

    def taken(self, units: tuple[int, ...]) -> Any:
        self._units, self._began = units, self.world.loop.now
        return tuple(units[place] for place in self._places if place < len(units)) if units else None

    def Compute(self, effect: Any) -> Any:
        self._unfit, self._total, self._to_compute = [], None, [*effect.units]
        return self._compute_next()

    def _compute_next(self) -> Any:
        """Begin the next unit of the step; without any left, return what this member contributes."""
        world = self.world
        if not self._to_compute:
            return world.arithmetic.zero if self._total is None else self._total
        unit = self._to_compute.pop(0)
        self.worker.unit = unit
        self.recorder.turn_to(COMPUTING)
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
        self._unfit.append(f"{NON_FINITE}: {found}" if found else "")
        if not found:
            before = self._total
            self._total = gradient if before is None else world.arithmetic.sum((before, gradient))
        result = self._compute_next()
        if result is not PENDING:
            self.resume(result)

    def Average(self, effect: Any) -> Any:
        unit = self._units[min(self._index, len(self._units) - 1)]
        num_bytes = self.world.arithmetic.sizes.gradient if len(self.phase.members) > 1 else 0
        if not num_bytes or not self.send("sync", unit, num_bytes, self._deliver, effect.gradient):
            self._deliver(effect.gradient)
        return PENDING

    def _deliver(self, gradient: Any) -> None:
        self.recorder.turn_to(WAITING)
        started = self.world.loop.now
        reasons = (*self._unfit, *[""] * (self._deal.num_rounds - len(self._unfit)))
        self._meeting.deliver(self._index, gradient, reasons, self.worker, lambda total: self._averaged(total, started))

    def _averaged(self, total: Any, started: float) -> None:
        if self._stale(self._averaged, total, started):
            return
        self.recorder.waited("average", "sync", started, self.world.loop.now)
        self.recorder.turn_to("")
        self.resume(total)

    def LocalUpdate(self, effect: Any) -> Any:
        replica, total = self.worker.replica, effect.mean
        reasons = self._deal.by_place(total.reasons) if any(map(any, total.reasons)) else ()
        units, slots, dropped = outcome_of(self._units, reasons)
        factor = self.protocol.rate(len(units), len(self.phase.members))
        state = total.applied_to(replica.state, units=len(units), factor=factor) if units else replica.state
        secs = self.world.network.cluster.costs.update_secs
        self.world.loop.after(secs, self._updated, state, factor, units, slots, dropped)
        return PENDING

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
