"""The SERVER engine: carries out an asynchronous worker program against the parameter server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import jax

from hybridsync import protocols
from hybridsync.errors import StillHeld
from hybridsync.messages import Push, PushReply
from hybridsync.paths.driver import drive
from hybridsync.paths.emulation import Emulation
from hybridsync.paths.leases import LeaseStream
from hybridsync.paths.recorder import WorkerRecorder
from hybridsync.plan import NO_EPOCH, Epoch, Phase
from hybridsync.ports import WorkPort
from hybridsync.protocols.base import Compute, Lease, Pull, PushPull, Ready
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
        """Push a contribution; returns at its release, with the parameters then.

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

    def close(self) -> None:
        """End the calls under way, with RoleLost, and refuse later ones."""
        ...


@dataclass(frozen=True)
class Version:
    """Parameters handle: what was pulled, and its sequence."""

    sequence: int
    parameters: Parameters


@dataclass(frozen=True)
class Gradient:
    """Gradient handle: a contribution, its units, and the sequence it was computed on."""

    units: tuple[int, ...]
    base: int
    contribution: Any


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
            _Worker(self, phase, link).run()
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
        self.protocol = protocols.parse(phase.spec)
        self.link = link
        idle = self.idle if self.protocol.awaits_workers else None
        self.stream = engine.stream = LeaseStream(
            engine._chief, engine._worker, self.recorder.incarnation, phase, self.clock, engine._ahead, idle
        )

    def run(self) -> None:
        handlers = {
            Lease: self.lease,
            Pull: self.pull,
            Compute: self.compute,
            PushPull: self.push_pull,
            Ready: self.ready,
        }
        drive(self.protocol.worker_program(len(self.phase.members)), handlers)

    def lease(self, effect: Lease) -> tuple[int, ...] | None:
        return self.stream.next(effect.count) or None

    def idle(self) -> None:
        self.link.idle(self.push_of((), 0))

    def pull(self, effect: Pull) -> Version:
        reply, parameters = self.link.pull(self.push_of((), 0))
        return Version(reply.sequence, parameters)

    def compute(self, effect: Compute) -> Gradient:
        (unit,) = effect.units
        self.recorder.computing(unit)
        started = self.clock.monotonic()
        contribution = self.engine._programs.gradient(effect.parameters.parameters, unit)
        jax.block_until_ready(contribution)
        if self.engine._emulation.active:
            self.engine._emulation.finish(self.engine._worker, unit, started, self.clock)
        self.recorder.doing = ""
        self.recorder.compute("server", started, self.clock.monotonic(), contribution["floats"]["loss"])
        return Gradient(effect.units, effect.parameters.sequence, contribution)

    def push_pull(self, effect: PushPull) -> Version:
        gradient: Gradient = effect.gradient
        started = self.clock.monotonic()
        push = self.push_of(gradient.units, gradient.base)
        reply, parameters = self.held(lambda: self.link.push_pull(push, gradient.contribution))
        self.recorder.wait("push_pull", "server", started, self.clock.monotonic())
        self.recorder.completed = self.stream.position
        return Version(reply.sequence, parameters)

    def ready(self, effect: Ready) -> None:
        gradient: Gradient = effect.gradient
        started = self.clock.monotonic()
        push = self.push_of(gradient.units, gradient.base)
        self.held(lambda: self.link.ready(push))
        self.recorder.wait("ready", "server", started, self.clock.monotonic())

    def held(self, call: Callable[[], T]) -> T:
        """Make a call that the rule may hold, again and again until it does not."""
        deadline = self.clock.monotonic() + HELD_DEADLINE_SECS
        while True:
            try:
                return call()
            except StillHeld:
                if self.clock.monotonic() > deadline:
                    raise

    def push_of(self, units: tuple[int, ...], base: int) -> Push:
        return Push(self.phase.epoch, self.engine._worker, self.recorder.incarnation, units, base)
