"""What a server counts."""

from __future__ import annotations

from hybridsync.core.units import UnitSet
from hybridsync.server.unit_counts import Count
from tests.roles import phase_of


def counted(end: int = 6) -> Count:
    count = Count()
    count.begin(phase_of(end=end))
    return count


def test_updates_of_one_unit_and_of_several_count_alike():
    one, several = counted(), counted()
    for unit in (2, 0, 3):
        one.count_one(unit, base=0)
        several.count((unit,), (0,))
    assert (one.sequence, one.applied, one.take_report()) == (several.sequence, several.applied, several.take_report())
    assert one.take_report() == ((), (), ()) and one.applied == UnitSet([(0, 1), (2, 4)])


def test_it_is_complete_with_the_last_unit_and_a_drop_is_none():
    count = counted(end=3)
    count.count((0, 1), (0, 0))
    count.count_drop((2,), "too stale")
    assert not count.complete and count.is_settled(2) and not count.is_settled(3)
    assert count.count_one(3, base=0) == 2
    assert count.complete
    assert count.take_report() == (((0, 2), (3, 4)), ((2, "too stale"),), (0, 0, 1))


def test_another_phase_begins_with_its_own_state():
    count = counted()
    count.count((0, 1), (0, 0))
    count.begin(phase_of(2))
    assert (count.sequence, len(count.applied), count.complete) == (0, 0, False) and count.take_report()[0] == ()


def test_a_place_is_a_multiple_of_applied_units_before_the_end():
    count = Count()
    count.begin(phase_of(end=8, evaluate_units=3))
    assert count.missing > count.place == 8 - 3
    count.count((0, 1, 2, 3), (0,))
    assert count.missing <= count.place
    count.find_place()
    assert count.missing > count.place == 8 - 6
    count.count((4, 5, 6), (0,))
    count.find_place()
    assert count.place == -1, "9 is beyond the end"
    count.begin(phase_of(2, end=6, evaluate_units=3))
    count.count((0, 1, 2), (0,))
    count.find_place()
    assert count.place == -1, "the end is captured in any case"
