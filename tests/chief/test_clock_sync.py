import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridsync.chief.clock_sync import WINDOW, ClockOffsets
from hybridsync.interfaces.reports import Exchange

SECS = st.floats(0.0, 2.0)


def _exchange(
    offset: float, there: float = 0.01, back: float = 0.01, chief: float = 0.001, at: float = 50.0
) -> Exchange:
    """Return the stamps of a heartbeat to a chief whose clock is `offset` ahead."""
    received = at + there + offset
    return Exchange(at, received, received + chief, at + there + chief + back)


@given(st.floats(-1e5, 1e5), st.lists(st.tuples(SECS, SECS, SECS), min_size=1, max_size=WINDOW))
def test_the_error_is_at_most_half_of_the_smallest_round_trip(offset: float, ways: list[tuple]) -> None:
    offsets = ClockOffsets()
    for there, back, chief in ways:
        offsets.add("worker", 1, _exchange(offset, there, back, chief))
    smallest = min(there + back for there, back, _ in ways)
    secs = offsets.secs("worker", 1)
    assert abs(secs - offset) <= (smallest / 2 if secs else smallest) + 1e-5


@given(st.lists(st.tuples(SECS, SECS, SECS), min_size=1, max_size=WINDOW))
def test_a_role_on_the_chiefs_host_is_not_moved_however_lopsided_its_heartbeats(ways: list[tuple]) -> None:
    offsets = ClockOffsets()
    for there, back, chief in ways:
        offsets.add("worker", 1, _exchange(0.0, there, back, chief))
    assert offsets.secs("worker", 1) == 0.0


def test_a_stamp_is_moved_and_the_stamp_of_nothing_is_not() -> None:
    offsets = ClockOffsets()
    offsets.add("worker", 1, _exchange(5.0))
    assert offsets.stamp("worker", 1, 50.0) == pytest.approx(55.0)
    assert offsets.stamp("worker", 1, 0.0) == 0.0


def test_the_fastest_exchange_counts_and_not_the_newest() -> None:
    offsets = ClockOffsets()
    for there in (0.4, 0.01, 0.9):
        offsets.add("worker", 1, _exchange(5.0, there))
    assert offsets.secs("worker", 1) == pytest.approx(5.0)
    best = offsets.best("worker", 1)
    assert best is not None and best.round_trip == pytest.approx(0.02)


def test_an_exchange_is_forgotten_after_a_window_so_that_drift_is_followed() -> None:
    offsets = ClockOffsets()
    offsets.add("worker", 1, _exchange(5.0, 0.001, 0.001))
    for _ in range(WINDOW):
        offsets.add("worker", 1, _exchange(5.5))
    assert offsets.secs("worker", 1) == pytest.approx(5.5)


def test_nothing_known_is_no_offset_and_each_role_has_its_own() -> None:
    offsets = ClockOffsets()
    offsets.add("worker", 1, _exchange(5.0))
    assert offsets.secs("worker", 0) == offsets.secs("server", 1) == 0.0
    offsets.forget("worker", 1)
    assert offsets.secs("worker", 1) == 0.0
    assert offsets.best("worker", 1) is None


def test_stamps_that_contradict_each_other_are_left_out() -> None:
    offsets = ClockOffsets()
    offsets.add("worker", 1, _exchange(5.0, there=-0.3))
    assert offsets.best("worker", 1) is None
