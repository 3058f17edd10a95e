"""The timing policy on published runs: `python -m benchmarks.timing_policy --runs=FILE.csv --searches=1000`.

Searches again and again for the switch point of a job whose runs have been made: each run that a search asks for is
drawn, with replacement, from the published runs of its share. The target, known to the search, is the mean of the runs
of pure BSP. A share without runs pools those of its nearest lower and nearest higher share, one with fewer than three
its own and the nearest share's.

The file has one run a row, with the columns `bsp_share`, `converged_accuracy`, `seconds_without_switch_gap` and
`excluded_by_authors`; rows with a 1 in the last one are left out. An accuracy of `nan`, or none, means that it
diverged.

The last line is JSON: what share of the searches gave each answer, and their mean cost in runs of pure BSP. Above it
stands the same for searches that make every run of a setting instead of ending it early.

Source: runs of Li et al., Sync-Switch, ICDCS 2021 (raw results in github.com/cake-lab/Sync-Switch).
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import NamedTuple

from hybridsync.core.errors import ConfigError, HybridSyncError
from hybridsync.policies.search_rules import LOCK_STEP, Outcome, Rules, advance, percent

COLUMNS = ("bsp_share", "converged_accuracy", "seconds_without_switch_gap", "excluded_by_authors")
FEW = 3
"""A share with fewer runs than this borrows its neighbours'."""


class Made(NamedTuple):
    """A published run: its accuracy, None where it diverged, and its seconds."""

    accuracy: float | None
    seconds: float


Runs = Mapping[Fraction, Sequence[Made]]


@dataclasses.dataclass(frozen=True)
class Found:
    """What many searches came to.

    Args:
      answers: how often each, in shares of the searches.
      cost: mean, in BSP runs.
      break_even: recurrences after which half of the searches have paid for themselves; None where they never do.
    """

    answers: dict[Fraction, float]
    cost: float
    break_even: int | None = None


def main(arguments: Sequence[str]) -> int:
    """Search, and print; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="table of published runs")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each setting")
    parser.add_argument("--searches", type=int, default=1000)
    parser.add_argument("--settings", type=int, default=5, help="tried at most in a search")
    parser.add_argument("--tolerance", type=float, default=0.01, help="below the target, absolute")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    options = parser.parse_args(arguments)
    try:
        if options.searches < 1:
            raise ConfigError(f"--searches must be at least 1, got {options.searches}; raise it")
        runs = read_runs(options.runs)
        target = statistics.fmean(made.accuracy for made in runs[LOCK_STEP] if made.accuracy is not None)
        rules = Rules(target, options.tolerance, options.settings, options.repeats)
        every = dataclasses.replace(rules, doubt=0.0)
        print(f"target {target:.4f}, the mean of {len(runs[LOCK_STEP])} runs of pure BSP; {options.searches} searches")
        _show("every run of a setting", search_often(runs, every, options.searches, options.seed))
        found = search_often(runs, rules, options.searches, options.seed)
        _show("settings ended early", found)
    except HybridSyncError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    answers = {str(float(share)): round(part, 6) for share, part in found.answers.items()}
    print(json.dumps({"answers": answers, "mean_cost_bsp_runs": round(found.cost, 4)}))
    return 0


def search_often(runs: Runs, rules: Rules, searches: int, seed: int, of_target: int = 0) -> Found:
    """Return what searches with drawn outcomes come to.

    Args:
      runs: of each share, pure BSP among them.
      rules: of every search, with a target.
      searches: how many.
      seed: of the draws.
      of_target: runs of pure BSP that are drawn first in each search, their mean its target; 0 takes that of `rules`.
    """
    random = Random(seed)
    pools: dict[Fraction, Sequence[Made]] = {}
    answers: Counter[Fraction] = Counter()
    seconds = 0.0
    means = {share: statistics.fmean(made.seconds for made in some) for share, some in runs.items()}
    recurrences: list[float] = []
    for _ in range(searches):
        outcomes: list[Outcome] = []
        first = [runs[LOCK_STEP][random.randrange(len(runs[LOCK_STEP]))] for _ in range(of_target)]
        if first:
            target = statistics.fmean(made.accuracy or 0.0 for made in first)
            rules = dataclasses.replace(rules, target=target)
        while (missing := (search := advance(rules, outcomes)).missing) is not None:
            pool = pools.setdefault(missing.share, pooled(runs, missing.share))
            drawn = pool[random.randrange(len(pool))]
            outcomes.append(Outcome(missing.share, missing.repeat, drawn.accuracy, drawn.seconds))
        answers[search.share] += 1
        spent = math.fsum(made.seconds for made in (*first, *outcomes))
        seconds += spent
        saved = means[LOCK_STEP] * (1 - _time_share(means, search.share))
        recurrences.append(spent / saved if saved > 0 else math.inf)
    bsp_secs = means[LOCK_STEP]
    shares = {share: count / searches for share, count in sorted(answers.items())}
    half = sorted(recurrences)[(len(recurrences) - 1) // 2]
    return Found(shares, seconds / searches / bsp_secs, math.ceil(half) if half < math.inf else None)


def _time_share(means: Mapping[Fraction, float], share: Fraction) -> float:
    """Return what a run of a share takes over one of pure BSP; between shares that were run, by the line."""
    below = max((each for each in means if each <= share), default=min(means))
    above = min(each for each in means if each >= share)
    part = float((share - below) / (above - below)) if above > below else 0.0
    return (means[below] + part * (means[above] - means[below])) / means[LOCK_STEP]


def pooled(runs: Runs, share: Fraction) -> Sequence[Made]:
    """Return the runs that stand for a share: its own, or with its neighbours' where it has few.

    >>> runs = {Fraction(at, 100): [Made(None, at)] * count for at, count in ((4, 3), (6, 1), (10, 4))}
    >>> [len(pooled(runs, Fraction(at, 100))) for at in (4, 5, 6, 8, 10, 50)]
    [3, 4, 4, 5, 4, 4]
    """
    own = list(runs.get(share, ()))
    if len(own) >= FEW:
        return own
    others = sorted(other for other in runs if other != share)
    if own:
        near = min(others, key=lambda other: (abs(other - share), other), default=None)
        return own if near is None else [*own, *runs[near]]
    beside = [max((other for other in others if other < share), default=None)]
    beside.append(min((other for other in others if other > share), default=None))
    return [made for other in beside if other is not None for made in runs[other]]


def read_runs(path: Path) -> Runs:
    """Return the runs of each share, without the rows that the authors left out.

    Raises:
      ConfigError: there is no such file, it is not such a table, or no run of pure BSP in it has an accuracy.
    """
    runs: dict[Fraction, list[Made]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                _take(row, f"line {number} of {path}", runs)
    except OSError as error:
        raise ConfigError(f"the table of runs {path} cannot be read: {error.strerror}; name it with --runs") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is no table of runs: {error}; name one with --runs") from error
    if not any(made.accuracy is not None for made in runs.get(LOCK_STEP, ())):
        raise ConfigError(
            f"{path} has the BSP shares {[float(share) for share in sorted(runs)]}; it needs runs of share 1, whose "
            "mean accuracy is the target"
        )
    return runs


def _take(row: Mapping[str, str], where: str, runs: dict[Fraction, list[Made]]) -> None:
    try:
        share_text, accuracy_text, seconds_text, excluded = (row[column] for column in COLUMNS)
        if int(excluded):
            return
        share, seconds = Fraction(share_text), float(seconds_text)
        accuracy = float(accuracy_text or "nan")
        if not 0 <= share <= 1:
            raise ValueError(f"the BSP share {share_text} is not in [0, 1]")
        if not math.isnan(accuracy) and not 0 <= accuracy <= 1:
            raise ValueError(f"the accuracy {accuracy_text} is not in [0, 1]")
        if not 0 < seconds < math.inf:
            raise ValueError(f"the time {seconds_text} is not above 0")
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"{where} does not give {', '.join(COLUMNS)}: {error!r}; correct it") from error
    runs.setdefault(share, []).append(Made(None if math.isnan(accuracy) else accuracy, seconds))


def _show(name: str, found: Found) -> None:
    told = ", ".join(f"{percent(share)} in {part:.1%}" for share, part in found.answers.items())
    print(f"  {name:<24} {found.cost:5.2f} BSP runs a search; {told}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
