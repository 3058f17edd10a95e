"""Sets of units: the currency in which work is issued, applied, dropped and accounted for.

A unit is one micro-batch of fixed size, numbered from 0; a run of millions of units is held as a few ranges.

    >>> done = UnitSet([(0, 4)])
    >>> done.add(5); done.add(4); done.ranges()
    ((0, 6),)
    >>> len(done), 5 in done, 6 in done
    (6, True, False)
    >>> done.difference(UnitSet([(1, 3)])).ranges()
    ((0, 1), (3, 6))
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

Range = tuple[int, int]
"""Units `start <= u < stop`."""

MANY = 64
"""Ranges from which on they are added in one pass."""

MOST_UNITS = 2**31
"""A run's workload is below it: a state counts the applied units as int32."""


class UnitSet:
    """A mutable set of non-negative integers held as sorted, disjoint, non-adjacent ranges.

    Args:
      ranges: (start, stop) pairs in any order; they may touch or overlap.

    Raises:
      ValueError: a range is empty, reversed or negative.
    """

    __slots__ = ("_count", "_starts", "_stops")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._count = 0
        self.update(ranges)

    def add(self, unit: int) -> None:
        """Add one unit.

        Raises:
          ValueError: the unit is negative.
        """
        self.add_range(unit, unit + 1)

    def add_all(self, units: Sequence[int]) -> None:
        """Add units; those of a step mostly follow one another, and are added as one range.

        >>> done = UnitSet()
        >>> done.add_all((4, 5, 6)); done.add_all((9, 8)); done.add_all(()); done.ranges()
        ((4, 7), (8, 10))

        Raises:
          ValueError: a unit is negative.
        """
        if units and [*units] == [*range(units[0], units[0] + len(units))]:
            self.add_range(units[0], units[0] + len(units))
        else:
            self.update((unit, unit + 1) for unit in units)

    def add_range(self, start: int, stop: int) -> None:
        """Add the units `start <= u < stop`.

        Raises:
          ValueError: the range is empty, reversed or negative.
        """
        self.update(((start, stop),))

    def update(self, other: UnitSet | Iterable[Range]) -> None:
        """Add every unit of `other`.

        Raises:
          ValueError: a range is empty, reversed or negative.
        """
        ranges = other.ranges() if isinstance(other, UnitSet) else tuple(other)
        if len(ranges) > MANY:
            self._merge(ranges)
            return
        starts, stops = self._starts, self._stops
        for start, stop in ranges:
            at = bisect_left(stops, start)  # the first range that touches or follows `start`
            if at < len(stops) and stops[at] == start < stop and (at + 1 == len(starts) or stop < starts[at + 1]):
                stops[at] = stop  # the next ones of a range: most work goes in order
                self._count += stop - start
            else:
                self._insert(at, start, stop)

    def _insert(self, first: int, start: int, stop: int) -> None:
        """Add a range, where `first` is the index of the first one that touches or follows its start."""
        if not 0 <= start < stop:
            raise ValueError(f"a range of units needs 0 <= start < stop, got ({start}, {stop})")
        starts, stops = self._starts, self._stops
        last = bisect_right(starts, stop)  # the first range that lies wholly after `stop`
        if first < last:
            start, stop = min(start, starts[first]), max(stop, stops[last - 1])
            self._count -= sum(stops[i] - starts[i] for i in range(first, last))
        starts[first:last] = [start]
        stops[first:last] = [stop]
        self._count += stop - start

    def _merge(self, ranges: Sequence[Range]) -> None:
        """Add many ranges in one pass: one by one, each would move all that lie behind it."""
        if wrong := next(((start, stop) for start, stop in ranges if not 0 <= start < stop), None):
            raise ValueError(f"a range of units needs 0 <= start < stop, got {wrong}")
        starts: list[int] = []
        stops: list[int] = []
        for start, stop in sorted((*self.ranges(), *ranges)):
            if not stops or start > stops[-1]:
                starts.append(start)
                stops.append(stop)
            elif stop > stops[-1]:
                stops[-1] = stop
        self._hold(starts, stops)

    def discard_range(self, start: int, stop: int) -> None:
        """Remove the units `start <= u < stop`; those that are not in the set are ignored."""
        if start >= stop or not self._starts:
            return
        first = bisect_right(self._stops, start)
        starts: list[int] = []
        stops: list[int] = []
        index = first
        while index < len(self._starts) and self._starts[index] < stop:
            low, high = self._starts[index], self._stops[index]
            self._count -= min(high, stop) - max(low, start)
            if low < start:
                starts.append(low)
                stops.append(start)
            if high > stop:
                starts.append(stop)
                stops.append(high)
            index += 1
        self._starts[first:index] = starts
        self._stops[first:index] = stops

    def pop_lowest(self, num_units: int) -> tuple[Range, ...]:
        """Remove and return the lowest `num_units` units, or all when there are fewer."""
        taken: list[Range] = []
        while num_units > 0 and self._starts:
            start = self._starts[0]
            stop = min(self._stops[0], start + num_units)
            taken.append((start, stop))
            num_units -= stop - start
            self.discard_range(start, stop)
        return tuple(taken)

    def difference(self, other: UnitSet) -> UnitSet:
        """Return the units that are in this set and not in `other`."""
        starts: list[int] = []
        stops: list[int] = []
        lows, highs, index = other._starts, other._stops, 0
        for start, stop in zip(self._starts, self._stops, strict=True):
            index = bisect_right(highs, start, index)
            while index < len(lows) and lows[index] < stop:
                if start < lows[index]:
                    starts.append(start)
                    stops.append(lows[index])
                start = highs[index]
                if start >= stop:
                    break
                index += 1
            if start < stop:
                starts.append(start)
                stops.append(stop)
        result = UnitSet()
        result._hold(starts, stops)
        return result

    def intersection(self, other: UnitSet) -> UnitSet:
        """Return the units that are in both sets."""
        starts: list[int] = []
        stops: list[int] = []
        lows, highs, index = other._starts, other._stops, 0
        for start, stop in zip(self._starts, self._stops, strict=True):
            index = bisect_right(highs, start, index)
            while index < len(lows) and lows[index] < stop:
                starts.append(max(start, lows[index]))
                stops.append(min(stop, highs[index]))
                if highs[index] > stop:
                    break
                index += 1
        result = UnitSet()
        result._hold(starts, stops)
        return result

    def _hold(self, starts: list[int], stops: list[int]) -> None:
        """Hold these sorted, disjoint, non-adjacent ranges and nothing else."""
        self._starts, self._stops, self._count = starts, stops, sum(stops) - sum(starts)

    def copy(self) -> UnitSet:
        """Return an independent copy."""
        result = UnitSet()
        result._starts, result._stops, result._count = self._starts[:], self._stops[:], self._count
        return result

    def ranges(self) -> tuple[Range, ...]:
        """Return the sorted, disjoint (start, stop) ranges."""
        return tuple(zip(self._starts, self._stops, strict=True))

    def __contains__(self, unit: int) -> bool:
        index = bisect_right(self._starts, unit) - 1
        return index >= 0 and unit < self._stops[index]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for start, stop in self.ranges():
            yield from range(start, stop)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnitSet) and self.ranges() == other.ranges()

    def __repr__(self) -> str:
        return f"UnitSet({list(self.ranges())})"


class UnitMap:
    """Units and whom each belongs to: disjoint ranges with an owner, found by unit however many owners there are.

    >>> owners = UnitMap()
    >>> owners.assign(0, 10, "worker 0"); owners.assign(10, 12, "worker 1")
    >>> owners.discard_range(4, 11)
    >>> owners.counts(), len(owners)
    ({'worker 0': 4, 'worker 1': 1}, 5)
    >>> owners.release("worker 0"), len(owners)
    (((0, 4),), 1)
    """

    __slots__ = ("_count", "_owners", "_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._owners: list[str] = []
        self._count = 0

    def assign(self, start: int, stop: int, owner: str) -> None:
        """Give the units `start <= u < stop`, which belong to nobody, to `owner`.

        Raises:
          ValueError: the range is empty, or a unit of it belongs to an owner already.
        """
        index = bisect_right(self._stops, start)
        if not 0 <= start < stop or (index < len(self._starts) and self._starts[index] < stop):
            raise ValueError(f"units ({start}, {stop}) cannot be given to {owner}: they are none, or somebody has them")
        self._starts.insert(index, start)
        self._stops.insert(index, stop)
        self._owners.insert(index, owner)
        self._count += stop - start

    def assign_all(self, ranges: Sequence[Range], owner: str) -> None:
        """Give units that belong to nobody to `owner`, many ranges in one pass: each insertion moves all behind it.

        Args:
          ranges: ascending and disjoint.
          owner: name of the owner that gets the units.

        Raises:
          ValueError: a range is empty, two overlap, or a unit of one belongs to an owner already.
        """
        if len(ranges) <= MANY:
            for start, stop in ranges:
                self.assign(start, stop, owner)
            return
        pieces = sorted([*self._pieces(), *((start, stop, owner) for start, stop in ranges)], key=itemgetter(0))
        stop_before = 0
        for start, stop, _ in pieces:
            if not stop_before <= start < stop:
                raise ValueError(f"units ({start}, {stop}) cannot be given to {owner}: they are none, or have an owner")
            stop_before = stop
        self._keep(pieces)

    def _pieces(self) -> Iterator[tuple[int, int, str]]:
        return zip(self._starts, self._stops, self._owners, strict=True)

    def _keep(self, pieces: Sequence[tuple[int, int, str]]) -> None:
        """Hold these ranges and nothing else."""
        self._starts, self._stops = [piece[0] for piece in pieces], [piece[1] for piece in pieces]
        self._owners = [piece[2] for piece in pieces]
        self._count = sum(self._stops) - sum(self._starts)

    def discard_range(self, start: int, stop: int) -> None:
        """Take the units `start <= u < stop` from their owners."""
        self.discard(((start, stop),))

    def discard(self, ranges: Iterable[Range]) -> dict[str, int]:
        """Take units from their owners; returns how many each had of them."""
        had: dict[str, int] = {}
        starts, stops, owners = self._starts, self._stops, self._owners
        for start, stop in ranges:
            at = bisect_right(stops, start)
            if at < len(starts) and starts[at] == start < stop < stops[at]:
                starts[at] = stop  # the first ones of an owner: most work goes in order
                self._count -= stop - start
                had[owners[at]] = had.get(owners[at], 0) + stop - start
            elif start < stop:
                self._cut(at, start, stop, had)
        return had

    def _cut(self, index: int, start: int, stop: int, had: dict[str, int]) -> None:
        """Take a range, where `index` is that of the first one that ends behind its start, and count it in `had`."""
        while index < len(self._starts) and self._starts[index] < stop:
            low, high, owner = self._starts[index], self._stops[index], self._owners[index]
            num_taken = min(high, stop) - max(low, start)
            self._count -= num_taken
            had[owner] = had.get(owner, 0) + num_taken
            kept = [piece for piece in ((low, start), (stop, high)) if piece[0] < piece[1]]
            self._starts[index : index + 1] = [first for first, _ in kept]
            self._stops[index : index + 1] = [last for _, last in kept]
            self._owners[index : index + 1] = [owner] * len(kept)
            index += len(kept)

    def release(self, owner: str) -> tuple[Range, ...]:
        """Take everything from `owner`; returns what that was."""
        found = self.of(owner)
        if found:
            self._keep([piece for piece in self._pieces() if piece[2] != owner])
        return found

    def owners(self, start: int, stop: int) -> dict[str, int]:
        """Return who has how many of the units `start <= u < stop`."""
        found: dict[str, int] = {}
        index = bisect_right(self._stops, start)
        while index < len(self._starts) and self._starts[index] < stop:
            count = min(self._stops[index], stop) - max(self._starts[index], start)
            found[self._owners[index]] = found.get(self._owners[index], 0) + count
            index += 1
        return found

    def of(self, owner: str) -> tuple[Range, ...]:
        """Return what an owner has."""
        return tuple((start, stop) for start, stop, who in self._pieces() if who == owner)

    def counts(self) -> dict[str, int]:
        """Return how many units each owner has, of those who have any."""
        found: dict[str, int] = {}
        for start, stop, owner in self._pieces():
            found[owner] = found.get(owner, 0) + stop - start
        return found

    def __len__(self) -> int:
        return self._count


def ranges_of(units: Iterable[int]) -> list[Range]:
    """Return ascending units as ranges.

    >>> ranges_of([1, 2, 3, 7])
    [(1, 4), (7, 8)]
    """
    ranges: list[Range] = []
    start = stop = -1
    for unit in units:
        if unit == stop:
            stop += 1
            continue
        if stop >= 0:
            ranges.append((start, stop))
        start, stop = unit, unit + 1
    if stop >= 0:
        ranges.append((start, stop))
    return ranges


def num_units(ranges: Iterable[Range]) -> int:
    """Return how many units the disjoint `ranges` hold together."""
    return sum(stop - start for start, stop in ranges)


class UnitStream:
    """An ordered, growing sequence of units that a lock-step mesh consumes position by position.

    Every member of the mesh extends its own copy with the same ranges in the same order, so the units of a
    step are a pure function of the position.

        >>> stream = UnitStream([(7, 8), (20, 24)])
        >>> stream.slice(0, 3), len(stream)
        ((7, 20, 21), 5)
    """

    __slots__ = ("_ends", "_ranges")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._ranges: list[Range] = []
        self._ends: list[int] = []
        self.extend(ranges)

    def extend(self, ranges: Iterable[Range]) -> None:
        """Append `ranges`; a range that continues the last one is merged with it."""
        for start, stop in ranges:
            if self._ranges and self._ranges[-1][1] == start:
                self._ranges[-1] = (self._ranges[-1][0], stop)
                self._ends[-1] += stop - start
            else:
                self._ranges.append((start, stop))
                self._ends.append(len(self) + stop - start)

    def slice(self, position: int, count: int) -> tuple[int, ...]:
        """Return up to `count` units from `position` on."""
        units: list[int] = []
        index = bisect_right(self._ends, position)
        while len(units) < count and index < len(self._ends):
            stop = self._ranges[index][1]
            first = stop - (self._ends[index] - position)
            last = min(stop, first + count - len(units))
            units.extend(range(first, last))
            position += last - first
            index += 1
        return tuple(units)

    def ranges(self, position: int, end: int) -> tuple[Range, ...]:
        """Return the positions `position <= p < end` as unit ranges, in stream order."""
        found: list[Range] = []
        index = bisect_right(self._ends, position)
        while position < end and index < len(self._ends):
            stop = self._ranges[index][1]
            first = stop - (self._ends[index] - position)
            last = min(stop, first + end - position)
            found.append((first, last))
            position += last - first
            index += 1
        return tuple(found)

    def position(self, unit: int) -> int:
        """Return the position at which `unit` came last; -1 where it did not."""
        for (start, stop), end in zip(reversed(self._ranges), reversed(self._ends), strict=True):
            if start <= unit < stop:
                return end - (stop - unit)
        return -1

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0
