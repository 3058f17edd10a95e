"""Records the outcome of each unit, as a server has to know it at every push. Pure.

What ended before the phase is held as ranges, so that entering a phase costs as much as it has ranges. What ends within
the phase is a byte each, in chunks that are made as they are needed.

>>> ends = UnitOutcomes(6, applied=[(0, 2)], dropped=[(4, 5)])
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

_BITS = 12
_CHUNK = 1 << _BITS
"""Units of a chunk."""
_LAST = _CHUNK - 1


class UnitOutcomes:
    """The units of a phase and of those before it: open, applied, or dropped.

    Args:
      limit: units that may be issued are below it; each later drop lets one more be.
      applied, dropped: what became of them before the phase.

    Attributes:
      limit: now.
    """

    __slots__ = ("_applied", "_chunks", "_dropped", "limit")

    def __init__(self, limit: int, applied: Iterable[Range] = (), dropped: Iterable[Range] = ()) -> None:
        self.limit = limit
        self._dropped = UnitSet(dropped)
        self._applied = UnitSet(applied).difference(self._dropped)
        self._chunks: dict[int, bytearray] = {}  # each tells all of its units, also what ended before the phase

    def is_open(self, unit: int) -> bool:
        """Return whether `unit` may be issued, and has no end."""
        if not 0 <= unit < self.limit:
            return False
        try:
            return not self._chunks[unit >> _BITS][unit & _LAST]
        except KeyError:
            return not self._ended_before(unit)

    def is_settled(self, unit: int) -> bool:
        """Return whether `unit` was applied or dropped."""
        try:
            return self._chunks[unit >> _BITS][unit & _LAST] != OPEN
        except KeyError:
            return self._ended_before(unit)

    def apply(self, units: Iterable[int]) -> None:
        """Note units as applied."""
        for unit in units:
            (self._chunks.get(unit >> _BITS) or self._add_chunk(unit >> _BITS))[unit & _LAST] = APPLIED

    def drop(self, unit: int) -> None:
        """Note a unit as dropped; a fresh one may take its place."""
        (self._chunks.get(unit >> _BITS) or self._add_chunk(unit >> _BITS))[unit & _LAST] = DROPPED
        self.limit += 1

    def applied(self) -> UnitSet:
        """Return the applied units."""
        units = self._applied.copy()
        units.update(
            ((number << _BITS) + found.start(), (number << _BITS) + found.end())
            for number, chunk in self._chunks.items()
            for found in _APPLIED_RANGE.finditer(chunk)
        )
        return units

    def _ended_before(self, unit: int) -> bool:
        """Return whether a unit was applied or dropped before the phase."""
        return unit in self._applied or unit in self._dropped

    def _add_chunk(self, number: int) -> bytearray:
        """Return a new chunk, which knows what became of its units before the phase."""
        first = number << _BITS
        units, chunk = UnitSet([(first, first + _CHUNK)]), bytearray(_CHUNK)
        for mark, before in ((APPLIED, self._applied), (DROPPED, self._dropped)):
            for start, stop in units.intersection(before).ranges():
                chunk[start - first : stop - first] = bytes([mark]) * (stop - start)
        self._chunks[number] = chunk
        return chunk
