"""The SERVER engine: carries out an asynchronous worker program against the parameter server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeVar

import jax
import numpy as np
from absl import logging

from hybridsync.deadlines import transfer_secs
from hybridsync.errors import PhaseRevoked, RoleLost, StaleEpoch, StillHeld, WaitTimeout
from hybridsync.layout import first_non_finite
from hybridsync.messages import Push, PushReply
from hybridsync.paths.driver import drive
from hybridsync.paths.emulation import Emulation
from hybridsync.paths.leases import LeaseStream
from hybridsync.paths.recorder import WorkerRecorder
from hybridsync.paths.stepping import Gradient, Local, Stepper
from hybridsync.phase import Phase
from hybridsync.plan import NO_EPOCH, Epoch
from hybridsync.ports import WorkPort
from hybridsync.protocols.base import (
    Await,
    Begin,
    Combine,
    Compute,
    Difference,
    Lease,
    Pull,
    PushPull,
    Ready,
    Step,
    Version,
)
from hybridsync.reports import WAITING
from hybridsync.step import Parameters, Programs

T = TypeVar("T")

HELD_DEADLINE_SECS = 600.0
"""How long a worker lets a protocol hold its push; who is lost meanwhile is fenced, which the rule hears of."""


class ServerLink(Protocol):
    """A worker's way to the parameter server; trees in and out."""

    def pull(self, push: Push) -> tuple[PushReply, Parameters]:
        """Return the current sequence and parameters.

        Raises:
          StaleEpoch, StaleIncarnation: this worker is out of date.
        """
        ...

    def push_pull(self, push: Push, contribution: Any) -> tuple[PushReply, Parameters]:
        """Push a contribution; returns at its release, with the parameters then; those of its base are not sent again.

        Raises:
          StaleEpoch, StaleIncarnation: this worker is out of date.
          StillHeld: it is not released yet; push it again.
        """
        ...

    def idle(self, push: Push) -> None:
        """Tell the primary that this worker has nothing to compute.

        Raises:
          StaleEpoch, StaleIncarnation: this worker is out of date.
        """
        ...

    def ready(self, push: Push) -> None:
        """Say that a push could be made; returns when the primary grants it.

        Raises:
          StaleEpoch, StaleIncarnation: this worker is out of date.
          StillHeld: it is not granted yet; say so again.
        """
        ...

    def opt_state(self, push: Push) -> Any:
        """Return the optimizer state that the phase began with, for a worker that steps by itself.

        Raises:
          StaleEpoch, StaleIncarnation: this worker is out of date.
        """
        ...

    def deposit(self, push: Push, opt_state: Any) -> None:
        """Leave behind the worker's own optimizer state, as it was after its push with the unit `push.units`.

        It may be called after `close`, too.

        Raises:
          StaleEpoch: the server is in another epoch.
          RoleLost, WaitTimeout: a server is not there.
        """
        ...

    def close(self) -> None:
        """End the calls under way, with RoleLost, and refuse later ones."""
        ...


class _Void(Exception):
    """A push came to nothing, or is bound to: what the program has stepped since is void, and it begins anew."""


class ServerEngine:
    """Runs asynchronous phases for one worker.

    Args:
      worker: id.
      chief: leases units to this worker.
      programs: the compiled programs.
      link_of: the phase -> the link to its server.
      recorder, emulation: what is noted, and how slow the device pretends to be.
      ahead: runs lease renewals beside the training, so that units are in hand while the chief is away; None asks
        when there is nothing left.
    """

    def __init__(
        self,
        worker: int,
        chief: WorkPort,
        programs: Programs,
        link_of: Callable[[Phase], ServerLink],
        recorder: WorkerRecorder,
        emulation: Emulation,
        ahead: Executor | None,
    ) -> None:
        self._worker, self._chief, self._programs, self._link_of = worker, chief, programs, link_of
        self._recorder, self._emulation, self._ahead = recorder, emulation, ahead
        self._lock = threading.Lock()
        self.stream: LeaseStream | None = None
        self._epoch = NO_EPOCH
        self._link: ServerLink | None = None

    def run(self, phase: Phase) -> None:
        """Take part in `phase` until the chief has no more units.

        Raises:
          PhaseRevoked: the phase has ended for everybody.
          RoleLost, WaitTimeout: the server did not answer, or the phase was revoked.
        """
        link = self._link_of(phase)
        with self._lock:
            self._epoch, self._link = phase.epoch, link
        try:
            worker = _LocalWorker if phase.protocol.local else _Worker
            worker(self, phase, link).run()
        finally:
            link.close()

    def revoke(self, epoch: Epoch, reason: str) -> None:
        """Make the phase under way raise RoleLost, if it is `epoch`; called from another thread."""
        with self._lock:
            link = self._link if epoch == self._epoch else None
        if link is not None:
            link.close()


class _Worker:
    """One worker in one phase."""

    def __init__(self, engine: ServerEngine, phase: Phase, link: ServerLink) -> None:
        self.engine, self.phase = engine, phase
        self.recorder, self.clock = engine._recorder, engine._recorder.clock
        self.protocol = phase.protocol
        self.link = link
        # A push is staged, decided and answered in calls that follow one another, each with a deadline of its own.
        self.transfers_secs = 4 * transfer_secs(engine._programs.contribution_layout.nbytes)
        idle = self.idle if self.protocol.awaits_workers else None
        self.stream = engine.stream = LeaseStream(
            engine._chief,
            engine._worker,
            self.recorder.incarnation,
            phase,
            self.clock,
            engine._ahead,
            idle,
            watchdog=self.recorder.watchdog,
        )

    def run(self) -> None:
        drive(self.protocol.worker_program(len(self.phase.members)), self.handlers())

    def handlers(self) -> dict[type, Callable[[Any], Any]]:
        return {
            Lease: self.lease,
            Pull: self.pull,
            Compute: self.compute,
            PushPull: self.push_pull,
            Ready: self.ready,
        }

    def lease(self, effect: Lease) -> tuple[int, ...] | None:
        return self.stream.next(effect.count) or None

    def idle(self) -> None:
        self.link.idle(self.push_of((), 0))

    def pull(self, effect: Pull) -> Version:
        started = self.clock.monotonic()
        with self.recorder.watchdog.work("a pull", self.transfers_secs):
            reply, parameters = self.link.pull(self.push_of((), 0))
        self.recorder.wait("pull", "server", started, self.clock.monotonic())
        return _version(reply, parameters)

    def compute(self, effect: Compute) -> Gradient:
        (unit,) = effect.units
        self.recorder.computing(unit)
        started = self.clock.monotonic()
        contribution = self.engine._programs.gradient(effect.parameters.parameters, unit)
        jax.block_until_ready(contribution)
        if self.engine._emulation.active:
            self.recorder.emulating()
            self.engine._emulation.finish(self.engine._worker, unit, started, self.clock)
        self.recorder.turn_to("")
        self.recorder.compute("server", started, self.clock.monotonic(), contribution["floats"]["loss"])
        return Gradient(effect.units, effect.parameters.sequence, contribution)

    def push_pull(self, effect: PushPull) -> Version:
        gradient: Gradient = effect.gradient
        started = self.clock.monotonic()
        push = self.push_of(gradient.units, gradient.base)
        reply, parameters = self.waiting(lambda: self.held(lambda: self.link.push_pull(push, gradient.contribution)))
        self.recorder.wait("push_pull", "server", started, self.clock.monotonic())
        self.recorder.completed = self.stream.position
        return _version(reply, parameters)

    def ready(self, effect: Ready) -> None:
        gradient: Gradient = effect.gradient
        started = self.clock.monotonic()
        push = self.push_of(gradient.units, gradient.base)
        self.waiting(lambda: self.held(lambda: self.link.ready(push)))
        self.recorder.wait("ready", "server", started, self.clock.monotonic())

    def waiting(self, call: Callable[[], T]) -> T:
        """Make a call whose end may be up to other workers."""
        self.recorder.turn_to(WAITING)
        result = call()
        self.recorder.turn_to("")
        return result

    def held(self, call: Callable[[], T]) -> T:
        """Make a call that the rule may hold, again and again until it does not."""
        deadline = self.clock.monotonic() + HELD_DEADLINE_SECS
        while True:
            try:
                with self.recorder.watchdog.work("a push", self.transfers_secs):
                    return call()
            except StillHeld:
                if self.clock.monotonic() > deadline:
                    raise

    def push_of(self, units: tuple[int, ...], base: int) -> Push:
        return Push(self.phase.epoch, self.engine._worker, self.recorder.incarnation, units, base)


def _version(reply: PushReply, parameters: Parameters) -> Version:
    return Version(reply.sequence, parameters, reply.units, reply.own, reply.fastest)


class _LocalWorker(_Worker):
    """One worker in one phase in which workers step by themselves; a transfer that was begun has a thread of its own.

    A gradient that is not finite reaches no program: its unit is dropped at once, and a fresh one takes its place.
    """

    def __init__(self, engine: ServerEngine, phase: Phase, link: ServerLink) -> None:
        super().__init__(engine, phase, link)
        self._lives = 0
        opt_state = link.opt_state(self.push_of((), 0))
        self._stepper = Stepper(engine._programs, self.protocol, len(phase.members), opt_state)
        self._in_flight: Future[tuple[PushReply, Parameters]] | None = None
        self._in_hand: list[int] = []
        self._again: list[int] = []
        self._was_idle = False

    def run(self) -> None:
        with ThreadPoolExecutor(1, "transfer") as self._transfers:
            try:
                while self._ended_in(super().run):
                    pass
            finally:
                self._note_in_flight()
                self._deposit()

    def handlers(self) -> dict[type, Callable[[Any], Any]]:
        stepper = self._stepper
        own = {Step: stepper.step, Difference: stepper.difference, Combine: stepper.combine}
        return {**super().handlers(), **own, Begin: self.begin, Await: self.wait_for}

    def _ended_in(self, run: Callable[[], None]) -> bool:
        """Run the program; returns whether it has to begin anew."""
        try:
            run()
        except _Void:
            self._note_in_flight()
            self._stepper.rewind()
            self._lives += 1
            self._again, self._in_hand, self._was_idle = self._in_hand, [], False
            return True
        return False

    def lease(self, effect: Lease) -> tuple[int, ...] | None:
        units, self._again = tuple(self._again[: effect.count]), self._again[effect.count :]
        units = units or self.stream.next(effect.count, some=True)
        self._in_hand += units
        if units and self._was_idle:  # its parameters are those of then
            raise _Void
        return units or None

    def idle(self) -> None:
        in_flight = self._in_flight
        if in_flight is not None:
            # First, as a push that came behind it would end the idleness.
            self.waiting(lambda: wait([in_flight], HELD_DEADLINE_SECS))
        super().idle()
        self._was_idle = True

    def compute(self, effect: Compute) -> Gradient:
        unit: int | None = effect.units[0]
        while unit is not None:
            gradient = super().compute(Compute((unit,), effect.parameters))
            if first_non_finite(gradient.contribution) is None:
                return gradient
            self._drop(gradient)
            unit = self._another(effect.parameters)
        return Gradient((), effect.parameters.sequence, None)

    def _drop(self, gradient: Gradient) -> None:
        in_flight = self._in_flight
        if in_flight is not None:
            self.waiting(lambda: wait([in_flight]))  # a link has room for one push
        push = self.push_of(gradient.units, gradient.base)
        self.held(lambda: self.link.push_pull(push, gradient.contribution))
        self._settle(gradient.units)

    def _another(self, parameters: Any) -> int | None:
        """Return a unit in place of a dropped one; None where others wait for those that were stepped through."""
        stepped = isinstance(parameters, Local) and parameters.units
        units = self.stream.at_hand(1) if stepped else self.stream.next(1)
        self._in_hand += units
        if not units and not stepped:
            raise PhaseRevoked(f"epoch {self.phase.epoch} has no more units")
        return next(iter(units), None)

    def _settle(self, units: tuple[int, ...]) -> None:
        """Note that a push, in which the units were, is decided."""
        for unit in units:
            self._in_hand.remove(unit)
        self.recorder.completed = self.stream.position - len(self._in_hand) - len(self._again)

    def push_pull(self, effect: PushPull) -> Version:
        started = self.clock.monotonic()
        version = self._arrived(effect, *self.waiting(lambda: self._transfer(effect)))
        self.recorder.wait("push_pull", "server", started, self.clock.monotonic())
        return version

    def begin(self, effect: Begin) -> Pull | PushPull:
        assert self._in_flight is None, "one transfer at a time"

        def transfer() -> tuple[PushReply, Parameters]:
            started = self.clock.monotonic()
            reply, parameters = self._transfer(effect.effect)
            parameters = jax.tree.map(lambda a: a.copy() if isinstance(a, np.ndarray) else a, parameters)
            name = "pull" if isinstance(effect.effect, Pull) else "push_pull"
            self.recorder.beside(name, started, self.clock.monotonic())
            return reply, parameters

        self._in_flight, self._begun = self._transfers.submit(transfer), effect.effect
        return effect.effect

    def wait_for(self, effect: Await) -> Version:
        in_flight = self._in_flight
        assert in_flight is not None and self._begun is effect.pending, "a transfer is awaited once"
        started = self.clock.monotonic()
        reply, parameters = self.waiting(lambda: in_flight.result(HELD_DEADLINE_SECS))
        self.recorder.wait("await", "server", started, self.clock.monotonic())
        self._in_flight = None
        return self._arrived(effect.pending, reply, parameters)

    def _transfer(self, effect: Pull | PushPull) -> tuple[PushReply, Parameters]:
        if isinstance(effect, Pull) or not effect.gradient.units:
            return self.link.pull(self.push_of((), 0))
        gradient: Gradient = effect.gradient
        push = self.push_of(gradient.units, gradient.base)
        return self.held(lambda: self.link.push_pull(push, gradient.contribution))

    def _arrived(self, effect: Pull | PushPull, reply: PushReply, parameters: Parameters) -> Version:
        if isinstance(effect, PushPull) and (units := effect.gradient.units):
            self._settle(reply.settled or units)
            if not self._stepper.pushed(units, reply):
                raise _Void
        return _version(reply, parameters)

    def _note_in_flight(self) -> None:
        """Hear what becomes of a transfer that the program does not await any more."""
        future, self._in_flight = self._in_flight, None
        if future is None:
            return
        wait([future])
        if future.exception() is None and isinstance(self._begun, PushPull) and self._begun.gradient.units:
            reply, _ = future.result()
            self._settle(reply.settled or self._begun.gradient.units)
            self._stepper.pushed(self._begun.gradient.units, reply)

    def _deposit(self) -> None:
        stepper = self._stepper
        if stepper.settled_unit < 0:
            return
        try:
            self.link.deposit(self.push_of((stepper.settled_unit,), 0), stepper.settled)
        except (RoleLost, WaitTimeout, StaleEpoch) as error:
            logging.info("worker %d leaves no optimizer state behind: %s", self.engine._worker, error)

    def push_of(self, units: tuple[int, ...], base: int) -> Push:
        return super().push_of(units, base)._replace(life=self._lives)
