"""Student's t against its closed forms and a library."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hybridsync.lab.tuning.student_t import tail


@given(st.floats(-60, 60), st.integers(1, 60))
def test_the_tail_is_the_librarys(t: float, freedom: int) -> None:
    assert tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), abs=1e-12)


def test_nothing_lies_beyond_infinity() -> None:
    assert (tail(math.inf, 3), tail(-math.inf, 3)) == (0.0, 1.0)
