"""UnitSet against Python's sets, UnitStream against lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hybridsync.core.units import MANY, UnitMap, UnitSet, UnitStream, num_units

LIMIT = 40
ranges = st.tuples(st.integers(0, LIMIT), st.integers(1, 12)).map(lambda pair: (pair[0], sum(pair)))
range_lists = st.lists(ranges, max_size=8)


def as_set(pairs) -> set[int]:
    return {unit for start, stop in pairs for unit in range(start, stop)}


class UnitSetMachine(RuleBasedStateMachine):
    """Any sequence of changes leaves the same units as in a set, in canonical ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.units, self.model = UnitSet(), set()

    @rule(pair=ranges)
    def add_range(self, pair):
        self.units.add_range(*pair)
        self.model |= set(range(*pair))

    @rule(unit=st.integers(0, LIMIT))
    def add(self, unit):
        self.units.add(unit)
        self.model.add(unit)

    @rule(start=st.integers(0, LIMIT), stop=st.integers(0, LIMIT))
    def discard_range(self, start, stop):
        self.units.discard_range(start, stop)
        self.model -= set(range(start, stop))

    @rule(count=st.integers(0, 15))
    def take(self, count):
        taken = self.units.pop_lowest(count)
        assert as_set(taken) == set(sorted(self.model)[:count])
        assert num_units(taken) == min(count, len(self.model))
        self.model -= as_set(taken)

    @rule(pairs=range_lists)
    def update(self, pairs):
        self.units.update(UnitSet(pairs))
        self.model |= as_set(pairs)

    @invariant()
    def holds_the_same_units(self):
        assert list(self.units) == sorted(self.model)
        assert len(self.units) == len(self.model)
        assert [unit for unit in range(LIMIT + 15) if unit in self.units] == sorted(self.model)

    @invariant()
    def ranges_are_sorted_disjoint_and_not_adjacent(self):
        flat = [bound for pair in self.units.ranges() for bound in pair]
        assert flat == sorted(set(flat))


TestUnitSetMachine = UnitSetMachine.TestCase


@given(range_lists, range_lists)
def test_set_operations_agree_with_sets_and_change_neither_side(left, right):
    a, b = UnitSet(left), UnitSet(right)
    assert set(a.difference(b)) == as_set(left) - as_set(right)
    assert set(a.intersection(b)) == as_set(left) & as_set(right)
    for units in (a.difference(b), a.intersection(b)):
        assert units == UnitSet(units.ranges()) and len(units) == len(list(units)), (
            "ranges as the set itself holds them"
        )
    assert (a == b) == (as_set(left) == as_set(right))
    copy = a.copy()
    copy.add(LIMIT + 50)
    assert set(a) == as_set(left)
    assert set(b) == as_set(right)


@pytest.mark.parametrize("pair", [(3, 3), (5, 2), (-1, 4)])
def test_an_impossible_range_is_refused_by_value(pair):
    with pytest.raises(ValueError, match=str(pair[0])):
        UnitSet([pair])


@given(range_lists, st.integers(0, 80), st.integers(0, 30))
def test_a_stream_slices_like_a_list(pairs, position, count):
    stream = UnitStream(pairs)
    flat = [unit for start, stop in pairs for unit in range(start, stop)]
    assert len(stream) == len(flat)
    assert list(stream.slice(position, count)) == flat[position : position + count]
    found = stream.ranges(position, position + count)
    assert [unit for start, stop in found for unit in range(start, stop)] == flat[position : position + count]


@given(range_lists, st.integers(0, 8))
def test_a_stream_extended_piece_by_piece_is_the_same_stream(pairs, cut):
    whole, pieces = UnitStream(pairs), UnitStream(pairs[:cut])
    pieces.extend(pairs[cut:])
    assert pieces.slice(0, 200) == whole.slice(0, 200)


def both(owners: UnitMap) -> list[tuple[tuple[int, int], ...]]:
    return [owners.of(owner) for owner in ("before", "at once")]


def test_many_ranges_are_given_at_once_as_one_by_one():
    ranges = [(10 * index, 10 * index + 4) for index in range(2 * MANY)]
    for count in (1, MANY, 2 * MANY):
        slow, fast = UnitMap(), UnitMap()
        for owners in (slow, fast):
            owners.assign(5, 7, "before")
            owners.assign(14, 16, "before")
        for start, stop in ranges[:count]:
            slow.assign(start, stop, "at once")
        fast.assign_all(ranges[:count], "at once")
        assert both(slow) == both(fast) and len(slow) == len(fast) == 4 * count + 4
        assert fast.release("before") == ((5, 7), (14, 16)) and len(fast) == 4 * count


@pytest.mark.parametrize("wrong", [(15, 18), (12, 20), (14, 16), (9, 9), (20, 19)])
def test_many_ranges_of_which_one_is_none_or_has_an_owner_are_given_to_nobody(wrong):
    owners = UnitMap()
    owners.assign(14, 16, "before")
    ranges = [(100 + 2 * index, 101 + 2 * index) for index in range(MANY)]
    with pytest.raises(ValueError, match="cannot be given to worker 1"):
        owners.assign_all([wrong, *ranges], "worker 1")
    assert owners.counts() == {"before": 2}
