"""The transfers of a worker that makes local updates: one of them may go on beside the computation. Pure."""

from __future__ import annotations

from typing import NamedTuple

from hybridsync.core.errors import HybridSyncError, StillHeld
from hybridsync.interfaces.messages import PushReply
from hybridsync.protocols.base import Pull, PushPull
from hybridsync.worker.member import PhaseMember
from hybridsync.worker.requests import IO, CallServer, Join, Start, Ticket
from hybridsync.worker.server_calls import HELD_DEADLINE_SECS, ServerCalls

Units = tuple[int, ...]


class InFlight(NamedTuple):
    """A transfer that was begun: its effect, and the ticket of its request."""

    effect: Pull | PushPull
    ticket: Ticket

    @property
    def units(self) -> Units:
        """Units of a push; () of a pull."""
        return units_of(self.effect)


def units_of(effect: Pull | PushPull) -> Units:
    """Return the units that an effect pushes; () where it only pulls."""
    return effect.gradient.units if isinstance(effect, PushPull) else ()


class Transfers:
    """Pulls and pushes of one worker, one at a time.

    Args:
      member: in whose name.
      calls: on its server.

    Attributes:
      in_flight: what was begun and was not awaited yet.
    """

    def __init__(self, member: PhaseMember, calls: ServerCalls) -> None:
        self._member, self._calls = member, calls
        self.in_flight: InFlight | None = None

    def make(self, effect: Pull | PushPull) -> IO:
        """Make a transfer; returns (reply, parameters)."""
        return (yield from self._calls.held(self._request(effect)))

    def begin(self, effect: Pull | PushPull) -> IO:
        """Begin a transfer, which goes on beside what follows."""
        assert self.in_flight is None, "one transfer at a time"
        self.in_flight = InFlight(effect, (yield Start(self._request(effect))))

    def end(self) -> IO:
        """Wait until the transfer in flight, if there is one, has ended; it is still to be awaited.

        One that was held for too long is begun again.
        """
        deadline = self._member.now() + HELD_DEADLINE_SECS
        while self.in_flight is not None:
            effect, ticket = self.in_flight
            try:
                return (yield Join(ticket))
            except StillHeld:
                if self._member.now() > deadline:
                    raise
                self.in_flight = InFlight(effect, (yield Start(self._request(effect))))
        return None

    def landed(self) -> IO:
        """Return what the transfer in flight brought, which is in flight no more."""
        try:
            answer = yield from self.end()
            assert self.in_flight is not None
            name = "pull" if isinstance(self.in_flight.effect, Pull) else "push_pull"
            self._member.recorder.beside(name, *self.in_flight.ticket.span)
        finally:
            self.in_flight = None
        return answer

    def abandoned(self) -> IO:
        """Hear what becomes of a transfer that no program awaits any more; returns (units, reply), None without any."""
        if self.in_flight is None:
            return None
        units = self.in_flight.units
        try:
            reply: PushReply = (yield from self.landed())[0]
        except HybridSyncError:
            return None
        return (units, reply) if units else None

    def _request(self, effect: Pull | PushPull) -> CallServer:
        if isinstance(effect, PushPull) and effect.gradient.units:
            return self._calls.push_pull(effect.gradient)
        return self._calls.pull()
