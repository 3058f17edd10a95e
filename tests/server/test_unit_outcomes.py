"""The ends of units, beside plain sets of them."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hybridsync.core.units import MOST_UNITS, ranges_of
from hybridsync.interfaces.messages import Push
from hybridsync.server.held_pushes import Decided
from hybridsync.server.sequencer import Sequencer
from hybridsync.server.unit_counts import UnitOutcomes
from tests.roles import phase_of

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
