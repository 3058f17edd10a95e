"""Whose a unit of a lock-step step is: fair to the speeds, and a function of place and shares alone."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridsync.core.step_assignment import Outcome, StepAssignment, contribution_of, outcome_of

shares = st.lists(st.integers(0, 6), min_size=1, max_size=8).filter(any).map(tuple)


@given(shares, st.integers(0, 60))
def test_a_steps_units_are_divided_without_rest_and_a_whole_step_by_the_shares(given_shares, num_units):
    assignment, units = StepAssignment(given_shares), tuple(range(100, 100 + num_units))[: sum(given_shares)]
    own = [assignment.of(member, units) for member in range(len(given_shares))]
    assert sorted(unit for each in own for unit in each) == list(units)
    assert assignment.divide(enumerate(units)) == tuple(own)
    assert all(list(each) == sorted(each) for each in own), "in the order of the stream"
    assert all(len(each) <= share for each, share in zip(own, given_shares, strict=True))
    if len(units) == assignment.num_places:
        assert tuple(map(len, own)) == given_shares
    assert sorted(place for member in range(len(own)) for place in assignment.places(member)) == [
        *range(assignment.num_places)
    ]


@given(shares, st.integers(1, 48))
def test_a_short_step_is_over_as_soon_as_one_of_so_many_units_can_be(given_shares, num_units):
    """With a unit's time of 1 / c where the share is c; any other division leaves somebody with a later unit."""
    assignment = StepAssignment(given_shares)
    num_units = min(num_units, assignment.num_places)
    times = [Fraction(1, share) if share else None for share in given_shares]
    ends = sorted(time * (i + 1) for time, share in zip(times, given_shares, strict=True) if time for i in range(share))
    taken = [assignment.of(member, range(num_units)) for member in range(len(given_shares))]
    last = max(time * len(own) for time, own in zip(times, taken, strict=True) if time)
    assert last == ends[num_units - 1]


@given(st.integers(1, 12), st.integers(0, 12))
def test_with_one_unit_each_places_are_those_of_the_mesh(members, num_units):
    assignment = StepAssignment((1,) * members)
    units = tuple(range(min(num_units, members)))
    assert assignment.turns == tuple(range(members)) and assignment.num_rounds == 1
    assert [assignment.of(member, units) for member in range(members)] == [units[m : m + 1] for m in range(members)]


def test_what_members_tell_is_read_in_the_order_of_the_places():
    assignment = StepAssignment((3, 0, 1, 3))
    told = [("a", "b", "c"), ("", "", ""), ("d", "", ""), ("e", "f", "g")]
    assert assignment.turns == (0, 3, 0, 3, 0, 2, 3)
    assert assignment.by_place(told) == ("a", "e", "b", "f", "c", "d", "g")


def test_a_unit_that_is_missing_keeps_the_places_of_the_others():
    assignment = StepAssignment((2, 1))
    reasons = assignment.by_place([("", "a NaN"), ("", "")])
    assert outcome_of((5, 6, 9), reasons) == Outcome((5, 9), (0, 2), ((6, "a NaN"),))
    assert outcome_of((5, 6, 9), assignment.by_place([("a NaN", ""), ("", "")])) == Outcome(
        (6, 9), (1, 2), ((5, "a NaN"),)
    )
    assert outcome_of((5, 6), ("", "", "")) == Outcome((5, 6)), "a short step, of which everything is there"


@pytest.mark.parametrize("wrong", [(), (0, 0), (1, -1)])
def test_shares_of_nobody_are_refused(wrong):
    with pytest.raises(ValueError, match="not all of them 0"):
        StepAssignment(wrong)


def test_a_members_contribution_is_the_sum_of_its_units_in_order():
    class Texts:
        zero = ""

        def gradient(self, parameters: str, unit: int) -> str:
            return f"{parameters}{unit} "

        def sum(self, contributions) -> str:
            return "".join(contributions)

    assert contribution_of(Texts(), "w", (4, 2)) == "w4 w2 "
    assert (contribution_of(Texts(), "w", (4,)), contribution_of(Texts(), "w", ())) == ("w4 ", "")
