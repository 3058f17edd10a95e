"""The figures of the detector's benchmark: what counts as found, as right, and where they come from."""

from __future__ import annotations

import pytest

from benchmarks.detector import RULES, Score, Stretch, drawn, in_a_run


def test_a_stretch_is_found_by_a_flag_within_it_and_a_flag_is_right_up_to_a_window_behind_it() -> None:
    score = Score()
    score.add([Stretch(1, 10.0, 20.0, 2.0), Stretch(2, 10.0, 20.0, 2.0)], [(1, 14.0), (2, 21.0), (3, 15.0)])
    found = score.to_json()
    assert (found["precision"], found["recall"], found["windows"]) == (pytest.approx(2 / 3), 0.5, 2.0)


def test_without_flags_nothing_is_precise_and_nothing_found() -> None:
    score = Score()
    score.add([Stretch(1, 10.0, 20.0, 2.0)], [])
    assert (score.to_json()["precision"], score.to_json()["recall"]) == (None, 0.0)


def test_a_drawn_trial_and_a_simulated_run_find_a_plain_straggler() -> None:
    for stretches, flags in (
        drawn(RULES["robust"], 1, 4.0, "transient", seed=1),
        in_a_run("bsp", "robust", 1, 4.0, "transient", seed=1),
    ):
        score = Score()
        score.add(stretches, flags)
        assert (score.to_json()["precision"], score.to_json()["recall"]) == (1.0, 1.0)
        assert score.windows[0] < 6
