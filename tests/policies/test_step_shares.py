"""How many units each member takes: against every other choice, and as written down for known clusters."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridsync.policies.step_shares import AS_GOOD, of_members, shares, units_per_sec

seconds = st.lists(st.floats(0.001, 100.0), min_size=1, max_size=4)


def chosen(secs_per_unit: list[float], most: int, as_good: float = AS_GOOD) -> tuple[int, ...]:
    return shares(secs_per_unit, most, as_good=as_good) or (1,) * len(secs_per_unit)


@given(seconds, st.integers(1, 4))
def test_no_other_choice_does_more_units_a_second_or_is_smaller_and_as_good(secs_per_unit, most):
    best, fast = 0.0, chosen(secs_per_unit, most, as_good=0.0)
    found = chosen(secs_per_unit, most)
    for other in itertools.product(range(most + 1), repeat=len(secs_per_unit)):
        if any(other):
            best = max(best, units_per_sec(other, secs_per_unit))
    assert units_per_sec(fast, secs_per_unit) == pytest.approx(best)
    assert units_per_sec(found, secs_per_unit) >= (1 - AS_GOOD) * best * (1 - 1e-9)
    assert sum(found) <= sum(fast)
    assert all(0 <= units <= most for units in found)
    smaller = [
        other
        for other in itertools.product(range(most + 1), repeat=len(secs_per_unit))
        if 0 < sum(other) < sum(found) and units_per_sec(other, secs_per_unit) > (1 - AS_GOOD) * best * (1 + 1e-9)
    ]
    assert not smaller


@given(seconds, st.integers(1, 8))
def test_with_nothing_given_away_it_is_never_worse_than_lock_step_without_the_slow(secs_per_unit, most):
    fast = units_per_sec(chosen(secs_per_unit, most, as_good=0.0), secs_per_unit)
    for slowest in secs_per_unit:
        rest = [secs for secs in secs_per_unit if secs <= slowest]
        assert fast >= len(rest) / slowest * (1 - 1e-9)


@given(seconds, st.integers(1, 4), st.sampled_from([1e-3, 7.0, 1e4]))
def test_the_unit_of_time_changes_nothing(secs_per_unit, most, scale):
    whole = [round(secs, 2) or 0.01 for secs in secs_per_unit]
    before, after = (shares([secs * each for secs in whole], most, as_good=0.0) for each in (1.0, scale))
    ones = (1,) * len(whole)
    assert units_per_sec(before or ones, whole) == pytest.approx(units_per_sec(after or ones, whole))


@pytest.mark.parametrize(
    ("secs_per_unit", "most", "expected"),
    [
        ([1.0, 1.0, 4.0, 1.0], 4, (4, 4, 1, 4)),
        ([0.02] * 8, 4, ()),
        ([1.0, 1.04, 0.97, 1.02], 4, ()),
        ([1.0] * 7 + [1.5], 4, (2, 2, 2, 2, 2, 2, 2, 1)),
        ([1.0] * 7 + [2.0], 4, (2, 2, 2, 2, 2, 2, 2, 1)),
        ([1.0] * 7 + [5.0], 4, (1, 1, 1, 1, 1, 1, 1, 0)),
        ([1.0] * 7 + [5.0], 8, (1, 1, 1, 1, 1, 1, 1, 0)),
        ([1.0] * 2 + [4.0] * 2, 4, (4, 4, 1, 1)),
        ([1.0, 2.0, 3.0, 4.0], 4, (4, 2, 1, 1)),
        ([1.0, 10.0], 4, (1, 0)),
        ([1.0, math.inf, 2.0], 4, (2, 0, 1)),
        ([3.0], 4, ()),
        ([1.0, 3.0], 1, (1, 0)),
    ],
)
def test_known_clusters(secs_per_unit, most, expected):
    assert shares(secs_per_unit, most) == expected


@given(seconds, st.integers(1, 4))
def test_where_everybody_takes_part_it_is_never_worse_than_one_unit_each(secs_per_unit, most):
    found = shares(secs_per_unit, most, least=1, as_good=0.0) or (1,) * len(secs_per_unit)
    assert min(found) >= 1
    assert units_per_sec(found, secs_per_unit) >= len(secs_per_unit) / max(secs_per_unit) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("slow", "most", "expected"),
    [(1.05, 4, ()), (1.2, 4, 2), (1.5, 4, 2), (2.0, 4, 2), (5.0, 4, 4), (8.0, 4, 4), (8.0, 8, 8)],
)
def test_one_of_eight_that_is_slow_takes_one_unit_and_the_others_what_they_get_done_meanwhile(slow, most, expected):
    assert shares([1.0] * 7 + [slow], most, least=1) == (expected and (expected,) * 7 + (1,))


@pytest.mark.parametrize(("secs_per_unit", "most"), [([], 4), ([1.0, 0.0], 4), ([math.inf], 4), ([1.0], 0)])
def test_what_makes_no_step_is_refused(secs_per_unit, most):
    with pytest.raises(ValueError, match="shares need"):
        shares(secs_per_unit, most)


def test_shares_of_a_smaller_mesh_are_those_of_its_members():
    assert of_members((4, 4, 1, 4), (0, 2, 3)) == (4, 1, 4)
    assert of_members((), (0, 2)) == of_members((2, 0, 2), (1,)) == of_members((1, 4, 1), (0, 2)) == ()
