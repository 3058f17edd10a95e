"""Units by host: what was counted, brought up to the units applied."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridsync.telemetry.host_units import added, has_several, nested, shares_of, units_by_host

COUNTS = st.dictionaries(st.integers(0, 9), st.integers(0, 10**6), max_size=8)


@given(st.integers(0, 10**7), COUNTS)
def test_shares_sum_to_the_total_and_differ_from_their_proportion_by_less_than_a_unit(
    total: int, counted: dict
) -> None:
    found, whole = shares_of(total, counted), sum(counted.values())
    if not whole:
        assert found == {}
        return
    assert sum(found.values()) == total and found.keys() == counted.keys()
    assert all(abs(found[key] * whole - total * counted[key]) < whole for key in counted)


@given(COUNTS)
def test_counts_that_add_up_are_left_as_they_are(counted: dict) -> None:
    whole = sum(counted.values())
    assert shares_of(whole, counted) == (counted if whole else {})


def test_a_worker_that_moved_counts_on_each_of_its_hosts() -> None:
    before = added({}, {"a": {"0": 3, "1": 4}})
    after = added(before, {"a": {"0": 1}, "b": {"1": 5}})
    assert after == {("a", 0): 4, ("a", 1): 4, ("b", 1): 5}
    assert before == {("a", 0): 3, ("a", 1): 4}, "a value does not change"
    assert units_by_host(after) == {"a": 8, "b": 5}
    assert added({}, nested(after)) == after


def test_a_name_that_nobody_knows_is_no_host() -> None:
    assert not has_several(["a", "a", ""]) and has_several(["a", "b"]) and not has_several([])
