import pytest

from hybridsync.lab.report.averages import NUM_PLACES, mean_line, spread_of


def test_lines_are_averaged_at_the_places_that_all_share() -> None:
    mean = mean_line([[(10, 1.0), (20, 2.0), (30, 5.0)], [(10, 3.0), (20, 2.0), (25, 9.0), (30, 7.0)]])
    assert mean.points == ((10, 2.0), (20, 2.0), (30, 6.0))
    assert mean.edges[1] == (20, 2.0, 2.0) and mean.n == 2
    low, high = mean.edges[0][1:]
    assert (low, high) == pytest.approx((2 - 2**0.5, 2 + 2**0.5))


def test_lines_that_share_no_places_are_interpolated_where_all_have_begun_and_none_has_ended() -> None:
    mean = mean_line([[(0.0, 0.0), (10.0, 10.0)], [(2.0, 4.0), (6.0, 8.0), (12.0, 14.0)], []])
    assert (mean.points[0], mean.points[-1], len(mean.points), mean.n) == ((2.0, 3.0), (10.0, 11.0), NUM_PLACES, 2)
    assert all(value == pytest.approx(at + 1.0) for at, value in mean.points)


def test_of_two_values_at_one_place_the_later_counts() -> None:
    again = [(10.0, 1.0), (20.0, 2.0), (10.0, 3.0)]  # as after a rollback
    assert mean_line([again]).points == ((10.0, 3.0), (20.0, 2.0))
    assert mean_line([again, [(10.0, 1.0), (20.0, 4.0)]]).points == ((10.0, 2.0), (20.0, 3.0))


def test_one_line_has_no_band() -> None:
    assert mean_line([[(1.0, 2.0)]]).edges == () == mean_line([]).points


def test_of_lines_that_share_no_stretch_the_ended_one_keeps_its_last_value() -> None:
    apart = mean_line([[(0.0, 2.0), (1.0, 4.0)], [(2.0, 6.0), (3.0, 8.0)]])
    assert (apart.points[0], apart.points[-1], apart.n) == ((2.0, 5.0), (3.0, 6.0), 2)
    means = [value for _, value in apart.points]
    assert means == sorted(means), "nothing jumps where a run begins or ends"


def test_a_deviation_takes_two_values() -> None:
    assert (spread_of([None, 1.0]).sd, spread_of([None]).mean, spread_of([]).n) == (None, None, 0)
