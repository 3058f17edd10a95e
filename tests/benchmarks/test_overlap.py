"""PS+ and its blocking twin take a worker what arithmetic says."""

from __future__ import annotations

import pytest

from benchmarks.overlap import BLOCKING, RATIOS, expected, unit_secs


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("spec", [BLOCKING, "psplus"])
def test_a_unit_takes_what_arithmetic_says(spec: str, ratio: float) -> None:
    assert unit_secs(spec, ratio) == pytest.approx(expected(spec, ratio), rel=0.01)
