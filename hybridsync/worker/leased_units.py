"""The units that a worker, or its whole mesh, was handed in one phase, and how many of them it has taken. Pure.

>>> allotment = Allotment()
>>> allotment.lacks(1)
True
>>> allotment.extend(LeaseReply(((0, 4),), final=False))
>>> allotment.next_units(2), allotment.position, allotment.is_low
((0, 1), 2, True)
"""

from __future__ import annotations

from collections.abc import Iterator

from hybridsync.core.units import Range, UnitStream
from hybridsync.interfaces.messages import LeaseReply


class Allotment:
    """A growing stream of units, taken in order.

    Attributes:
      known: units received so far.
      position: units taken so far.
      final: nothing will follow what is here.
    """

    __slots__ = ("_low_at", "_one_by_one", "_stream", "final", "known", "position")

    def __init__(self) -> None:
        self._stream = UnitStream()
        self._low_at = 0
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
