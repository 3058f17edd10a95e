"""A worker of a group phase in virtual time, and the averages of its groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridsync.errors import HybridSyncError
from hybridsync.messages import NON_FINITE, AppliedUnit, GroupReply, GroupRequest, LeaseReply
from hybridsync.phase import Phase
from hybridsync.reports import COMPUTING, WAITING
from hybridsync.sim.sync import ReplicaEngine
from hybridsync.sim.worker import PENDING, Worker

if TYPE_CHECKING:
    from hybridsync.sim.world import World


class Gradient(NamedTuple):
    """Of which unit, computed behind which meeting, and why it is unfit, "" if it is not."""

    unit: int
    base: int
    contribution: Any
    unfit: str


class GroupAverage:
    """One group's average: whoever comes last ends it for all, after what the transfers take.

    Args:
      world: time and costs.
      reply: the group.
    """

    def __init__(self, world: World, reply: GroupReply) -> None:
        self._world, self._reply = world, reply
        self._arrived: dict[int, tuple[Any, Worker, Callable[[Any], object]]] = {}

    def deliver(self, state: Any, member: Worker, then: Callable[[Any], object]) -> None:
        """Bring a member's replica; `then` gets it back averaged."""
        self._arrived[member.id] = state, member, then
        members = self._reply.members
        if len(self._arrived) == len(members):
            world, sizes = self._world, self._world.arithmetic.sizes
            size = sizes.state if self._reply.optimizer else sizes.parameters
            world.network.num_bytes += 2 * (len(members) - 1) * size
            world.loop.at(world.network.averaged_at(members, size), self._end)

    def _end(self) -> None:
        if any(member.dead or member.stopped for _, member, _ in self._arrived.values()):
            return  # nobody gets an average that somebody did not live to give: they are called back
        arrived = [self._arrived[worker] for worker in self._reply.members]
        states = self._world.arithmetic.mixed([state for state, _, _ in arrived], self._reply)
        for (_, _, then), state in zip(arrived, states, strict=True):
            then(state)


class GroupEngine(ReplicaEngine):
    """The GROUP path (see `hybridsync.paths.group.GroupEngine`)."""

    def __init__(self, worker: Worker, phase: Phase) -> None:
        super().__init__(worker, phase)
        self._factor = self.protocol.rate(1, len(phase.members))
        self._number, self._sequence, self._unit = 0, phase.sequence, 0
        self._applied: list[AppliedUnit] = []
        self._dropped: list[tuple[int, str]] = []
        self._state: Any = None

    def entered(self) -> None:
        self._state = self.worker.replica.state
        self.resume(None)

    def Lease(self, effect: Any) -> Any:
        return self.take(effect.count)

    def take(self, count: int) -> Any:
        if not self.allotment.lacks(count):
            return self.taken(self.allotment.take(count))
        # Not ahead: who asks while it has units cannot be told from one that others need not wait for.
        self._wanted = count
        self._ask()
        return PENDING

    def _given(self, reply: LeaseReply | HybridSyncError) -> None:
        if isinstance(reply, LeaseReply) and reply.meet and not self._over:
            self._asking, self._wanted = False, 0
            self.resume(())
        else:
            super()._given(reply)

    def Compute(self, effect: Any) -> Any:
        world = self.world
        (unit,) = effect.units
        self.worker.unit = self._unit = unit
        self.recorder.turn_to(COMPUTING)
        contribution = world.arithmetic.gradient(world.arithmetic.parameters(self._state), unit)
        gradient = Gradient(unit, self._sequence, contribution, world.arithmetic.non_finite(contribution))
        world.loop.after(self.compute_secs(unit), self._computed, gradient, world.loop.now)
        return PENDING

    def _computed(self, gradient: Gradient, started: float) -> None:
        if self._stale(self._computed, gradient, started):
            return
        world, self.worker.unit = self.world, -1
        self.recorder.turn_to("")
        self.recorder.computed("group", started, world.loop.now, world.arithmetic.loss(gradient.contribution))
        self.resume(gradient)

    def LocalUpdate(self, effect: Any) -> Any:
        self.world.loop.after(self.world.network.cluster.costs.update_secs, self._update, effect.mean)
        return PENDING

    def _update(self, gradient: Gradient) -> None:
        if self._stale(self._update, gradient):
            return
        world = self.world
        if gradient.unfit:
            dropped = gradient.unit, f"{NON_FINITE}: {gradient.unfit}"
            self._dropped.append(dropped)
            self.recorder.settled((), (dropped,))
        else:
            self._state = world.arithmetic.step(self._state, gradient.contribution, self._factor)
            self._applied.append(AppliedUnit(gradient.unit, gradient.base))
            self.recorder.settled((gradient.unit,), ())
            self.worker.replica.note_update()
            world.watch.stepped(self.worker, self.phase, gradient.unit)
        self.recorder.completed = self.allotment.position
        self.resume(None)

    def Meet(self, effect: Any) -> Any:
        worker, world = self.worker, self.world
        self._number += 1
        request = GroupRequest(
            *(worker.id, worker.incarnation, self.phase.epoch, self._number),
            *(tuple(self._applied), tuple(self._dropped)),
            last=effect.last,
            logs=world.logs_updates,
        )
        self._applied, self._dropped = [], []
        self.recorder.turn_to(WAITING)
        started = world.loop.now
        worker.call("meet", lambda: world.group_for(request), lambda reply: self._met(reply, started))
        return PENDING

    def _met(self, reply: GroupReply | HybridSyncError, started: float) -> None:
        if self._over:
            return
        if isinstance(reply, HybridSyncError):
            self.revoke(str(reply))
            return
        self.recorder.waited("meet", "group", started, self.world.loop.now)
        self.resume(reply)

    def Mix(self, effect: Any) -> Any:
        reply: GroupReply = effect.group
        world = self.world
        if len(reply.members) == 1:
            self._mix(reply, world.arithmetic.mixed([self._state], reply)[0])
            return None
        sizes = world.arithmetic.sizes
        size = sizes.state if reply.optimizer else sizes.parameters
        if not self.send("group", self._unit, size, self._deliver, reply):
            self._deliver(reply)
        return PENDING

    def _deliver(self, reply: GroupReply) -> None:
        world, started = self.world, self.world.loop.now
        average = world.average(self.phase, reply)
        average.deliver(self._state, self.worker, lambda state: self._mixed(reply, state, started))

    def _mixed(self, reply: GroupReply, state: Any, started: float) -> None:
        if self._stale(self._mixed, reply, state, started):
            return
        self.recorder.waited("mix", "group", started, self.world.loop.now)
        self._mix(reply, state)
        self.resume(None)

    def _mix(self, reply: GroupReply, state: Any) -> None:
        self.recorder.turn_to("")
        self._state, self._sequence = state, reply.sequence
        if reply.whole:
            self.worker.replica.settle(reply, state, self._factor)
