"""The units that a worker, or its whole mesh, was leased in one phase: handed out in order, renewed ahead. Pure."""

from __future__ import annotations

from collections.abc import Callable

from hybridsync.core.errors import WaitTimeout
from hybridsync.core.plan import PhaseId
from hybridsync.core.units import Range
from hybridsync.interfaces.messages import LeaseReply, LeaseRequest
from hybridsync.worker.leased_units import Allotment
from hybridsync.worker.member import PhaseMember
from hybridsync.worker.requests import IO, Join, LeaseUnits, Start, Ticket

LEASE_DEADLINE_SECS = 600.0
"""How long a worker waits for units before it gives up: others' last units may take long, the chief may restart."""


class LeaseQueue:
    """The units of one phase in the order in which this worker (or its whole mesh) takes them.

    Args:
      member: whose units they are.
      ahead: whether more units are asked for while some are in hand, beside the computation.
      takes_fewer: whether fewer units will do where the chief has no more to give now.
      say_idle: requests that tell whoever waits for this worker that it has nothing to compute; None tells nobody.

    Attributes:
      called: the last `next` brought no units because everybody is called to a full synchronisation.
    """

    def __init__(
        self,
        member: PhaseMember,
        *,
        ahead: bool,
        takes_fewer: bool = False,
        say_idle: Callable[[], IO] | None = None,
    ) -> None:
        self._member, self._ahead, self._takes_fewer, self._say_idle = member, ahead, takes_fewer, say_idle
        self._allotment = Allotment()
        self._renewal: Ticket | None = None
        self.called = False

    @property
    def phase_id(self) -> PhaseId:
        """The phase of these units."""
        return self._member.phase.id

    @property
    def position(self) -> int:
        """Units taken so far in this phase."""
        return self._allotment.position

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Units received so far in this phase, in order, with those of a renewal that has arrived unread.

        Another thread may ask: the chief must hear of all that it has given.
        """
        renewal = self._renewal
        arrived: LeaseReply | None = renewal.peek() if renewal is not None else None
        return self._allotment.ranges + (arrived.ranges if arrived is not None else ())

    def at_hand(self, count: int) -> tuple[int, ...]:
        """Return up to `count` of the units that are here already."""
        return self._allotment.next_units(count)

    def next(self, count: int) -> IO:
        """Return the next `count` units, waiting for them; fewer at the phase's end or where fewer will do.

        Raises:
          WaitTimeout: the chief had nothing to give and did not end the phase in time.
        """
        allotment, say_idle = self._allotment, self._say_idle
        self.called = False
        if self._renewal is not None and self._renewal.done():
            yield from self._read(self._renewal)
        if allotment.lacks(count):
            deadline = self._member.now() + LEASE_DEADLINE_SECS
            while allotment.lacks(count) and not self.called:
                self._member.recorder.watchdog.progress()
                if self._renewal is not None:  # it was asked for long ago: that it brings nothing is no idleness
                    yield from self._read(self._renewal)
                    continue
                known = allotment.known
                self._extend((yield self._ask(count, say_idle is not None)))
                if self._takes_fewer and allotment.known > allotment.position:
                    if allotment.known == known:
                        break
                elif say_idle is not None and allotment.lacks(count):
                    yield from say_idle()
                    say_idle = None  # from now on the answer may take its time
                if self._member.now() > deadline:
                    raise WaitTimeout(
                        f"worker {self._member.worker} got no units from the chief for {LEASE_DEADLINE_SECS:g} s in "
                        f"phase {self.phase_id}, and the phase did not end"
                    )
        units = allotment.next_units(count)
        if self._ahead and allotment.is_low and self._renewal is None:
            self._renewal = yield Start(self._ask(count, self._say_idle is not None))
        return units

    def _ask(self, count: int, at_once: bool) -> LeaseUnits:
        member, allotment = self._member, self._allotment
        at_once = at_once or (self._takes_fewer and allotment.known > allotment.position)
        who = member.worker, member.incarnation, member.phase.id
        return LeaseUnits(LeaseRequest(*who, allotment.known, member.recorder.completed, at_once, count))

    def _read(self, renewal: Ticket) -> IO:
        """Take in a renewal; until it is here `ranges` looks at it."""
        try:
            reply = yield Join(renewal)
        finally:
            self._renewal = None
        self._extend(reply)

    def _extend(self, reply: LeaseReply) -> None:
        self.called = reply.join_group
        self._allotment.extend(reply)
