"""Who is flagged, who is not, and with which numbers: both rules, on draws and on values set by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridsync.config.policy_config import PolicyConfig
from hybridsync.core.errors import ConfigError
from hybridsync.policies.straggler_detector import (
    PATIENCE,
    WINDOW,
    Decision,
    Detector,
    NullDetector,
    PaperRule,
    RobustRule,
    Rule,
    detector_of,
)

SIGMA = math.sqrt(math.log(1.01))


def unit_secs(random: Random, factor: float = 1.0) -> float:
    """Return what a healthy unit takes, times `factor`: lognormal of sd 10 %, and one of a hundred three times that."""
    return factor * random.lognormvariate(-SIGMA * SIGMA / 2, SIGMA) * (3.0 if random.random() < 0.01 else 1.0)


def rounds(
    detector: Detector, num_rounds: int, num_workers: int, secs: Callable[[int], Sequence[float]]
) -> list[tuple[int, Decision]]:
    """Feed a window of each worker for each round; return (round, decision)."""
    return [
        (at, decision)
        for at in range(num_rounds)
        for worker in range(num_workers)
        for decision in detector.observe(worker, secs(worker))
    ]


def slow(*workers: int, factor: float = 1.25) -> Callable[[int], list[float]]:
    return lambda worker: [0.1 * (factor if worker in workers else 1.0)] * WINDOW


def cluster(rule: Rule | None = None, num_workers: int = 4, speeds: dict[int, float] | None = None) -> Detector:
    detector = Detector(rule, speeds)
    detector.begin(range(num_workers))
    return detector


def test_a_straggler_is_flagged_after_four_windows_in_a_row_with_the_numbers_it_rests_on() -> None:
    detector = cluster()
    ((at, decision),) = rounds(detector, 10, 4, slow(2))
    assert at == 3
    assert decision == Decision(2, True, decision.rate, decision.centre, decision.threshold, 4, 4)
    assert (decision.rate, decision.centre, decision.threshold) == pytest.approx((8.0, 10.0, 9.0))
    assert detector.flagged == (2,)


def test_one_window_within_the_threshold_begins_the_count_anew() -> None:
    detector = cluster()
    assert not rounds(detector, 3, 4, slow(2)) + rounds(detector, 1, 4, slow()) + rounds(detector, 3, 4, slow(2))
    ((_, decision),) = rounds(detector, 1, 4, slow(2))
    assert decision.flagged


def test_a_straggler_is_cleared_as_slowly_as_it_was_flagged() -> None:
    detector = cluster()
    rounds(detector, 4, 4, slow(2))
    assert not rounds(detector, 3, 4, slow()) + rounds(detector, 1, 4, slow(2))
    ((at, decision),) = rounds(detector, 4, 4, slow())
    assert (at, decision.worker, decision.flagged, decision.rounds) == (3, 2, False, 4)
    assert decision.rate == pytest.approx(10.0) and detector.flagged == ()


@pytest.mark.parametrize("num_workers", [2, 4, 8])
def test_half_of_the_cluster_may_be_slow(num_workers: int) -> None:
    stragglers = tuple(range(num_workers // 2))
    detector = cluster(num_workers=num_workers)
    rounds(detector, 4, num_workers, slow(*stragglers, factor=10.0))
    assert detector.flagged == stragglers


def test_the_papers_rule_never_flags_half_of_the_cluster_however_slow_and_the_robust_one_does() -> None:
    flagged = []
    for rule in (PaperRule(), RobustRule()):
        detector = cluster(rule, num_workers=8)
        rounds(detector, 50, 8, slow(0, 1, 2, 3, factor=100.0))
        flagged.append(detector.flagged)
    assert flagged == [(), (0, 1, 2, 3)]


def test_k_equal_stragglers_of_n_have_the_z_score_that_is_claimed() -> None:
    for k, n in ((1, 8), (3, 8), (1, 2)):
        rates = [0.5] * k + [1.0] * (n - k)
        centre, threshold = PaperRule(deviations=1.0).level(rates)
        assert (centre - 0.5) / (centre - threshold) == pytest.approx(math.sqrt((n - k) / k))


def test_without_windows_in_a_row_the_papers_rule_flags_a_sixth_of_healthy_workers_in_any_window() -> None:
    random, below = Random(3), 0
    for _ in range(500):
        rates = [PaperRule().units_per_sec([random.gauss(1.0, 0.01) for _ in range(WINDOW)]) for _ in range(64)]
        threshold = PaperRule().level(rates).threshold
        below += sum(rate < threshold for rate in rates)
    assert below / 500 / 64 == pytest.approx(0.16, abs=0.01)


def test_units_that_took_long_in_a_window_are_nothing_to_the_robust_rule_and_are_in_the_papers_mean() -> None:
    secs = [0.1] * 8 + [0.3, 3.0]
    assert RobustRule().units_per_sec(secs) == pytest.approx(10.0)
    assert PaperRule().units_per_sec(secs) == pytest.approx(10 / 4.1)


@pytest.mark.parametrize("num_workers", [2, 3, 8])
def test_two_thousand_windows_of_healthy_workers_flag_nobody(num_workers: int) -> None:
    random = Random(num_workers)
    detector = cluster(num_workers=num_workers)
    assert not rounds(detector, 2000, num_workers, lambda _: [unit_secs(random) for _ in range(WINDOW)])


@pytest.mark.parametrize("stragglers", [(5,), (1, 6), (0, 3, 7)])
def test_stragglers_of_half_the_speed_more_are_found_in_five_windows_among_noise(stragglers: tuple[int, ...]) -> None:
    for seed in range(10):
        random, detector = Random(seed), cluster(num_workers=8)

        def secs(worker: int, random: Random = random) -> list[float]:
            return [unit_secs(random, 1.5 if worker in stragglers else 1.0) for _ in range(WINDOW)]

        rounds(detector, 5, 8, secs)
        assert detector.flagged == stragglers


def test_what_slows_everybody_at_once_makes_nobody_a_straggler_in_whatever_order_it_is_reported() -> None:
    detector = cluster()
    rounds(detector, 2, 4, slow())
    halved = [0.1] * 50 + [0.2] * 50
    assert not [found for worker in range(4) for found in detector.observe(worker, halved)]
    assert not [found for worker in range(4) for found in detector.observe(worker, [0.2] * 100)]


def test_many_windows_in_one_report_are_compared_over_the_same_stretch_of_time() -> None:
    detector = cluster()
    quick = [found for worker in range(3) for found in detector.observe(worker, [0.1] * 160)]
    (decision,) = detector.observe(3, [0.2] * 40)
    assert not quick and (decision.worker, decision.flagged, decision.rounds) == (3, True, 3)


def test_a_worker_without_a_window_is_waited_for_and_then_compared_by_its_last() -> None:
    detector = cluster(num_workers=3)
    rounds(detector, 3, 3, slow(1))
    found = [detector.observe(worker, slow(1)(worker)) for _ in range(PATIENCE + 1) for worker in (0, 1)]
    assert [decision.worker for decisions in found for decision in decisions] == [1]
    assert not any(found[:-2])


def test_the_slower_the_sooner_a_worker_is_flagged() -> None:
    detector = cluster()
    ((at, decision),) = rounds(detector, 2, 4, slow(2, factor=2.5))
    assert (at, decision.worker, decision.flagged, decision.rounds) == (1, 2, True, 2)
    ((at, decision),) = rounds(cluster(), 3, 4, slow(2, factor=1.5))
    assert (at, decision.rounds) == (2, 3), "who is slower by a third after three"
    assert not rounds(cluster(), 3, 4, slow(2)), "who is slower by a fifth is not that slow"
    assert not rounds(cluster(PaperRule()), 3, 4, slow(2, factor=2.5)), "the paper knows no such thing"


def test_one_window_that_is_less_slow_begins_that_count_anew() -> None:
    detector = cluster()
    found = rounds(detector, 1, 4, slow(2, factor=3.0)) + rounds(detector, 1, 4, slow(2))
    assert not found + rounds(detector, 1, 4, slow(2, factor=3.0))
    ((_, decision),) = rounds(detector, 1, 4, slow(2, factor=3.0))
    assert decision.rounds == 4


def test_a_window_slowed_by_a_moments_hiccup_is_not_told_sooner() -> None:
    usual, hiccup = [0.001] * WINDOW, [0.01] * WINDOW
    assert not rounds(cluster(), 3, 4, lambda worker: hiccup if worker == 2 else usual)
    ((at, decision),) = rounds(cluster(), 1, 4, lambda worker: [0.02] * WINDOW if worker == 2 else usual)
    assert (at, decision.worker, decision.rounds) == (0, 2, 1)
    twice_as_fast = cluster(speeds={2: 2.0})
    assert not rounds(twice_as_fast, 3, 4, lambda worker: hiccup if worker == 2 else usual)


def test_rates_are_known_of_everybody_who_was_ever_measured_in_any_phase() -> None:
    detector = cluster(speeds={3: 0.5})
    assert detector.units_per_sec == {} and detector.threshold is None
    rounds(detector, 1, 4, slow(2))
    detector.begin(range(2))
    assert detector.units_per_sec == pytest.approx({0: 10.0, 1: 10.0, 2: 8.0, 3: 10.0})
    detector.forget(2)
    assert 2 not in detector.units_per_sec


def test_a_round_waits_for_nobody_who_is_not_expected_and_judges_whom_it_hears_of() -> None:
    detector = cluster()
    rounds(detector, 4, 4, slow(2))
    detector.begin((0, 1, 3))
    assert not rounds(detector, 3, 3, lambda worker: () if worker == 2 else slow()(worker))
    for _ in range(3):
        assert not detector.observe(2, [0.1] * WINDOW) + [d for w in (0, 1, 3) for d in detector.observe(w, [0.1] * 10)]
    found = [*detector.observe(2, [0.1] * WINDOW), *(d for w in (0, 1, 3) for d in detector.observe(w, [0.1] * 10))]
    assert [(decision.worker, decision.flagged) for decision in found] == [(2, False)]


def test_who_closes_fewer_windows_than_the_others_holds_none_of_their_rounds_up() -> None:
    detector = cluster()
    detector.begin((0, 1, 3))
    assert not detector.observe(2, [0.1] * WINDOW)
    found = [d for w in (0, 1, 3) for d in detector.observe(w, [0.2 if w == 3 else 0.1] * 4 * WINDOW)]
    assert [(decision.worker, decision.rounds) for decision in found] == [(3, 3)]


def test_reports_without_units_decide_nothing() -> None:
    detector = cluster()
    assert not rounds(detector, 20, 4, lambda _: ())


def test_what_is_no_time_is_passed_over() -> None:
    detector = cluster()
    rounds(detector, 4, 4, lambda worker: [math.nan, -1.0, 0.0, math.inf, *slow(2)(worker)])
    assert detector.flagged == (2,)


def test_one_worker_alone_is_compared_with_nobody() -> None:
    detector = cluster(num_workers=1)
    assert not rounds(detector, 20, 1, slow(0))


def test_whoever_takes_a_lost_workers_place_begins_anew() -> None:
    detector = cluster()
    rounds(detector, 4, 4, slow(2))
    detector.forget(2)
    assert detector.flagged == ()
    assert not rounds(detector, 3, 4, slow(2))
    rounds(detector, 1, 4, slow(2))
    assert detector.flagged == (2,)


def test_the_others_go_on_without_a_worker_that_left() -> None:
    detector = cluster()
    detector.forget(3)
    rounds(detector, 4, 3, slow(1))
    assert detector.flagged == (1,)


def test_who_joins_is_judged_once_it_has_reported() -> None:
    detector = cluster()
    rounds(detector, 4, 4, slow())
    rounds(detector, 5, 5, slow(4))
    assert detector.flagged == (4,)


def test_a_new_phase_measures_anew_and_keeps_who_is_held_to_be_slow() -> None:
    detector = cluster()
    rounds(detector, 4, 4, slow(2))
    rounds(detector, 3, 4, slow(1, 2))
    detector.begin(range(4))
    assert not detector.observe(0, [9.0] * WINDOW)
    assert detector.flagged == (2,)


def test_a_device_that_is_known_to_be_slow_is_compared_at_its_own_speed() -> None:
    detector = cluster(speeds={3: 0.5})
    rounds(detector, 8, 4, slow(3))
    assert detector.flagged == ()
    ((_, decision),) = rounds(detector, 4, 4, slow(3, factor=4.0))
    assert (decision.rate, decision.centre, decision.threshold) == pytest.approx((2.5, 5.0, 4.5))


def test_the_configuration_names_the_rule() -> None:
    assert detector_of(PolicyConfig()).rule == RobustRule()
    assert detector_of(PolicyConfig(detector="paper")).rule == PaperRule()
    off = detector_of(PolicyConfig(detector="off"))
    off.begin(range(4))
    assert isinstance(off, NullDetector) and not rounds(off, 20, 4, slow(2))


@settings(max_examples=60, deadline=None)
@given(
    reports=st.lists(
        st.tuples(st.integers(0, 4), st.lists(st.floats(0.01, 1.0), max_size=35), st.booleans()), max_size=60
    )
)
def test_decisions_alternate_for_each_worker_and_agree_with_who_is_flagged(
    reports: list[tuple[int, list[float], bool]],
) -> None:
    detector, held = cluster(num_workers=3), set()
    for worker, secs, leaves in reports:
        if leaves and not secs:
            detector.forget(worker)
            held.discard(worker)
        for decision in detector.observe(worker, secs):
            assert decision.flagged != (decision.worker in held)
            assert decision.flagged == (decision.rate < decision.threshold)
            held ^= {decision.worker}
        assert detector.flagged == tuple(sorted(held))


def flagged_after(step_secs: float = 0.125, **values: Any) -> int | None:
    """Return after how many units a worker that is a quarter slower than three others is a straggler."""
    detector = detector_of(PolicyConfig(**values))
    detector.begin(range(4))
    for units in range(1, 100):
        for worker in range(4):
            detector.observe(worker, [0.125 if worker == 2 else 0.1], at=units * step_secs)
        if detector.flagged:
            return units
    return None


def test_the_detectors_numbers_are_the_configurations() -> None:
    assert flagged_after() == 40
    assert flagged_after(detector_window=5) == 20
    assert flagged_after(detector_window=3, step_secs=2.0) == 12, "a smaller window is not made longer"
    assert flagged_after(detector_consecutive=2) == 20
    assert flagged_after(detector_floor=0.75) is None
    assert flagged_after(detector="paper", detector_consecutive=1) == 10
    assert flagged_after(detector="paper", detector_deviations=2.0) is None, (
        "one of four is at most 1.7 deviations away"
    )


@pytest.mark.parametrize(
    ("step_secs", "steps"), [(0.5, 40), (0.6, 10 + 10 + 2 * 9), (1.3, 10 + 3 * 5), (30.0, 10 + 3 * 5)]
)
def test_where_steps_take_long_a_window_is_as_many_as_come_in_five_seconds_but_at_least_five(
    step_secs: float, steps: int
) -> None:
    assert flagged_after(step_secs) == steps
    assert flagged_after(step_secs, detector_window_secs=0.0) == 40


@pytest.mark.parametrize(
    ("name", "value"),
    [("window", 0), ("window_secs", -1.0), ("consecutive", 0), ("floor", 0.0), ("floor", 1.5), ("deviations", -1.0)],
)
def test_numbers_with_which_nobody_could_be_judged_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"policy.detector_{name} must be"):
        PolicyConfig(**{f"detector_{name}": value})  # pyright: ignore[reportArgumentType]
