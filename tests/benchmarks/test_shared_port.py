"""Lock-step through a port that is shared fairly takes as long as arithmetic says, and turns save as much."""

from __future__ import annotations

import pytest

from benchmarks.shared_port import RATIOS, expected, round_secs


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("spec", ["bsp_server", "hsp"])
def test_a_round_takes_what_arithmetic_says(spec: str, ratio: float) -> None:
    assert round_secs(spec, ratio) == pytest.approx(expected(spec, ratio), rel=0.01)


@pytest.mark.parametrize(("ratio", "times"), [(0.25, 1.17), (1.0, 1.41), (4.0, 1.64)])
def test_turns_alone_save_what_is_expected_of_eight_workers(ratio: float, times: float) -> None:
    assert expected("bsp_server", ratio) / expected("hsp", ratio) == pytest.approx(times, abs=0.005)


@pytest.mark.parametrize(("ratio", "at_least"), [(0.25, 1.16), (1.0, 1.7), (4.0, 1.8)])
def test_stale_units_save_waits_besides(ratio: float, at_least: float) -> None:
    assert round_secs("bsp_server", ratio) / round_secs("hsp(stale=1)", ratio) >= at_least
