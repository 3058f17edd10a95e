"""What became of each unit, as a server has to know it at every push: a byte for each. Pure.

>>> ends = Ends(6, applied=[(0, 2)], dropped=[(4, 5)])
>>> ends.apply((2,)); ends.drop(3)
>>> ends.applied().ranges(), [unit for unit in range(9) if ends.is_open(unit)]
(((0, 3),), [5, 6])
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hybridsync.core.units import Range, UnitSet

OPEN, APPLIED, DROPPED = 0, 1, 2
_APPLIED_RANGE = re.compile(bytes([APPLIED]) + b"+")


class Ends:
    """The units of a phase and of those before it: open, applied, or dropped.

    Args:
      limit: units that may be issued are below it; each later drop lets one more be.
      applied, dropped: what became of them before the phase.

    Attributes:
      marks: of each unit, whether it is applied or dropped; 0 while its end is open.
      limit: now.
    """

    __slots__ = ("limit", "marks")

    def __init__(self, limit: int, applied: Iterable[Range] = (), dropped: Iterable[Range] = ()) -> None:
        marked = [*((APPLIED, *units) for units in applied), *((DROPPED, *units) for units in dropped)]
        self.limit = limit
        self.marks = bytearray(max([limit, *(stop for _, _, stop in marked)]))
        for mark, start, stop in marked:
            self.marks[start:stop] = bytes([mark]) * (stop - start)

    def is_open(self, unit: int) -> bool:
        """Whether `unit` may be issued, and has no end."""
        return 0 <= unit < self.limit and not self.marks[unit]

    def is_settled(self, unit: int) -> bool:
        """Whether `unit` was applied or dropped."""
        return 0 <= unit < len(self.marks) and self.marks[unit] != OPEN

    def apply(self, units: Iterable[int]) -> None:
        """Note units as applied."""
        for unit in units:
            self.marks[unit] = APPLIED

    def drop(self, unit: int) -> None:
        """Note a unit as dropped; a fresh one may take its place."""
        self.marks[unit] = DROPPED
        self.limit += 1
        if len(self.marks) < self.limit:
            self.marks.append(OPEN)

    def applied(self) -> UnitSet:
        """Return the applied units."""
        return UnitSet(found.span() for found in _APPLIED_RANGE.finditer(self.marks))
