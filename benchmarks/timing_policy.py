"""The timing policy on published runs: `python -m benchmarks.timing_policy --runs=FILE.csv --searches=1000`.

Searches again and again for the switch point of a job whose runs have been made: each run that a search asks for is
drawn, with replacement, from the published runs of its share. The target, known to the search, is the mean of the runs
of pure BSP. A share without runs pools those of its nearest lower and nearest higher share, one with fewer than three
its own and the nearest share's.

`benchmarks/published_runs.py` says what the file looks like.

The last line is JSON: what share of the searches gave each answer, and their mean cost in runs of pure BSP. Above it
stands the same for searches that make every run of a setting instead of ending it early.

Source: runs of Li et al., Sync-Switch, ICDCS 2021 (raw results in github.com/cake-lab/Sync-Switch).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from random import Random

from benchmarks.published_runs import LOCK_STEP, Made, Runs, read_runs, time_of
from hybridsync.core.errors import ConfigError, HybridSyncError
from hybridsync.lab.tuning.search_rules import Outcome, Rules, advance, percent

FEW = 3
"""A share with fewer runs than this borrows its neighbours'."""


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
        target = mean_accuracy(runs[LOCK_STEP])
        rules = Rules(target, options.tolerance, options.settings, options.repeats)
        every = dataclasses.replace(rules, doubt=0.0)
        known = sum(made.accuracy is not None for made in runs[LOCK_STEP])
        print(f"target {target:.4f}, the mean of {known} runs of pure BSP; {options.searches} searches")
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
        while first and all(made.accuracy is None for made in first):  # a target of runs that diverged is none
            first.append(runs[LOCK_STEP][random.randrange(len(runs[LOCK_STEP]))])
        if first:
            rules = dataclasses.replace(rules, target=mean_accuracy(first))
        while (missing := (search := advance(rules, outcomes)).missing) is not None:
            pool = pools.setdefault(missing.share, pooled(runs, missing.share))
            drawn = pool[random.randrange(len(pool))]
            outcomes.append(Outcome(missing.share, missing.repeat, drawn.accuracy, drawn.seconds))
        answers[search.share] += 1
        spent = math.fsum(made.seconds for made in (*first, *outcomes))
        seconds += spent
        saved = means[LOCK_STEP] - time_of(means, search.share)
        recurrences.append(spent / saved if saved > 0 else math.inf)
    bsp_secs = means[LOCK_STEP]
    shares = {share: count / searches for share, count in sorted(answers.items())}
    half = sorted(recurrences)[(len(recurrences) - 1) // 2]
    return Found(shares, seconds / searches / bsp_secs, math.ceil(half) if half < math.inf else None)


def mean_accuracy(some: Sequence[Made]) -> float:
    """Return the mean accuracy of the runs that did not diverge, at least one."""
    return statistics.fmean(made.accuracy for made in some if made.accuracy is not None)


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


def _show(name: str, found: Found) -> None:
    told = ", ".join(f"{percent(share)} in {part:.1%}" for share, part in found.answers.items())
    print(f"  {name:<24} {found.cost:5.2f} BSP runs a search; {told}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
