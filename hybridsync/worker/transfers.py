"""The transfers of a worker that makes local updates: one in each direction may go on beside the computation. Pure."""

from __future__ import annotations

from typing import NamedTuple

from hybridsync.core.deadlines import MEMBERS_SECS
from hybridsync.core.errors import HybridSyncError, StillHeld
from hybridsync.interfaces.messages import PushReply
from hybridsync.protocols.base import Pull, PushOnly, PushPull
from hybridsync.worker.member import PhaseMember
from hybridsync.worker.requests import IO, CallServer, Join, Start, Ticket
from hybridsync.worker.server_calls import ServerCalls

Units = tuple[int, ...]


class InFlight(NamedTuple):
    """A transfer that was begun: its effect, and the ticket of its request."""

    effect: Pull | PushOnly
    ticket: Ticket

    @property
    def units(self) -> Units:
        """Units of a push; () of a pull."""
        return self.effect.gradient.units if isinstance(self.effect, PushOnly) else ()


class Transfers:
    """Pulls and pushes of one worker: one at a time in each direction, or one that goes both ways.

    Args:
      member: member in whose name the calls are made.
      calls: calls of its server.
    """

    def __init__(self, member: PhaseMember, calls: ServerCalls) -> None:
        self._member, self._calls = member, calls
        self._in_flight: dict[type, InFlight] = {}  # by the kind of the effect, which is its direction

    def make(self, effect: Pull | PushPull) -> IO:
        """Make a transfer, while none is in flight; returns (reply, parameters)."""
        assert not self._in_flight, "a call that waits for its reply may have no other in flight"
        return (yield from self._calls.held(self._request(effect)))

    def begin(self, effect: Pull | PushOnly) -> IO:
        """Begin a transfer, which goes on beside what follows."""
        assert type(effect) not in self._in_flight, "one transfer at a time in each direction"
        self._in_flight[type(effect)] = InFlight(effect, (yield Start(self._request(effect))))

    def end(self) -> IO:
        """Wait until the transfers in flight have ended; they are still to be awaited."""
        for direction in [*self._in_flight]:
            yield from self._ended(direction)

    def landed(self, effect: Pull | PushOnly) -> IO:
        """Return what a transfer in flight brought, which is in flight no more, and the units that it pushed."""
        direction = type(effect)
        in_flight = self._in_flight.get(direction)
        assert in_flight is not None and in_flight.effect is effect, "a transfer is awaited once"
        try:
            answer = yield from self._ended(direction)
            name = "pull" if direction is Pull else "push"
            self._member.recorder.beside(name, *self._in_flight[direction].ticket.span)
        finally:
            del self._in_flight[direction]
        return answer, in_flight.units

    def abandoned(self) -> IO:
        """Hear what becomes of transfers that no program awaits any more; returns (units, reply) of each push."""
        heard: list[tuple[Units, PushReply]] = []
        for in_flight in [*self._in_flight.values()]:
            try:
                (reply, _), units = yield from self.landed(in_flight.effect)
            except HybridSyncError:
                continue
            if units:
                heard.append((units, reply))
        return heard

    def _ended(self, direction: type) -> IO:
        """Return what a transfer in flight brought; one that was held for too long is begun again."""
        deadline = self._member.now() + MEMBERS_SECS
        while True:
            effect, ticket = self._in_flight[direction]
            try:
                return (yield Join(ticket))
            except StillHeld:
                if self._member.now() > deadline:
                    raise
                self._in_flight[direction] = InFlight(effect, (yield Start(self._request(effect))))

    def _request(self, effect: Pull | PushPull | PushOnly) -> CallServer:
        if isinstance(effect, PushOnly):
            assert effect.gradient.units, "a push whose reply brings no parameters has units"
            return self._calls.push(effect.gradient, effect.newest.sequence)
        if isinstance(effect, PushPull) and effect.gradient.units:
            return self._calls.push_pull(effect.gradient)
        return self._calls.pull()
