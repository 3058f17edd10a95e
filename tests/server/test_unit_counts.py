"""What a server counts, and the ends of units beside plain sets of them."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hybridsync.core.units import MOST_UNITS, UnitSet, ranges_of
from hybridsync.interfaces.messages import Push
from hybridsync.server.held_pushes import Decided
from hybridsync.server.sequencer import Sequencer
from hybridsync.server.unit_counts import Count, UnitOutcomes
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


UNITS = st.integers(0, 11)


@given(st.sets(UNITS), st.sets(UNITS), st.integers(0, 14), st.lists(st.tuples(st.booleans(), UNITS)))
def test_a_unit_is_open_applied_or_dropped(
    applied: set[int], dropped: set[int], limit: int, steps: list[tuple[bool, int]]
) -> None:
    dropped -= applied
    ends = UnitOutcomes(limit, ranges_of(sorted(applied)), ranges_of(sorted(dropped)))
    for is_applied, unit in steps:
        if not ends.is_open(unit):
            continue
        if is_applied:
            ends.apply((unit,))
            applied.add(unit)
        else:
            ends.drop(unit)
            dropped.add(unit)
            limit += 1
    assert [*ends.applied()] == sorted(applied)
    for unit in range(-2, 40):
        settled = unit in applied or unit in dropped
        assert ends.is_settled(unit) == settled
        assert ends.is_open(unit) == (0 <= unit < limit and not settled)


SPREAD = st.sets(st.integers(0, 9).map(lambda step: step * 2047))


@given(SPREAD, SPREAD, SPREAD)
def test_units_far_apart_keep_what_became_of_them_before(before: set[int], dropped: set[int], now: set[int]) -> None:
    dropped -= before
    ends = UnitOutcomes(20_000, ranges_of(sorted(before)), ranges_of(sorted(dropped)))
    ends.apply(sorted(now - dropped))
    assert [*ends.applied()] == sorted(before | (now - dropped))
    for unit in (near for step in range(10) for near in range(step * 2047 - 2, step * 2047 + 3)):
        assert ends.is_settled(unit) == (unit in before | dropped | now)


def test_the_largest_run_is_entered_at_once_and_in_little_memory() -> None:
    workload = MOST_UNITS - 1
    phase = replace(phase_of(end=workload), applied=((0, workload - 1),), sequence=workload - 1)
    sequencer = Sequencer(workload)
    tracemalloc.start()
    begun = time.process_time()
    sequencer.enter(phase)
    secs, (_, peak) = time.process_time() - begun, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert secs < 0.5 and peak < 1_000_000, "the primary's lock is held meanwhile, and its lease runs"
    ended, last = (Push(phase.id, 0, 1, (unit,), workload - 1) for unit in (workload - 2, workload - 1))
    assert sequencer.is_known(ended) and not sequencer.is_known(last)
    _, decisions = sequencer.submit(last, "gradient", "")
    assert [decision.units for decision in decisions if isinstance(decision, Decided)] == [
        (workload - 1,)
    ] and sequencer.count.complete
    assert sequencer.count.applied.ranges() == ((0, workload),)
