"""Carries a search out: asks the policy which run is missing, makes it, writes it down, and asks again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol

from hybridsync.config import RunConfig
from hybridsync.core.errors import ConfigError
from hybridsync.lab.tuning.converged_accuracy import CHANGE, IN_A_ROW
from hybridsync.lab.tuning.job_history import AnswerRecord, History, RunRecord, Where
from hybridsync.lab.tuning.recurring_job import Job
from hybridsync.lab.tuning.search_rules import Outcome, Rules, Search, Wanted, advance, plan_of

if TYPE_CHECKING:
    from hybridsync.training.run import Run

RunOf = Callable[[RunConfig], "Run"]
"""Makes the run of a configuration."""


@dataclass(frozen=True)
class Made:
    """Holds the result of a run.

    Args:
      accuracy: accuracy at the end of the run; None if it diverged.
      seconds: duration of the run, in seconds.
      converged: accuracy at which it converged; None where it did not, or its evaluations do not show it.
    """

    accuracy: float | None
    seconds: float
    converged: float | None = None


class Runner(Protocol):
    """Makes runs of one job, in one runtime. One of the same plan and seed that was begun before is gone on with."""

    @property
    def where(self) -> Where:
        """Runs of the history that are alike."""
        ...

    @property
    def place(self) -> str:
        """Place where the runs are made, for the record."""
        ...

    def carry_out(self, plan: str, seed: int) -> Made:
        """Make a run, to its end.

        Raises:
          Preempted: it was asked to stop and has saved its state.
          HybridSyncError: the run could not go on.
        """
        ...


def carry_out(
    job: Job,
    config: RunConfig,
    rules: Rules,
    runner: Runner,
    history: History,
    watch: Callable[[Search], None] = lambda search: None,
) -> Search:
    """Search for the job's switch point to the end, from whatever the history holds, and write the answer down.

    Args:
      job: job to search for.
      config: configuration of every run, except plan and seed; the seed is that of the first run of each setting.
      rules: rules of the search.
      runner: makes the runs.
      history: holds the runs there are, and takes the others.
      watch: called with the search before each run, and at the end.

    Raises:
      ConfigError: the seeds of the runs would pass 2**32, or a run does not show where it converged.
      NoTarget: a run of pure BSP diverged, and no target was given.
      HistoryError: the history cannot be read or written.
      Preempted, HybridSyncError: a run ended so; everything before it is recorded.
    """
    rules = searchable(rules, config)
    while True:
        outcomes = [run.outcome(config.seed) for run in history.runs(job, runner.where)]
        search = advance(rules, filter(None, (_judged(rules, outcome) for outcome in outcomes)))
        watch(search)
        if search.missing is None:
            break
        _check_known(search.missing, outcomes, config)
        made = runner.carry_out(plan_of(search.missing.share), config.seed + search.missing.repeat)
        history.record(job, runner.where, _record(search.missing, config.seed, made, runner.place))
    history.record_answer(job, runner.where, answer_of(search))
    return search


def _judged(rules: Rules, outcome: Outcome) -> Outcome | None:
    """Return a run with the accuracy that the search goes by; None where nothing is known of it."""
    if rules.accuracy == "end" or outcome.accuracy is None:
        return outcome
    return None if outcome.converged is None else dataclasses.replace(outcome, accuracy=outcome.converged)


def _check_known(missing: Wanted, outcomes: Sequence[Outcome], config: RunConfig) -> None:
    """Refuse to make a run again that did not tell where it converged.

    Raises:
      ConfigError: the run that is missing has been made.
    """
    if any(missing == (outcome.share, outcome.repeat) for outcome in outcomes):
        raise ConfigError(
            f"the run of {plan_of(missing.share)} with seed {config.seed + missing.repeat} has no {IN_A_ROW} "
            f"evaluations in a row that differ by less than {CHANGE:g}; search by --accuracy=end, or evaluate more "
            f"often (telemetry.evaluate_units is {config.telemetry.evaluate_units}) with another --history"
        )


def searchable(rules: Rules, config: RunConfig) -> Rules:
    """Return the rules for a job: settings that differ by less than a lock-step step are not told apart.

    Raises:
      ConfigError: a run would have a seed above 2**32 - 1, or one step of all workers is half the workload, or the runs
        would not keep to the share that is tried.
    """
    if config.policy.trigger != "off":
        raise ConfigError(
            f"policy.trigger is {config.policy.trigger!r}, which ends lock-step before the share that a search tries; "
            "search with policy.trigger=off, or train with the trigger and no search"
        )
    if config.seed + rules.runs > 2**32:
        raise ConfigError(f"{rules.runs} seeds from {config.seed} on end above 2**32 - 1; lower one of them")
    finest = Fraction(config.workers, config.workload)
    if finest > Fraction(1, 2):
        raise ConfigError(
            f"a lock-step step of {config.workers} workers is more than half of the workload, {config.workload}; there "
            "is nothing to search: raise the workload"
        )
    return dataclasses.replace(rules, finest=finest)


def answer_of(search: Search) -> AnswerRecord:
    """Return what a finished search puts into the history."""
    assert search.missing is None and search.target is not None, "the search has not ended"
    found, cost = search.setting(search.share), search.cost
    return AnswerRecord(
        share=search.share,
        target=search.target,
        accuracy=found.mean if found is not None else None,
        tolerance=search.rules.tolerance,
        settings=search.rules.settings,
        repeats=search.rules.runs,
        runs=sum(len(setting.outcomes) for setting in search.settings),
        cost=cost.bsp_runs,
        break_even=cost.break_even,
        confidence=search.confidence,
    )


def _record(wanted: Wanted, first_seed: int, made: Made, place: str) -> RunRecord:
    return RunRecord(
        wanted.share, first_seed + wanted.repeat, made.accuracy, made.seconds, place, converged=made.converged
    )
