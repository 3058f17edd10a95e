"""Records what became of each unit, as a server has to know it at every push, and counts them. Pure.

Units that ended before the phase are held as ranges, so that entering a phase costs as much as it has ranges. Units
that end within the phase take a byte each, in chunks that are made as they are needed.

>>> ends = UnitOutcomes(6, applied=[(0, 2)], dropped=[(4, 5)])
>>> ends.apply((2,)); ends.drop(3)
>>> ends.applied().ranges(), [unit for unit in range(9) if ends.is_open(unit)]
(((0, 3),), [5, 6])
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hybridsync.core.units import Range, UnitSet, num_units, ranges_of
from hybridsync.interfaces.phase import Phase

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
      applied, dropped: ranges of the units that were applied, and of those that were dropped, before the phase.

    Attributes:
      limit: current limit.
    """

    __slots__ = ("_applied", "_chunks", "_dropped", "limit")

    def __init__(self, limit: int, applied: Iterable[Range] = (), dropped: Iterable[Range] = ()) -> None:
        self.limit = limit
        self._dropped = UnitSet(dropped)
        self._applied = UnitSet(applied).difference(self._dropped)
        self._chunks: dict[int, bytearray] = {}  # each has all of its units, also those that ended before the phase

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
        for unit in units:  # hot path: `apply_one` without a call
            (self._chunks.get(unit >> _BITS) or self._add_chunk(unit >> _BITS))[unit & _LAST] = APPLIED

    def apply_one(self, unit: int) -> None:
        """Note a unit as applied."""
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


class Count:
    """Counts the units and the updates of one phase after another.

    Attributes:
      sequence: updates applied in the whole run.
      dropped: units that were dropped so far, in the whole run.
      num_dropped: number of the dropped units.
      missing: units of the phase that are not applied.
      ends: outcome of each unit.
      complete: whether all units of the phase are applied.
      place: missing units at which the phase comes to its next place (see `Phase.evaluate_units`); -1 for none.
    """

    def __init__(self) -> None:
        self.sequence = 0
        self.place = -1
        self._end_units = self._every = 0
        self.dropped = UnitSet()
        self.num_dropped = self.missing = 0
        self.ends = UnitOutcomes(0)
        self.complete = False
        self._unreported: list[int] = []  # of the applied ones
        self._unreported_drops: list[tuple[int, str]] = []
        self._staleness: list[int] = []

    @property
    def applied(self) -> UnitSet:
        """Units applied so far, in the whole run."""
        return self.ends.applied()

    def take_report(self) -> tuple[tuple[Range, ...], tuple[tuple[int, str], ...], tuple[int, ...]]:
        """Return and forget the units applied, those dropped with the reasons, and the staleness of each update."""
        applied = tuple(ranges_of(sorted(self._unreported)))
        told = applied, tuple(self._unreported_drops), tuple(self._staleness)
        self._unreported, self._unreported_drops, self._staleness = [], [], []
        return told

    def begin(self, phase: Phase) -> None:
        """Count from the state that `phase` begins with; what was not reported of another one is not in it."""
        self.sequence, self.dropped = phase.sequence, UnitSet(phase.dropped)
        self._unreported, self._unreported_drops = [], []
        self.num_dropped, self.missing = len(self.dropped), phase.end_units - num_units(phase.applied)
        self.ends = UnitOutcomes(phase.end_units + self.num_dropped, phase.applied, phase.dropped)
        self.complete = self.missing <= 0
        self._end_units, self._every = phase.end_units, phase.evaluate_units
        self.find_place()

    def find_place(self) -> None:
        """Find the next place after the units that are applied; the phase's end is no such place."""
        self.place = -1
        if every := self._every:
            left = self._end_units - ((self._end_units - self.missing) // every + 1) * every
            self.place = left if left > 0 else -1

    def count_one(self, unit: int, base: int) -> int:
        """Count an update by one unit, computed on the version `base`; returns the new version's number."""
        sequence = self.sequence
        self._staleness.append(sequence - base)
        self.ends.apply_one(unit)
        self._unreported.append(unit)
        self.sequence = sequence = sequence + 1
        self.missing = missing = self.missing - 1
        if missing <= 0:
            self.complete = True
        return sequence

    def count(self, units: Iterable[int], bases: Iterable[int]) -> None:
        """Count an update by `units`, whose pushes were computed on the versions `bases`."""
        sequence, before = self.sequence, len(self._unreported)
        self._staleness += [sequence - base for base in bases]
        self.sequence = sequence + 1
        self.ends.apply(units)
        self._unreported += units
        self.missing -= len(self._unreported) - before
        self.complete = self.missing <= 0

    def count_drop(self, units: Iterable[int], reason: str) -> None:
        """Count units that come to nothing."""
        for unit in units:
            self.dropped.add(unit)
            self.ends.drop(unit)
            self._unreported_drops.append((unit, reason))
        self.num_dropped = len(self.dropped)

    def is_settled(self, unit: int) -> bool:
        """Return whether a unit was applied or dropped, in this phase or before it."""
        return self.ends.is_settled(unit)
