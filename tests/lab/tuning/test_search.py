"""A search carried out: every run once, whatever stops it, and an answer in the history."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path

import pytest

from hybridsync.config import PolicyConfig, RunConfig
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import ConfigError, NoTarget
from hybridsync.lab.tuning.job_history import History, RunRecord
from hybridsync.lab.tuning.recurring_job import of_config
from hybridsync.lab.tuning.search import carry_out
from hybridsync.lab.tuning.search_rules import Rules, Search
from hybridsync.lab.tuning.search_table import next_line, table, verdict_lines
from tests.lab.tuning.jobs import FakeRuns, Stopped

CONFIG = RunConfig(workload=4000, workers=4, seed=7)
JOB = of_config(CONFIG, "small")


def falling(share: Fraction, seed: int) -> float:
    """Return accuracies that fall off below a fifth, a little different from seed to seed."""
    return 0.92 + min(0.0, float(share) - 0.2) + (seed % 5 - 2) * 0.004


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def search(path: Path, runs: FakeRuns, rules: Rules | None = None, config: RunConfig = CONFIG) -> Search:
    with History(path, SYSTEM_CLOCK) as opened:
        return carry_out(JOB, config, rules or Rules(), runs, opened)


def test_a_search_stopped_after_every_run_makes_each_once_and_finds_what_an_undisturbed_one_finds(
    tmp_path: Path, history: Path
) -> None:
    whole = FakeRuns(falling)
    expected = search(tmp_path / "other.sqlite", whole)
    made: list[tuple[Fraction, int]] = []
    for _ in range(len(whole.made)):
        runs = FakeRuns(falling, stops=1)
        try:
            search(history, runs)
        except Stopped:
            made += runs.made
            continue
        made += runs.made
    assert search(history, again := FakeRuns(falling)) == expected
    assert again.made == []
    assert made == whole.made


def test_the_seeds_of_every_setting_are_the_same_ones(history: Path) -> None:
    runs = FakeRuns(falling)
    search(history, runs)
    seeds = {share: [seed for at, seed in runs.made if at == share] for share, _ in runs.made}
    assert all(some == list(range(7, 7 + len(some))) for some in seeds.values())


def test_a_wider_search_uses_the_runs_of_a_narrower_one(history: Path) -> None:
    search(history, narrow := FakeRuns(falling), Rules(runs=3, settings=2, doubt=0.0))
    search(history, wide := FakeRuns(falling), Rules(runs=4, settings=3, doubt=0.0))
    assert not set(narrow.made) & set(wide.made)
    assert len(narrow.made) == 9 and len(wide.made) == 16 - 9


def test_the_answer_is_written_down_with_what_it_rests_on(history: Path) -> None:
    found = search(history, runs := FakeRuns(falling))
    with History(history, SYSTEM_CLOCK) as opened:
        ((where, answer),) = opened.answers(JOB)
        assert where == runs.where
        assert answer.share == found.share == Fraction(1, 4)
        assert answer.runs == len(runs.made) == len(opened.runs(JOB, where))
        assert (answer.cost, answer.break_even) == (found.cost.bsp_runs, found.cost.break_even)
        assert answer.target == pytest.approx(0.92)
        assert opened.runs(JOB, where)[0] == RunRecord(Fraction(1), 7, falling(Fraction(1), 7), 100.0, "here")


def test_a_run_that_diverges_is_recorded_and_rejects_its_setting(history: Path) -> None:
    found = search(history, FakeRuns(lambda share, seed: None if share < Fraction(1, 2) else 0.9))
    assert (found.share, found.below) == (Fraction(1, 2), Fraction(7, 16))
    with pytest.raises(NoTarget):
        search(history.with_name("other.sqlite"), FakeRuns(lambda share, seed: None))


def test_what_a_search_shows_names_the_answer_cost_break_even_and_confidence(history: Path) -> None:
    seen: list[str] = []
    runs = FakeRuns(falling)
    with History(history, SYSTEM_CLOCK) as opened:
        found = carry_out(
            JOB, CONFIG, Rules(), runs, opened, lambda now: seen.append(next_line(now) if now.missing else "end")
        )
    assert seen[0] == "bsp: run 1 of 5"
    assert seen[5] == "bsp:50%,asp: run 1 of 5; 100% is good enough"
    assert seen[-1] == "end" and len(seen) == len(runs.made) + 1
    answer, cost, even, confidence = verdict_lines(found)
    assert answer.startswith("answer: bsp:25%,asp (accuracy at least 0.9100: target 0.9200")
    assert f"{len(runs.made)} runs" in cost and "BSP runs" in cost
    assert even.startswith("break-even: after ") and "times as fast as pure BSP" in even
    assert confidence.startswith("confidence: ")
    assert table(found).row_count == len(found.settings)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (RunConfig(workload=100, workers=4, seed=2**32 - 2), "5 seeds from 4294967294 on end above"),
        (RunConfig(workload=7, workers=4, plan="bsp"), "a lock-step step of 4 workers is more than half"),
    ],
)
def test_a_job_that_cannot_be_searched_is_refused(history: Path, config: RunConfig, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        search(history, FakeRuns(falling), config=config)


def test_runs_that_would_not_keep_to_a_share_are_not_searched_with(history: Path) -> None:
    config = dataclasses.replace(CONFIG, policy=PolicyConfig(trigger="knee"))
    with pytest.raises(ConfigError, match=r"policy\.trigger is 'knee', which ends lock-step before the share"):
        search(history, FakeRuns(falling), config=config)


def test_a_search_by_where_runs_converged_goes_by_that_and_shows_both(history: Path) -> None:
    runs = FakeRuns(lambda share, seed: 0.5, converged=falling)
    found = search(history, runs, Rules(accuracy="converged"))
    assert found.share == Fraction(1, 4)
    setting = found.setting(found.share)
    assert setting is not None and setting.mean == setting.converged
    by_end = search(history, runs, Rules())
    assert (by_end.share, by_end.target) == (Fraction(1, 16), 0.5), "all shares end alike"


def test_a_run_that_does_not_tell_where_it_converged_is_refused_and_not_made_again(history: Path) -> None:
    runs = FakeRuns(falling, converged=lambda share, seed: None if share == Fraction(1, 4) else falling(share, seed))
    with pytest.raises(ConfigError, match=r"the run of bsp:25%,asp with seed 7 has no 5 evaluations in a row"):
        search(history, runs, Rules(accuracy="converged"))
    assert runs.made.count((Fraction(1, 4), 7)) == 1
