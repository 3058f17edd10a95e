"""Where a loss stops falling steeply."""

from __future__ import annotations

import math
from random import Random

import pytest

from hybridsync.policies.knee import FIRST, SHARE, Knee


def passed_at(losses: list[float], window: int = 10, report: int = 10) -> int | None:
    """Return the units at which a run with these losses, one a unit, is told that the knee is passed."""
    knee, units = Knee(window), 0
    for start in range(0, len(losses), report):
        news = losses[start : start + report]
        units += len(news)
        if knee.observe(units, math.fsum(news), len(news)):
            return units
    return None


def falling(units: int, half: float = 40.0, noise: float = 0.0, scale: float = 1.0, floor: float = 0.2) -> list[float]:
    """Return losses that fall by half every `half` units."""
    random = Random(7)
    return [scale * (floor + 2 ** (-unit / half)) + random.gauss(0, noise) for unit in range(units)]


def test_an_exponential_fall_has_its_knee_where_a_twentieth_is_left() -> None:
    """Falls shrink as the loss does: by half in 40 units, so to a twentieth in log2(20) times that."""
    assert abs((passed_at(falling(1000)) or 0) - 40 * math.log2(1 / SHARE)) <= 30


@pytest.mark.parametrize(("scale", "floor"), [(100.0, 0.2), (0.01, 0.2), (1.0, 50.0), (1.0, 0.0)])
def test_neither_the_scale_nor_the_floor_of_the_loss_matters(scale: float, floor: float) -> None:
    assert passed_at(falling(1000, scale=scale, floor=floor)) == passed_at(falling(1000))


def test_a_slower_fall_has_a_later_knee() -> None:
    early, late = passed_at(falling(3000, half=40.0)), passed_at(falling(3000, half=160.0))
    assert early is not None and late is not None and early * 3 < late


def test_a_loss_that_never_falls_has_none() -> None:
    assert passed_at([1.0] * 500) is None
    assert passed_at([1.0 + unit / 100 for unit in range(500)]) is None
    assert passed_at([]) is None


def test_there_is_none_in_the_first_windows() -> None:
    """A start that is flat, before the loss begins to fall, is no knee by itself either."""
    flat = [1.2] * (10 * (FIRST - 1))
    found = passed_at(flat + falling(600))
    assert found is not None and found > len(flat) + 100


def test_reports_that_come_seldom_only_delay_it() -> None:
    often, seldom = passed_at(falling(1000)), passed_at(falling(1000), report=60)
    assert often is not None and seldom is not None and often <= seldom <= often + 120


def test_noise_within_the_windows_does_not_move_it_far() -> None:
    clean, noisy = passed_at(falling(2000, half=100.0), window=50), passed_at(falling(2000, half=100.0, noise=0.05), 50)
    assert clean is not None and noisy is not None and abs(noisy - clean) <= 150


def test_reports_without_a_loss_are_no_windows() -> None:
    knee = Knee(10)
    for units in range(0, 200, 10):
        assert not knee.observe(units, 0.0, 0)
    assert knee.windows == [] and knee.fall is None
