"""The engine of a phase whose state servers hold, and whose workers push every gradient. Pure."""

from __future__ import annotations

from hybridsync.core.errors import StillHeld
from hybridsync.interfaces.reports import WAITING
from hybridsync.protocols.base import Compute, Lease, Pull, PushPull, Ready, Received
from hybridsync.training.local_updates import Gradient
from hybridsync.worker.lease_queue import LeaseQueue
from hybridsync.worker.member import Numerics, PhaseMember, run_program
from hybridsync.worker.requests import IO, CallServer, ComputeUnit
from hybridsync.worker.server_calls import ServerCalls, version_of


class ServerEngine:
    """One worker in one phase whose state servers hold.

    Args:
      member: this worker as a member of the phase.
      numerics: computes what needs no request.
      ahead: whether leases are renewed in the background of the computation.

    Attributes:
      leases: units that the worker was given.
    """

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

    def _lease(self, effect: Lease) -> IO:
        return (yield from self.leases.next(effect.count)) or None

    def _pull(self, effect: Pull) -> IO:
        started = self._member.now()
        reply, parameters = yield self._calls.pull()
        self._member.recorder.wait("pull", "server", started, self._member.now())
        return version_of(reply, parameters)

    def _compute(self, effect: Compute) -> IO:
        (unit,), version, member = effect.units, effect.parameters, self._member
        started = member.begin_unit(unit)
        contribution = yield ComputeUnit(unit, version.parameters)
        member.end_unit("server", started, self._numerics.loss(contribution))
        return Gradient(effect.units, version.sequence, contribution)

    def _push_pull(self, effect: PushPull) -> IO:
        member, recorder = self._member, self._member.recorder
        started = member.now()
        recorder.turn_to(WAITING)
        call = self._calls.push_pull(effect.gradient)
        try:
            reply, parameters = yield call
        except StillHeld:
            reply, parameters = yield from self._calls.held(call)
        recorder.turn_to("")
        recorder.wait("push_pull", "server", started, member.now())
        recorder.completed = self.leases.position
        return version_of(reply, parameters)

    def _ready(self, effect: Ready) -> IO:
        member, recorder = self._member, self._member.recorder
        gradient: Gradient = effect.gradient
        started = member.now()
        recorder.turn_to(WAITING)
        push = self._calls.push_of(gradient.units, gradient.base)
        yield from self._calls.held(CallServer("ready", push))
        recorder.turn_to("")
        recorder.wait("ready", "server", started, member.now())

    def _received(self, effect: Received) -> IO:
        yield CallServer("ready", self._calls.push_of((), effect.version.sequence))
