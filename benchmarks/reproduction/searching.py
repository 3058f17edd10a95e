"""A cell that searches for the switch point again and again, with outcomes drawn from runs that were made before."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from benchmarks.published_runs import LOCK_STEP, Made, Runs, read_runs
from benchmarks.reproduction.definition import Experiment, Given, Row
from benchmarks.reproduction.record import complete
from benchmarks.timing_policy import mean_accuracy, pooled, search_often
from hybridsync.core.errors import ConfigError
from hybridsync.lab.tuning.search_rules import Outcome, Rules, advance

PUBLISHED = "published"
"""The runs that Sync-Switch's authors published."""


@dataclass(frozen=True)
class Searches:
    """Searches with drawn outcomes.

    Args:
      runs: PUBLISHED, or the name of one of our experiments, from whose rows outcomes are drawn.
      source: what the rows are from, for the definition.
      target_known: whether the accuracy of lock-step is known, or `of_target` runs of it come first.
      repeats: runs of each setting, R.
      of_target: runs of lock-step where the target is not known.
      searches: how many.
      seed: of the draws.
    """

    runs: str
    source: str
    target_known: bool
    repeats: int
    of_target: int = 5
    searches: int = 1000
    seed: int = 0

    def definition(self) -> Any:
        return [self] if self.runs == PUBLISHED else [self, [cell.digest for cell in _experiment(self.runs).cells]]

    def needs(self, given: Given) -> str:
        return "--published" if self.runs == PUBLISHED and given.published is None else ""

    def measure(self, given: Given) -> Row:
        runs = read_runs(given.published) if self.runs == PUBLISHED and given.published else ours(self.runs, given)
        known = mean_accuracy(runs[LOCK_STEP])
        rules = Rules(known, settings=5, runs=self.repeats, doubt=0.0)
        right = expected(runs, rules)
        found = search_often(runs, rules, self.searches, self.seed, 0 if self.target_known else self.of_target)
        share_right = found.answers.get(right, 0.0)
        near = sum(part for share, part in found.answers.items() if right / 2 <= share <= 2 * right)
        return {
            "runs": sum(map(len, runs.values())),
            "right_answer": float(100 * right),
            "cost_bsp_runs": round(found.cost, 2),
            "break_even_runs": found.break_even,
            "chance_right": round(share_right, 3),
            "chance_within_twice": round(near, 3),
        }


def expected(runs: Runs, rules: Rules) -> Fraction:
    """Return what a search without noise answers: each share's runs all have their mean."""
    outcomes: list[Outcome] = []
    while (missing := (search := advance(rules, outcomes)).missing) is not None:
        outcomes.append(Outcome(missing.share, missing.repeat, _mean(pooled(runs, missing.share)), 1.0))
    return search.share


def ours(experiment: str, given: Given) -> Runs:
    """Return the runs of an experiment of plans `bsp:S%,asp` by their share of lock-step.

    A folder of its own for other published runs need not hold them: then they are those of the repository.

    Raises:
      ConfigError: a cell of it was not measured.
    """
    rows = complete(_experiment(experiment), given.folder) or complete(_experiment(experiment))
    if not rows:
        raise ConfigError(f"{given.folder} has no whole results of {experiment}; run --only={experiment} first")
    found: dict[Fraction, list[Made]] = {}
    for row in rows:
        share = Fraction(str(row["share"])) / 100
        accuracy = None if row["diverged"] else float(row["accuracy"] or 0.0)
        found.setdefault(share, []).append(Made(accuracy, float(row["seconds"] or 0.0)))
    return found


def _experiment(name: str) -> Experiment:
    from benchmarks.reproduction.experiments import EXPERIMENTS  # which name the cells of this module

    return EXPERIMENTS[name]


def _mean(made: Sequence[Made]) -> float:
    return statistics.fmean(one.accuracy or 0.0 for one in made)
