"""The binary search over the BSP share: what it finds, what it costs, and that a record of any length continues it."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridsync.core.errors import ConfigError, NoTarget
from hybridsync.core.plan import Plan
from hybridsync.lab.tuning.search_rules import LOCK_STEP, Outcome, Rules, Search, Wanted, advance, percent, plan_of

HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)
Run = Callable[[Wanted], float | None]


def seconds_of(share: Fraction) -> float:
    """Return the time of a run on workers of which lock-step takes ten times as long."""
    return 10.0 + 90.0 * float(share)


def searched(rules: Rules, run: Run, outcomes: list[Outcome] | None = None) -> tuple[Search, list[Outcome]]:
    """Search to the end; returns the search and the whole record."""
    outcomes = list(outcomes or [])
    while (missing := (search := advance(rules, outcomes)).missing) is not None:
        outcomes.append(Outcome(*missing, run(missing), seconds_of(missing.share)))
    return search, outcomes


def step(at: Fraction, good: float = 0.92, bad: float = 0.85) -> Run:
    """Return runs that are good from a share on."""
    return lambda wanted: good if wanted.share >= at else bad


def noisy(seed: int, spread: float, at: float) -> Run:
    """Return runs whose accuracy falls off below a share, with a normal spread."""

    def run(wanted: Wanted) -> float:
        draw = random.Random(f"{seed} {wanted}").gauss(0, spread)
        return min(1.0, max(0.0, 0.92 + min(0.0, float(wanted.share) - at) + draw))

    return run


# --- what it finds ---


@given(
    st.fractions(0, 1, max_denominator=1 << 12),
    st.integers(1, 12),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.01, 0.3]),
)
def test_monotone_outcomes_give_the_smallest_acceptable_share_of_the_grid(
    at: Fraction, settings: int, runs: int, doubt: float
) -> None:
    search, _ = searched(Rules(0.92, settings=settings, runs=runs, doubt=doubt), step(at))
    grid = [Fraction(part, 1 << settings) for part in range(1, (1 << settings) + 1)]
    assert search.share == min(share for share in grid if share >= at)
    assert search.below == max((share for share in (Fraction(0), *grid) if share < at), default=Fraction(0))
    assert len(search.settings) == settings


@given(st.fractions(0, 1, max_denominator=64), st.integers(1, 4))
def test_without_a_target_the_mean_of_pure_lock_step_is_it(at: Fraction, runs: int) -> None:
    search, outcomes = searched(Rules(runs=runs), step(at))
    assert [outcome.share for outcome in outcomes[:runs]] == [LOCK_STEP] * runs
    assert search.target == pytest.approx(0.92)
    assert search.settings[0].share == LOCK_STEP and search.settings[0].accepted is None
    assert search.share == searched(Rules(0.92, runs=runs), step(at))[0].share


def test_a_mean_at_the_bound_is_good_enough_and_one_below_is_not() -> None:
    rules = Rules(0.5, tolerance=0.25, settings=1, runs=1)
    assert searched(rules, lambda _: 0.25)[0].share == HALF
    assert searched(rules, lambda _: 0.2499)[0].share == LOCK_STEP


def test_a_diverged_run_rejects_its_setting_at_once() -> None:
    def run(wanted: Wanted) -> float | None:
        return None if wanted == Wanted(QUARTER, 1) else 0.95

    search, outcomes = searched(Rules(0.92, settings=2), run)
    assert (search.share, search.below) == (HALF, QUARTER)
    assert [outcome.repeat for outcome in outcomes if outcome.share == QUARTER] == [0, 1]
    rejected = search.setting(QUARTER)
    assert rejected is not None and rejected.diverged == 1 and rejected.accepted is False


def test_settings_finer_than_a_step_are_not_tried() -> None:
    search, _ = searched(Rules(0.92, settings=9, runs=1, finest=Fraction(1, 10)), step(Fraction(0)))
    assert search.share == Fraction(1, 8)


def test_pure_lock_step_that_diverges_gives_no_target() -> None:
    with pytest.raises(NoTarget, match="run 2 of pure BSP diverged"):
        searched(Rules(runs=3), lambda wanted: None if wanted.repeat == 1 else 0.9)


@given(st.integers(1, 15), st.fractions(0, 1, max_denominator=64), st.integers(1, 3))
def test_a_hint_is_confirmed_or_doubled_until_it_is_good_enough(part: int, at: Fraction, runs: int) -> None:
    hint = Fraction(part, 16)
    search, outcomes = searched(Rules(0.92, runs=runs, hint=hint, settings=5), step(at))
    doubled = [share for power in range(5) if (share := hint * 2**power) < 1]
    assert search.share == next((share for share in doubled if share >= at), LOCK_STEP)
    assert outcomes[0].share == hint
    if hint >= at:
        assert {outcome.share for outcome in outcomes} == {hint}


# --- it goes on from any record ---


@given(st.integers(0, 99), st.integers(1, 5), st.booleans(), st.data())
def test_any_prefix_of_the_record_continues_to_the_same_answer_and_repeats_nothing(
    seed: int, runs: int, knows: bool, data: st.DataObject
) -> None:
    rules = Rules(0.92 if knows else None, runs=runs)
    run = noisy(seed, 0.02, 0.2)
    whole, outcomes = searched(rules, run)
    kept = outcomes[: data.draw(st.integers(0, len(outcomes)))]
    again, record = searched(rules, run, kept)
    assert (again, record) == (whole, outcomes)
    assert len({(outcome.share, outcome.repeat) for outcome in record}) == len(record)


@given(st.integers(0, 99), st.randoms(use_true_random=False))
def test_the_order_of_the_record_and_runs_that_nobody_asked_for_change_nothing(seed: int, order: random.Random) -> None:
    rules = Rules(0.92)
    whole, outcomes = searched(rules, noisy(seed, 0.02, 0.2))
    more = [*outcomes, Outcome(Fraction(1, 3), 0, 0.1, 1.0), Outcome(HALF, 77, 0.1, 1.0)]
    order.shuffle(more)
    assert advance(rules, more) == whole


# --- when a setting ends early ---


def test_runs_that_agree_end_a_setting_early_and_a_borderline_takes_them_all() -> None:
    search, outcomes = searched(Rules(0.92, settings=1, runs=5), noisy(1, 0.001, 0.0))
    assert (search.share, len(outcomes)) == (HALF, 3)
    near, outcomes = searched(Rules(0.93, settings=1, runs=5), noisy(1, 0.001, 0.0))
    assert len(outcomes) == 5
    assert near.setting(HALF) is not None


def test_a_single_run_never_ends_a_setting_and_ties_of_two_are_not_believed() -> None:
    _, outcomes = searched(Rules(0.92, settings=1, runs=5), lambda _: 0.93)
    assert len(outcomes) > 2


@pytest.mark.parametrize("spread", [0.005, 0.02, 0.05])
def test_an_early_end_answers_as_all_runs_would_have(spread: float) -> None:
    """Rate of other answers, over searches of four settings: within what `doubt` allows for three looks at each."""
    early, every, saved = Rules(0.92), Rules(0.92, doubt=0.0), 0
    searches, different = 150, 0
    for seed in range(searches):
        run = noisy(seed, spread, 0.2)
        (one, made), (other, all_made) = searched(early, run), searched(every, run)
        different += one.share != other.share
        saved += len(all_made) - len(made)
    assert different / searches <= 3 * 4 * early.doubt / 2
    assert saved > 0


def test_without_doubt_every_run_is_made() -> None:
    _, outcomes = searched(Rules(0.5, settings=2, runs=5, doubt=0.0), step(Fraction(0)))
    assert len(outcomes) == 10


# --- what it costs, and how sure it is ---


def test_cost_and_break_even_are_counted_in_runs_of_pure_lock_step() -> None:
    search, outcomes = searched(Rules(runs=2, settings=2, doubt=0.0), step(HALF))
    assert search.share == HALF
    seconds = math.fsum(outcome.seconds for outcome in outcomes)
    assert seconds == 2 * (100 + 55 + 32.5)
    assert search.cost.bsp_runs == pytest.approx(3.75)
    assert search.cost.break_even == math.ceil(375 / 45)


def test_the_time_of_pure_lock_step_is_the_lines_where_it_was_not_run() -> None:
    search, _ = searched(Rules(0.92, runs=1), step(Fraction(0)))
    assert search.cost.bsp_secs == pytest.approx(100)
    lone, _ = searched(Rules(0.92, runs=1, settings=1), step(Fraction(0)))
    assert (lone.cost.bsp_secs, lone.cost.bsp_runs, lone.cost.break_even) == (None, None, None)


def test_an_answer_that_saves_nothing_never_breaks_even() -> None:
    search, _ = searched(Rules(runs=1, settings=1), step(LOCK_STEP))
    assert search.share == LOCK_STEP
    assert search.cost.break_even is None


def test_confidence_falls_with_the_spread_and_is_unknown_of_single_runs() -> None:
    sure, unsure = (searched(Rules(0.92), noisy(3, spread, 0.2))[0].confidence for spread in (0.001, 0.03))
    assert sure is not None and unsure is not None
    assert 0 <= unsure < sure <= 1
    assert searched(Rules(0.92, runs=1), noisy(3, 0.001, 0.2))[0].confidence is None


def test_confidence_is_kept_in_the_mean() -> None:
    """Of searches by two settings, at least as many find the right one as their confidence says, on average."""
    right, told = [], []
    for seed in range(300):
        search, _ = searched(Rules(0.92, tolerance=0.03, settings=2), noisy(seed, 0.02, 0.31))
        assert search.confidence is not None
        told.append(search.confidence)
        right.append(search.share == HALF)
    assert statistics.fmean(right) >= statistics.fmean(told) - 0.05


# --- plans and rules ---


@given(st.integers(1, 1 << 16))
def test_the_plan_of_any_share_of_a_search_says_it_exactly(part: int) -> None:
    share = Fraction(part, 1 << 16)
    plan = Plan.parse(plan_of(share))
    assert plan.ends(1 << 20)[0] == share * (1 << 20)
    assert percent(share).endswith("%")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"target": 91.9}, r"target must be in \(0, 1\], as a share, got 91.9"),
        ({"tolerance": 0.0}, r"tolerance must be in \(0, 1\)"),
        ({"tolerance": float("nan")}, "got nan"),
        ({"settings": 0}, "settings must be from 1 to 16, got 0"),
        ({"runs": 0}, "runs must be at least 1, got 0"),
        ({"doubt": 0.5}, r"doubt must be in \[0, 0.5\), got 0.5"),
        ({"hint": 0.5}, r"hint must be in \(0, 1\], with a target, got 0.5"),
    ],
)
def test_impossible_rules_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Rules(**values)
