from hypothesis import given
from hypothesis import strategies as st

from hybridsync.core.counted import duration
from hybridsync.lab.report.scales import linear, logarithmic, millis, short, thin, time_axis

FIGURES = st.floats(-1e9, 1e9, allow_nan=False)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_stand_on_the_axis_and_are_few(low: float, length: float) -> None:
    axis = linear(low, low + length)
    assert 1 <= len(axis.ticks) <= 8
    assert all(0.0 <= axis.fraction(tick) <= 1.0 for tick in axis.ticks)


@given(st.floats(1e-6, 1e3), st.floats(20.0, 1e9))
def test_a_logarithmic_axis_has_two_to_six_ticks_in_order(low: float, ratio: float) -> None:
    axis = logarithmic(low, low * ratio)
    assert 2 <= len(axis.ticks) <= 6
    assert list(axis.ticks) == sorted(axis.ticks)


def test_a_flat_line_still_has_an_axis() -> None:
    assert linear(3.0, 3.0).fraction(3.0) == 0.0
    assert linear(0.0, 0.0).high == 1.0


def test_time_is_ticked_in_round_minutes_and_hours() -> None:
    assert time_axis(300.0).ticks == (0.0, 60.0, 120.0, 180.0, 240.0, 300.0)
    assert time_axis(36_000.0).ticks == (0.0, 7200.0, 14400.0, 21600.0, 28800.0, 36000.0)
    assert len(time_axis(40 * 86_400.0).ticks) <= 8


@given(st.lists(FIGURES, min_size=1, max_size=5_000))
def test_a_thinned_line_keeps_its_ends_and_its_extremes(values: list[float]) -> None:
    points = [(float(at), value) for at, value in enumerate(values)]
    kept = thin(points, 60)
    assert len(kept) <= 66
    assert [at for at, _ in kept] == sorted({at for at, _ in kept})
    assert kept[-1] == points[-1]
    assert {min(values), max(values)} <= {value for _, value in kept}


def test_lengths_of_time_and_figures_read_well() -> None:
    assert [duration(secs) for secs in (0.0, 0.046, 3.75, 59.99, 75.0, 7_325.0)] == [
        "0 s", "0.046 s", "3.75 s", "60 s", "1:15", "2:02:05"
    ]  # fmt: skip
    assert [millis(secs) for secs in (0.0, 0.00005, 0.0119, 1.5)] == ["0 ms", "0.05 ms", "12 ms", "1,500 ms"]
    assert [short(value) for value in (0, 0.05, 1_000, 20_500, 1.5e6)] == ["0", "0.05", "1k", "20.5k", "1.5M"]
