"""Counts the units in a server's state, those that never will be, and how stale each push was. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hybridsync.core.units import Range, UnitSet, num_units, ranges_of
from hybridsync.interfaces.phase import Phase
from hybridsync.server.unit_outcomes import UnitOutcomes


class Count:
    """Of one phase after another.

    Attributes:
      sequence: updates applied in the whole run.
      dropped: units so far, in the whole run.
      num_dropped: how many these are.
      missing: units of the phase that are not applied.
      ends: what became of each unit.
      complete: whether all units of the phase are applied.
    """

    def __init__(self) -> None:
        self.sequence = 0
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

    def count_one(self, unit: int, base: int) -> int:
        """Count an update by one unit, computed on the version `base`; returns the new version's number."""
        sequence = self.sequence
        self._staleness.append(sequence - base)
        self.ends.apply((unit,))
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
