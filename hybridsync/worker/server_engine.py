"""The engine of a phase whose state servers hold, and whose workers push every gradient. Pure."""

from __future__ import annotations

from hybridsync.core.errors import StillHeld
from hybridsync.interfaces.reports import WAITING
from hybridsync.protocols.base import Compute, Lease, Pull, PushPull, Ready, Received, Version
from hybridsync.training.local_updates import Gradient
from hybridsync.worker.lease_queue import LeaseQueue
from hybridsync.worker.member import Numerics, PhaseMember, run_program
from hybridsync.worker.requests import IO, CallServer, ComputeUnit, Units
from hybridsync.worker.server_calls import ServerCalls


class ServerEngine:
    """One worker in one phase whose state servers hold.

    Args:
      member: this worker as a member of the phase.
      numerics: computes what needs no request.
      ahead: whether leases are renewed in the background of the computation.

    Attributes:
      leases: units that the worker was given.
    """

    __slots__ = ("_calls", "_member", "_numerics", "leases")

    def __init__(self, member: PhaseMember, numerics: Numerics, *, ahead: bool) -> None:
        self._member, self._numerics = member, numerics
        self._calls = ServerCalls(member)
        say_idle = self._calls.idle if member.protocol.awaits_workers else None
        self.leases = LeaseQueue(member, ahead=ahead, say_idle=say_idle)

    def run(self) -> IO:
        """Take part in the phase until there are no more units.

        Raises:
          PhaseRevoked: the phase has ended for all members.
          HybridSyncError: error of another request.
        """
        effects = {
            Lease: self._lease,
            Pull: self._pull,
            Compute: self._compute,
            PushPull: self._push_pull,
            Ready: self._ready,
            Received: self._received,
        }
        return run_program(self._member.program(), effects)

    def _lease(self, effect: Lease) -> Units | IO:
        return self.leases.next_calmly(effect.count) or self._next(effect.count)

    def _next(self, count: int) -> IO:
        return (yield from self.leases.next(count)) or None

    def _pull(self, effect: Pull) -> IO:
        started = self._member.now()
        reply, parameters = yield self._calls.pull()
        self._member.recorder.wait("pull", "server", started, self._member.now())
        return Version(reply.sequence, parameters)

    def _compute(self, effect: Compute) -> IO:
        (unit,), version, recorder = effect.units, effect.parameters, self._member.recorder
        started = recorder.computing(unit)
        contribution = yield ComputeUnit(unit, version.parameters, self.leases.ahead)
        recorder.compute("server", started, self._member.now(), self._numerics.loss(contribution))
        return Gradient(effect.units, version.sequence, contribution)

    def _push_pull(self, effect: PushPull) -> IO:
        recorder = self._member.recorder
        started = recorder.turn_to(WAITING)
        call = self._calls.push_pull(effect.gradient)
        try:
            reply, parameters = yield call
        except StillHeld:
            reply, parameters = yield from self._calls.held(call)
        recorder.wait("push_pull", "server", started, recorder.turn_to(""))
        recorder.completed = self.leases.position
        return Version(reply.sequence, parameters)

    def _ready(self, effect: Ready) -> IO:
        recorder = self._member.recorder
        gradient: Gradient = effect.gradient
        started = recorder.turn_to(WAITING)
        push = self._calls.push_of(gradient.units, gradient.base)
        yield from self._calls.held(CallServer("ready", push))
        recorder.wait("ready", "server", started, recorder.turn_to(""))

    def _received(self, effect: Received) -> IO:
        yield CallServer("ready", self._calls.push_of((), effect.version.sequence))
