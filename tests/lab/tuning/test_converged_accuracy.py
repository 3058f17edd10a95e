"""Where a run's accuracy stands still."""

from __future__ import annotations

import math

import pytest

from hybridsync.lab.tuning.converged_accuracy import converged


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ((), None),
        ((0.9,) * 4, None),
        ((0.9,) * 5, 0.9),
        ((0.1, 0.9, 0.9, 0.9, 0.9, 0.9, 0.95), 0.9),
        ((0.9, 0.9, 0.9, 0.9011, 0.9011, 0.9011, 0.9011), None),
        ((0.9, 0.9009, 0.9018, 0.9027, 0.9036), 0.9018),
        ((0.9, 0.9, math.nan, 0.9, 0.9, 0.9, 0.9), None),
    ],
)
def test_the_first_five_evaluations_with_changes_below_a_tenth_of_a_percent_count(
    accuracies: tuple[float, ...], expected: float | None
) -> None:
    found = converged(accuracies)
    assert found == (None if expected is None else pytest.approx(expected))
