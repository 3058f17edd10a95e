"""Workers that step by themselves, in virtual time: their transfers go on beside the computation (see `sim/worker.py`).

A step costs no time. What a worker leaves behind at its end is one message, sent once: where messages are lost, the
server goes on without it after a while, as everywhere.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hybridsync.messages import Push
from hybridsync.paths.stepping import Gradient, Local, Stepper
from hybridsync.plan import Phase
from hybridsync.protocols.base import Pull, Version
from hybridsync.reports import COMPUTING, WAITING
from hybridsync.sim.worker import PENDING, ServerEngine

if TYPE_CHECKING:
    from hybridsync.errors import HybridSyncError
    from hybridsync.messages import LeaseReply, PushReply
    from hybridsync.sim.worker import Worker


class LocalEngine(ServerEngine):
    """One worker in one phase in which workers step by themselves (see `hybridsync.paths.server`)."""

    def __init__(self, worker: Worker, phase: Phase) -> None:
        super().__init__(worker, phase)
        self._stepper: Stepper | None = None
        self._lives = 0
        self._in_hand: list[int] = []
        self._again: list[int] = []
        self._was_idle = False
        self._sending = False  # a transfer or a drop is under way: there is room for one
        self._afterwards: Any = None  # what waits for the end of that transfer
        self._begun: Any = None
        self._arrival: tuple[Push, PushReply, Any] | None = None
        self._waits = False
        self._waits_since = 0.0
        self._resume_with: Any = None  # what a lease goes on with that no program asked for

    def begin(self) -> None:
        self._call_server("opt_state", (), 0, None, self._entered)

    # --- effects ---

    def Lease(self, effect: Any) -> Any:
        units, self._again = tuple(self._again[: effect.count]), self._again[effect.count :]
        if units:
            self._in_hand += units
            return units
        return self.take(effect.count)

    def taken(self, units: tuple[int, ...]) -> Any:
        self._in_hand += units
        if units and self._was_idle:  # its parameters are those of then
            return self._void()
        return units or None

    def Pull(self, effect: Any) -> Any:
        self._call_server("pull", (), 0, None, self._pulled)
        return PENDING

    def Compute(self, effect: Any) -> Any:
        (unit,) = effect.units
        return self._begin_unit(unit, effect.parameters)

    def PushPull(self, effect: Any) -> Any:
        self.recorder.turn_to(WAITING)
        self._transfer(effect, self._pushed)
        return PENDING

    def Begin(self, effect: Any) -> Any:
        assert self._begun is None, "one transfer at a time"
        self._begun, self._arrival = effect.effect, None
        self._transfer(effect.effect, self._came)
        return effect.effect

    def Await(self, effect: Any) -> Any:
        assert self._begun is effect.pending, "a transfer is awaited once"
        self._waits, self._waits_since = self._arrival is None, self.world.loop.now
        if not self._waits:
            return self._arrived_begun()
        self.recorder.turn_to(WAITING)
        return PENDING

    def Step(self, effect: Any) -> Any:
        return self._own.step(effect)

    def Difference(self, effect: Any) -> Any:
        return self._own.difference(effect)

    def Combine(self, effect: Any) -> Any:
        return self._own.combine(effect)

    @property
    def _own(self) -> Stepper:
        assert self._stepper is not None, "a program begins with the phase's optimizer state"
        return self._stepper

    # --- lives ---

    def _entered(self, push: Push, reply: PushReply, opt_state: Any, sent: float) -> None:
        self._stepper = Stepper(self.world.arithmetic, self.protocol, len(self.phase.members), opt_state)
        self.resume(None)

    def _void(self) -> Any:
        """Begin the program anew, once no transfer is under way any more."""
        self._program.close()
        self._when_free(self._restart)
        return PENDING

    def _restart(self) -> None:
        if self._over:
            return
        self._note_arrival()
        self._own.rewind()
        self._lives += 1
        self._again, self._in_hand, self._was_idle = self._in_hand + self._again, [], False
        self._program = self.protocol.worker_program(len(self.phase.members))
        self.resume(None)

    def _note_arrival(self) -> None:
        """Hear what became of a transfer that the program does not await any more."""
        if self._arrival is not None and self._arrival[0].units:
            push, reply, _ = self._arrival
            self._settle(reply.settled or push.units)
            self._own.pushed(push.units, reply)
        self._begun = self._arrival = None

    def _end(self, failure: str) -> None:
        self._note_arrival()
        stepper = self._stepper
        if stepper is not None and stepper.settled_unit >= 0:
            world = self.world
            push = self._push_of((stepper.settled_unit,), 0)
            size = world.arithmetic.sizes.state - world.arithmetic.sizes.parameters
            world.network.to_server(push, size, self._server.deposit, push, stepper.settled)
        super()._end(failure)

    # --- units ---

    def _begin_unit(self, unit: int, parameters: Any) -> Any:
        world = self.world
        self.worker.unit = unit
        self.recorder.turn_to(COMPUTING)
        gradient = Gradient((unit,), parameters.sequence, world.arithmetic.gradient(parameters.parameters, unit))
        world.loop.after(self.compute_secs(unit), self._computed_on, parameters, gradient, world.loop.now)
        return PENDING

    def _computed_on(self, parameters: Any, gradient: Gradient, started: float) -> None:
        if self._stale(self._computed_on, parameters, gradient, started):
            return
        world = self.world
        self.worker.unit = -1
        self.recorder.turn_to("")
        self.recorder.computed("server", started, world.loop.now, world.arithmetic.loss(gradient.contribution))
        if not world.arithmetic.non_finite(gradient.contribution):
            self.resume(gradient)
            return

        def drop() -> None:
            if not self._over:
                self._call_server("push", gradient.units, gradient.base, gradient.contribution, dropped)

        def dropped(push: Push, reply: PushReply, unused: Any, sent: float) -> None:
            self._settle(gradient.units)
            self._another(parameters)

        self._when_free(drop)

    def _another(self, parameters: Any) -> None:
        """Compute a unit in place of a dropped one; none where others wait for those that were stepped through."""
        if isinstance(parameters, Local) and parameters.units:
            units = self.allotment.take(1)
            self._in_hand += units
            if not units:
                self.resume(Gradient((), parameters.sequence, None))
                return
            self._begin_unit(units[0], parameters)
            return

        def given(result: Any) -> None:
            if result is None:
                self.revoke("there are no more units")
            else:
                self._begin_unit(result[0], parameters)

        self._resume_with = given
        result = self.take(1)
        if result is not PENDING:
            self._resume_with = None
            given(result)

    def resume(self, result: Any) -> None:
        given, self._resume_with = self._resume_with, None
        if given is not None:
            given(result)
            return
        super().resume(result)

    @property
    def takes_fewer(self) -> bool:
        return self.allotment.known > self.allotment.position

    def extended(self, reply: LeaseReply) -> None:
        count, allotment = self._wanted, self.allotment
        if not (count and self.takes_fewer and allotment.lacks(count)):
            super().extended(reply)
            return
        if reply.ranges:
            self._ask()
            return
        self._wanted, self._at_once = 0, self.protocol.awaits_workers
        result = self.taken(allotment.take(count))
        if result is not PENDING:
            self.resume(result)

    def _settle(self, units: tuple[int, ...]) -> None:
        for unit in units:
            self._in_hand.remove(unit)
        self.recorder.completed = self.allotment.position - len(self._in_hand) - len(self._again)

    def tell_idle(self) -> None:
        self._was_idle = True
        if self._sending:
            self.recorder.turn_to(WAITING)
        self._when_free(self._say_idle)

    def _say_idle(self) -> None:
        self.recorder.turn_to("")
        if not self._over:
            super().tell_idle()

    # --- transfers ---

    def _push_of(self, units: tuple[int, ...], base: int) -> Push:
        worker = self.worker
        return Push(self.phase.epoch, worker.id, worker.incarnation, units, base, life=self._lives)

    def _call_server(self, what: str, units: tuple[int, ...], base: int, contribution: Any, then: Any) -> None:
        assert not self._sending, "one call at a time"
        self._sending = True
        world, push = self.world, self._push_of(units, base)
        serve, size, message = getattr(self._server, what), 0, (push,)
        if what == "push":
            size, message = world.arithmetic.sizes.gradient, (push, contribution)
        self._way.to_server(push, size, serve, *message, partial(self._heard, push, then, world.loop.now))

    def _transfer(self, effect: Any, then: Any) -> None:
        if isinstance(effect, Pull) or not effect.gradient.units:
            self._call_server("pull", (), 0, None, then)
        else:
            gradient: Gradient = effect.gradient
            self._call_server("push", gradient.units, gradient.base, gradient.contribution, then)

    def _when_free(self, do: Any) -> None:
        """Do something as soon as no call is under way."""
        if self._sending:
            assert self._afterwards is None, "one thing waits for the end of a transfer"
            self._afterwards = do
        else:
            do()

    def _heard(self, push: Push, then: Any, sent: float, answer: PushReply | HybridSyncError, parameters: Any) -> None:
        if not self._is_served(answer):
            return
        self._sending = False
        if push.units and self.world.watches:
            self.world.watch.pushed(push, answer)
        then(push, answer, parameters, sent)
        afterwards, self._afterwards = self._afterwards, None
        if afterwards is not None:
            afterwards()

    def _pulled(self, push: Push, reply: PushReply, parameters: Any, sent: float) -> None:
        self.recorder.waited("pull", "server", sent, self.world.loop.now)
        self.resume(_version(reply, parameters))

    def _pushed(self, push: Push, reply: PushReply, parameters: Any, sent: float) -> None:
        self.recorder.turn_to("")
        self.recorder.waited("push_pull", "server", sent, self.world.loop.now)
        result = self._arrived(push, reply, parameters)
        if result is not PENDING:
            self.resume(result)

    def _came(self, push: Push, reply: PushReply, parameters: Any, sent: float) -> None:
        self.recorder.beside("push_pull" if push.units else "pull", sent, self.world.loop.now)
        self._arrival = push, reply, parameters
        if self._waits:
            self._waits = False
            self.recorder.turn_to("")
            self.recorder.waited("await", "server", self._waits_since, self.world.loop.now)
            result = self._arrived_begun()
            if result is not PENDING:
                self.resume(result)

    def _arrived_begun(self) -> Any:
        assert self._arrival is not None
        push, reply, parameters = self._arrival
        self._begun = self._arrival = None
        return self._arrived(push, reply, parameters)

    def _arrived(self, push: Push, reply: PushReply, parameters: Any) -> Any:
        if push.units:
            self._settle(reply.settled or push.units)
            if not self._own.pushed(push.units, reply):
                return self._void()
        return _version(reply, parameters)


def _version(reply: PushReply, parameters: Any) -> Version:
    return Version(reply.sequence, parameters, reply.units, reply.own, reply.fastest)
