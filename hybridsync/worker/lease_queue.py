"""The units that a worker, or its whole mesh, was leased in one phase: handed out in order, renewed ahead. Pure.

>>> allotment = Allotment()
>>> allotment.lacks(1)
True
>>> allotment.extend(LeaseReply(((0, 4),), final=False))
>>> allotment.next_units(2), allotment.position, allotment.is_low
((0, 1), 2, True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hybridsync.core.deadlines import MEMBERS_SECS
from hybridsync.core.errors import WaitTimeout
from hybridsync.core.plan import PhaseId
from hybridsync.core.units import Range, UnitStream
from hybridsync.interfaces.messages import LeaseReply, LeaseRequest
from hybridsync.interfaces.reports import WAITING
from hybridsync.worker.member import PhaseMember
from hybridsync.worker.requests import IO, Join, LeaseUnits, Start, Ticket


class Allotment:
    """A growing stream of units, taken in order.

    Attributes:
      known: units received so far.
      position: units taken so far.
      final: nothing will follow what is here.
    """

    __slots__ = ("_calm_until", "_low_at", "_one_by_one", "_stream", "final", "known", "position")

    def __init__(self) -> None:
        self._stream = UnitStream()
        self._low_at = self._calm_until = 0
        self._one_by_one: Iterator[tuple[int]] = iter(())
        self.known = 0
        self.position = 0
        self.final = False

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Units received so far, in order."""
        return self._stream.ranges(0, self.known)

    @property
    def is_low(self) -> bool:
        """Return whether half of what was received last is taken, and more may follow: it is time to ask."""
        return not self.final and self.position >= self._low_at

    def lacks(self, count: int) -> bool:
        """Return whether `count` units are not here, and more may follow."""
        return not self.final and self.known - self.position < count

    def extend(self, reply: LeaseReply) -> None:
        """Append what the chief has answered."""
        self._stream.extend(reply.ranges)
        self.known = len(self._stream)
        self.final = reply.final
        self._low_at = (self.position + self.known) // 2
        self._calm_until = self.known + 1 if self.final else self._low_at

    def ahead(self, offset: int = 0) -> int | None:
        """Return the unit that lies `offset` behind the next one; None where it is not here yet."""
        return next(iter(self._stream.slice(self.position + offset, 1)), None)

    def next_units(self, count: int) -> tuple[int, ...]:
        """Return the next `count` units, fewer where there are fewer."""
        if count == 1 and (units := next(self._one_by_one, None)):  # through a range, as asynchronous workers go
            self.position += 1
            return units
        units = self._stream.slice(self.position, count)
        self.position += len(units)
        ahead = self._stream.ranges(self.position, self.known)[:1] if count == 1 else ()
        self._one_by_one = zip(range(*ahead[0])) if ahead else iter(())
        return units


class LeaseQueue(Allotment):
    """The units of one phase in the order in which this worker (or its whole mesh) takes them.

    Args:
      member: member that the units are leased to.
      ahead: whether more units are asked for while some are in hand, in the background of the computation.
      takes_fewer: whether fewer units will do if the chief has no more to give now.
      say_idle: requests that notify the servers that this worker has nothing to compute; None notifies no server.

    Attributes:
      called: the last `next` brought no units because all members are called to a full synchronisation; those that came
        with the call are for the next one.
    """

    __slots__ = ("_ahead", "_member", "_renewal", "_say_idle", "_takes_fewer", "called")

    def __init__(
        self,
        member: PhaseMember,
        *,
        ahead: bool,
        takes_fewer: bool = False,
        say_idle: Callable[[], IO] | None = None,
    ) -> None:
        super().__init__()
        self._member, self._ahead, self._takes_fewer, self._say_idle = member, ahead, takes_fewer, say_idle
        self._renewal: Ticket | None = None
        self.called = False

    @property
    def phase_id(self) -> PhaseId:
        """The phase of these units."""
        return self._member.phase.id

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Units received so far in this phase, in order, with those of a renewal that has arrived unread.

        Another thread may ask: the chief must hear of all that it has given.
        """
        renewal = self._renewal
        arrived: LeaseReply | None = renewal.peek() if renewal is not None else None
        return super().ranges + (arrived.ranges if arrived is not None else ())

    def next_calmly(self, count: int) -> tuple[int, ...]:
        """Return the next `count` units if it is time for no request; () where `next` has to be asked."""
        if self._renewal is not None or self.position + count >= self._calm_until:
            return ()
        self.called = False
        if count == 1 and (units := next(self._one_by_one, None)):  # hot path: `next_units` without a call
            self.position += 1
            return units
        return self.next_units(count)

    def next(self, count: int) -> IO:
        """Return the next `count` units, waiting for them; fewer at the phase's end or where fewer will do.

        Raises:
          WaitTimeout: the chief had nothing to give and did not end the phase in time.
        """
        say_idle, self.called = self._say_idle, False
        if self._renewal is not None and self._renewal.done():
            yield from self._read(self._renewal)
        if self.lacks(count):
            recorder = self._member.recorder
            deadline = recorder.turn_to(WAITING) + MEMBERS_SECS  # for what others give back, or for the phase's end
            while self.lacks(count) and not self.called:
                recorder.watchdog.progress()
                if self._renewal is not None:  # it was asked for long ago: an empty reply is not idleness
                    yield from self._read(self._renewal)
                    continue
                known = self.known
                self.extend((yield self._ask(count, say_idle is not None)))
                if self._takes_fewer and self.known > self.position:
                    if self.known == known:
                        break
                elif say_idle is not None and self.lacks(count):
                    yield from say_idle()
                    recorder.turn_to(WAITING)
                    say_idle = None  # from now on the answer may take its time
                if self._member.now() > deadline:
                    raise WaitTimeout(
                        f"worker {self._member.worker} got no units from the chief for {MEMBERS_SECS:g} s in "
                        f"phase {self.phase_id}, and the phase did not end"
                    )
            recorder.turn_to("")
        units = () if self.called else self.next_units(count)
        if self._ahead and self.is_low and self._renewal is None:
            self._renewal = yield Start(self._ask(count, self._say_idle is not None))
        return units

    def _ask(self, count: int, at_once: bool) -> LeaseUnits:
        member = self._member
        at_once = at_once or (self._takes_fewer and self.known > self.position)
        who = member.worker, member.incarnation, member.phase.id
        return LeaseUnits(LeaseRequest(*who, self.known, member.recorder.completed, at_once, count))

    def _read(self, renewal: Ticket) -> IO:
        """Take in a renewal; until it is here `ranges` looks at it."""
        try:
            reply = yield Join(renewal)
        finally:
            self._renewal = None
        self.extend(reply)

    def extend(self, reply: LeaseReply) -> None:
        """Append what the chief has answered, and hear whether all members are called."""
        self.called = reply.join_group
        super().extend(reply)
