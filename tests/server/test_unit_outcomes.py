"""The ends of units, beside plain sets of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridsync.core.units import ranges_of
from hybridsync.server.unit_outcomes import Ends

UNITS = st.integers(0, 11)


@given(st.sets(UNITS), st.sets(UNITS), st.integers(0, 14), st.lists(st.tuples(st.booleans(), UNITS)))
def test_a_unit_is_open_applied_or_dropped(
    applied: set[int], dropped: set[int], limit: int, steps: list[tuple[bool, int]]
) -> None:
    dropped -= applied
    ends = Ends(limit, ranges_of(sorted(applied)), ranges_of(sorted(dropped)))
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
