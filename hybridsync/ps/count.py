"""What a server counts: units in its state, units that never will be, and how stale each push was. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hybridsync.phase import Phase
from hybridsync.ps.ends import APPLIED, Ends
from hybridsync.units import Range, UnitSet, num_units, ranges_of


class Count:
    """Of one phase after another.

    Attributes:
      sequence: updates applied in the whole run.
      dropped: units so far, in the whole run.
      complete: whether all units of the phase are applied.
    """

    def __init__(self) -> None:
        self.sequence = 0
        self.dropped = UnitSet()
        self.complete = False
        self._ends = Ends(0)
        self._num_dropped = self._missing = 0
        self._unreported: list[int] = []  # of the applied ones
        self._unreported_drops: list[tuple[int, str]] = []
        self._staleness: list[int] = []

    @property
    def applied(self) -> UnitSet:
        """Units applied so far, in the whole run."""
        return self._ends.applied()

    def drain(self) -> tuple[tuple[Range, ...], tuple[tuple[int, str], ...], tuple[int, ...]]:
        """Return and forget the units applied, those dropped with the reasons, and the staleness of each update."""
        applied = tuple(ranges_of(sorted(self._unreported)))
        told = applied, tuple(self._unreported_drops), tuple(self._staleness)
        self._unreported, self._unreported_drops, self._staleness = [], [], []
        return told

    def _begin(self, phase: Phase) -> None:
        """Count from the state that `phase` begins with; what was not reported of another one is not in it."""
        self.sequence, self.dropped = phase.sequence, UnitSet(phase.dropped)
        self._unreported, self._unreported_drops = [], []
        self._num_dropped, self._missing = len(self.dropped), phase.end_units - num_units(phase.applied)
        self._ends = Ends(phase.end_units + self._num_dropped, phase.applied, phase.dropped)
        self.complete = self._missing <= 0

    def _count_one(self, unit: int, base: int) -> int:
        """Count an update by one unit, computed on the version `base`; returns the new version's number."""
        sequence = self.sequence
        self._staleness.append(sequence - base)
        self._ends.marks[unit] = APPLIED
        self._unreported.append(unit)
        self.sequence = sequence = sequence + 1
        self._missing = missing = self._missing - 1
        if missing <= 0:
            self.complete = True
        return sequence

    def _count(self, units: Iterable[int], bases: Iterable[int]) -> None:
        """Count an update by `units`, whose pushes were computed on the versions `bases`."""
        sequence, before = self.sequence, len(self._unreported)
        self._staleness += [sequence - base for base in bases]
        self.sequence = sequence + 1
        self._ends.apply(units)
        self._unreported += units
        self._missing -= len(self._unreported) - before
        self.complete = self._missing <= 0

    def _count_drop(self, units: Iterable[int], reason: str) -> None:
        """Count units that come to nothing."""
        for unit in units:
            self.dropped.add(unit)
            self._ends.drop(unit)
            self._unreported_drops.append((unit, reason))
        self._num_dropped = len(self.dropped)

    def _is_settled(self, unit: int) -> bool:
        """Whether a unit was applied or dropped, in this phase or before it."""
        return self._ends.is_settled(unit)
