"""The offline timing policy: the smallest lock-step share that is as accurate as pure lock-step, by binary search.

A recurring job is worth a search: its share of BSP is halved while runs keep the accuracy, and raised again when they
do not. The search is a function of what was recorded: `advance` replays the recorded runs and returns the missing one,
so that it may stop anywhere, and continues from any record.

    >>> rules = Rules(target=0.92, settings=2, runs=1)
    >>> advance(rules, []).missing
    Wanted(share=Fraction(1, 2), repeat=0)
    >>> good = Outcome(Fraction(1, 2), 0, 0.921, seconds=60.0)
    >>> advance(rules, [good]).missing
    Wanted(share=Fraction(1, 4), repeat=0)
    >>> found = advance(rules, [good, Outcome(Fraction(1, 4), 0, 0.88, seconds=35.0)])
    >>> found.missing, found.share, plan_of(found.share)
    (None, Fraction(1, 2), 'bsp:50%,asp')

Source: Li, Mangoubi, Xu, Guo, Sync-Switch: Hybrid Parameter Synchronization for Distributed Deep Learning, ICDCS 2021
(arXiv 2104.08364), offline policy; a reconstruction that agrees with the authors' published runs. The early end of a
setting, the confidence and the break-even are added here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from hybridsync.core.errors import ConfigError, NoTarget
from hybridsync.lab.tuning.student_t import tail

LOCK_STEP = Fraction(1)
MAX_SETTINGS = 16
"""A share of 1/2^16 is written in a plan without rounding, and is less than a step of most runs."""
FLOOR = 0.25
"""Of the tolerance: a smaller spread is not believed of few runs, whose accuracies may tie on a small held-out set."""


class Wanted(NamedTuple):
    """A run to make: its share of BSP, and which of the setting's runs it is, from 0."""

    share: Fraction
    repeat: int


@dataclass(frozen=True)
class Outcome:
    """Holds the accuracy and the duration of one run of a search.

    Args:
      share: share of the workload under BSP, in (0, 1].
      repeat: number of the run within its setting, from 0; equal repeats have equal seeds.
      accuracy: accuracy on the held-out examples, in [0, 1]; None for a run that diverged.
      seconds: duration of the run, in seconds.
      converged: accuracy at which it converged; None where it did not, or was evaluated too seldom to know.
    """

    share: Fraction
    repeat: int
    accuracy: float | None
    seconds: float
    converged: float | None = None


@dataclass(frozen=True)
class Rules:
    """Sets what a search is to reach, and how many runs it may make for it.

    Args:
      target: accuracy to reach; None takes the mean of `runs` runs of pure BSP.
      tolerance: largest distance of a setting below the target, absolute.
      settings: maximum number of settings to try.
      runs: number of runs of each setting.
      doubt: a setting ends early when the mean of all its runs would lie on the other side of the bound with at most
        this probability; 0 makes every run.
      finest: smallest distance of two settings that are distinguished.
      hint: share to confirm instead of searching: it is tried first, and doubled as long as it is not good enough. It
        needs a target. Smaller shares are not tried, so the answer is only as small as the hint.
      accuracy: accuracy by which runs are judged: "end", the one at their end, or "converged", the one at which they
        converged.

    Raises:
      ConfigError: a value is out of range.
    """

    target: float | None = None
    tolerance: float = 0.01
    settings: int = 4
    runs: int = 5
    doubt: float = 0.01
    finest: Fraction = Fraction(0)
    hint: Fraction | None = None
    accuracy: Literal["end", "converged"] = "end"

    def __post_init__(self) -> None:
        for name, value, holds, rule in (
            ("target", self.target, self.target is None or 0 < self.target <= 1, "in (0, 1], as a share"),
            ("tolerance", self.tolerance, 0 < self.tolerance < 1, "in (0, 1), as a share: 0.01 is one point"),
            ("settings", self.settings, 1 <= self.settings <= MAX_SETTINGS, f"from 1 to {MAX_SETTINGS}"),
            ("runs", self.runs, self.runs >= 1, "at least 1"),
            ("doubt", self.doubt, 0 <= self.doubt < 0.5, "in [0, 0.5)"),
            ("hint", self.hint, self.hint is None or (0 < self.hint <= 1 and self.target), "in (0, 1], with a target"),
        ):
            if not holds:
                raise ConfigError(f"the search's {name} must be {rule}, got {value}; correct it")


@dataclass(frozen=True)
class Setting:
    """A share that was tried.

    Args:
      share: share of BSP.
      outcomes: the runs that decided about it, in the order of their repeats.
      accepted: whether it reaches the target within the tolerance; None while it is open, and for the target's runs.
      wrong: probability that this is wrong, given the spread of the runs; None where a single run has no spread.
    """

    share: Fraction
    outcomes: tuple[Outcome, ...]
    accepted: bool | None
    wrong: float | None = None

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Accuracies of the runs that did not diverge."""
        return tuple(outcome.accuracy for outcome in self.outcomes if outcome.accuracy is not None)

    @property
    def converged(self) -> float | None:
        """Mean accuracy at which the runs converged, of those of which it is known; None without one."""
        known = [outcome.converged for outcome in self.outcomes if outcome.converged is not None]
        return math.fsum(known) / len(known) if known else None

    @property
    def diverged(self) -> int:
        """Number of runs that diverged."""
        return len(self.outcomes) - len(self.accuracies)

    @property
    def mean(self) -> float | None:
        """Mean accuracy of the runs that did not diverge, None without one."""
        return math.fsum(self.accuracies) / len(self.accuracies) if self.accuracies else None

    @property
    def spread(self) -> float | None:
        """Sample standard deviation of the accuracies, None of fewer than two."""
        return _spread(self.accuracies)

    @property
    def seconds(self) -> float:
        """All its runs took together."""
        return math.fsum(outcome.seconds for outcome in self.outcomes)


@dataclass(frozen=True)
class Search:
    """Holds what a search has found so far, and which run it makes next.

    Args:
      rules: rules of the search.
      target: accuracy to reach; None while the runs of pure BSP are being made.
      settings: tried, in order; pure BSP first where it gave the target.
      missing: the run to make next; None at the end.
      share: the smallest share known to be good so far: the answer, at the end.
      below: the largest share known not to be good; 0 where none was found.
    """

    rules: Rules
    target: float | None
    settings: tuple[Setting, ...]
    missing: Wanted | None
    share: Fraction
    below: Fraction

    def setting(self, share: Fraction) -> Setting | None:
        """Return the setting of a share, None where it was not tried."""
        return next((setting for setting in self.settings if setting.share == share), None)

    @property
    def confidence(self) -> float | None:
        """Probability, at least, that the answer is good enough and the next smaller share tried is not.

        The two decisions that the answer rests on, where a larger share is never worse; None where the runs show no
        spread. It counts the spread of the target, too, where runs gave it.
        """
        doubts = 0.0
        for setting in map(self.setting, (self.share, self.below)):
            if setting is None or setting.accepted is None:  # pure BSP is good by definition
                continue
            if setting.wrong is None:
                return None
            doubts += setting.wrong
        return max(0.0, 1.0 - doubts)

    @property
    def cost(self) -> Cost:
        """Cost of the search so far."""
        return cost(self.settings, self.share)


@dataclass(frozen=True)
class Cost:
    """Compares what a search costs with what its answer saves.

    Args:
      seconds: duration of all its runs together, in seconds.
      bsp_secs: duration of a run of pure BSP: measured, or without such a run, by the line through the other settings'
        times; None if there is only one setting.
      answer_secs: duration of a run with the answer; None before there is one.
    """

    seconds: float
    bsp_secs: float | None
    answer_secs: float | None

    @property
    def bsp_runs(self) -> float | None:
        """The cost in runs of pure BSP."""
        return self.seconds / self.bsp_secs if self.bsp_secs else None

    @property
    def break_even(self) -> int | None:
        """After how many recurrences of the job the search has paid for itself; None where the answer saves nothing."""
        if self.bsp_secs is None or self.answer_secs is None or self.answer_secs >= self.bsp_secs:
            return None
        return math.ceil(self.seconds / (self.bsp_secs - self.answer_secs))


def plan_of(share: Fraction) -> str:
    """Return the plan with this share of BSP, then ASP.

    >>> plan_of(Fraction(1, 16)), plan_of(Fraction(1)), plan_of(Fraction(0))
    ('bsp:6.25%,asp', 'bsp', 'asp')
    """
    if share in (0, 1):
        return "bsp" if share else "asp"
    return f"bsp:{percent(share)},asp"


FEWEST_PASSES = 20
"""Passes over the data below which the share that is needed depends on the length of the job (measured)."""


def length_of(share: Fraction, workload: int, unit_size: int, num_examples: int) -> str:
    """Return how long the lock-step of an answer is, and whether it says anything of jobs of other lengths.

    >>> length_of(Fraction(1, 16), 16_000, 32, 16_000)
    'length: lock-step takes 1,000 of 16,000 units, 2 of 32 passes over the data'
    >>> length_of(Fraction(1, 4), 1_600, 10, 8_000).partition(". ")[2]
    'The job is shorter than 20 passes: a longer one may need a smaller share'
    """
    units, passes = round(share * workload), Fraction(unit_size, num_examples)
    line = (
        f"length: lock-step takes {units:,} of {workload:,} units, {float(units * passes):.3g} of "
        f"{float(workload * passes):.3g} passes over the data"
    )
    if workload * passes >= FEWEST_PASSES:
        return line
    return f"{line}. The job is shorter than {FEWEST_PASSES} passes: a longer one may need a smaller share"


def percent(share: Fraction) -> str:
    """Return a share as a plan writes it, exact for every share of a search.

    >>> percent(Fraction(1, 16)), percent(Fraction(3, 65536))
    ('6.25%', '0.00457763671875%')
    """
    text = f"{float(share * 100):.16f}"
    short = f"{float(share * 100):.12g}"
    return f"{short if Fraction(short) == share * 100 and 'e' not in short else text}%"


def advance(rules: Rules, outcomes: Iterable[Outcome]) -> Search:
    """Return where a search has come to, given what was recorded.

    Runs that it does not ask for are left alone; the order of the record does not matter.

    Args:
      rules: rules of the search.
      outcomes: outcomes of all runs so far, at most one for each share and repeat.

    Raises:
      NoTarget: a run of pure BSP diverged, and no target was given.
    """
    known = {Wanted(outcome.share, outcome.repeat): outcome for outcome in outcomes}
    tried: list[Setting] = []
    target, reference = rules.target, None
    if target is None:
        found = list(_recorded(known, LOCK_STEP, rules.runs))
        if any(outcome.accuracy is None for outcome in found):
            raise NoTarget(
                f"run {len(found)} of pure BSP diverged, which gives no accuracy to reach; lower the learning rate, or "
                "give the search a target"
            )
        reference = Setting(LOCK_STEP, tuple(found), None)
        tried.append(reference)
        if len(found) < rules.runs:
            return Search(
                rules, None, tuple(tried), missing=Wanted(LOCK_STEP, len(found)), share=LOCK_STEP, below=Fraction(0)
            )
        target = reference.mean
        assert target is not None
    low, high = Fraction(0), LOCK_STEP
    for number in range(rules.settings):
        share = (low + high) / 2 if rules.hint is None else rules.hint * 2**number
        if high - share < rules.finest or share >= LOCK_STEP:
            break
        setting = _judged(rules, target, reference, share, list(_recorded(known, share, rules.runs)))
        if setting.outcomes:
            tried.append(setting)
        if setting.accepted is None:
            return Search(
                rules, target, tuple(tried), missing=Wanted(share, len(setting.outcomes)), share=high, below=low
            )
        low, high = (low, share) if setting.accepted else (share, high)
        if setting.accepted and rules.hint is not None:
            break
    return Search(rules, target, tuple(tried), missing=None, share=high, below=low)


def cost(settings: Sequence[Setting], answer: Fraction) -> Cost:
    """Return what runs cost and what a run with the answer takes.

    Where the answer is pure BSP that was never run, or a run of BSP is missing for comparison, its time is the line's
    through the others: T(s) = s T(1) + (1 - s) T(0) holds within 2 % of the published runs.
    """
    seconds = math.fsum(setting.seconds for setting in settings)
    means = {setting.share: setting.seconds / len(setting.outcomes) for setting in settings if setting.outcomes}
    bsp_secs = means.get(LOCK_STEP)
    if bsp_secs is None and len(means) > 1:
        bsp_secs = _line_at(means, 1.0)
    return Cost(seconds, bsp_secs, bsp_secs if answer == LOCK_STEP else means.get(answer))


def _recorded(known: dict[Wanted, Outcome], share: Fraction, runs: int) -> Iterator[Outcome]:
    """Yield the setting's runs up to the first that is missing."""
    for repeat in range(runs):
        if (outcome := known.get(Wanted(share, repeat))) is None:
            return
        yield outcome


def _judged(
    rules: Rules, target: float, reference: Setting | None, share: Fraction, found: Sequence[Outcome]
) -> Setting:
    """Return the setting with what its runs decide: those up to the first after which the answer is clear."""
    bound = target - rules.tolerance
    accuracies: list[float] = []
    for number, outcome in enumerate(found, 1):
        if outcome.accuracy is None:
            return Setting(share, tuple(found[:number]), False, 0.0)
        accuracies.append(outcome.accuracy)
        if number == rules.runs or _is_clear(accuracies, bound, rules):
            accepted = math.fsum(accuracies) / number >= bound
            wrong = _wrong(accuracies, bound, reference, rules)
            return Setting(share, tuple(found[:number]), accepted, wrong)
    return Setting(share, tuple(found), None)


def _is_clear(accuracies: Sequence[float], bound: float, rules: Rules) -> bool:
    """Tell whether the runs that are left would hardly move the setting's mean across the bound.

    The mean of all R runs, foretold from the first k, is theirs with a variance of s^2 (R - k) / (R k), and Student's t
    with k - 1 degrees of freedom holds for it. The spread is the setting's own: that of asynchronous runs may be
    several times that of lock-step ones. So what all runs would have decided is decided here, except with
    probability `doubt`.
    """
    made, runs = len(accuracies), rules.runs
    spread = _spread(accuracies)
    if spread is None or not rules.doubt:
        return False
    error = max(spread, FLOOR * rules.tolerance) * math.sqrt((runs - made) / (runs * made))
    distance = abs(math.fsum(accuracies) / made - bound)
    return tail(distance / error, made - 1) <= rules.doubt


def _wrong(accuracies: Sequence[float], bound: float, reference: Setting | None, rules: Rules) -> float | None:
    """Return the probability that the setting's true mean lies on the other side of the bound.

    Welch's t, where the target is a mean of runs itself.
    """
    spread = _spread(accuracies)
    if spread is None:
        return None
    floor = FLOOR * rules.tolerance
    parts = [(max(spread, floor) ** 2 / len(accuracies), len(accuracies) - 1)]
    if reference is not None and reference.spread is not None:
        parts.append((max(reference.spread, floor) ** 2 / len(reference.outcomes), len(reference.outcomes) - 1))
    variance = math.fsum(part for part, _ in parts)
    freedom = variance**2 / math.fsum(part**2 / own for part, own in parts)
    distance = abs(math.fsum(accuracies) / len(accuracies) - bound)
    return tail(distance / math.sqrt(variance), max(1, math.floor(freedom)))


def _spread(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation, None of fewer than two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _line_at(points: dict[Fraction, float], at: float) -> float | None:
    """Return where the least-squares line through the points is at `at`; None where it is not above 0."""
    shares = [float(share) for share in points]
    middle, mean = math.fsum(shares) / len(shares), math.fsum(points.values()) / len(points)
    above = math.fsum((share - middle) * (secs - mean) for share, secs in zip(shares, points.values(), strict=True))
    value = mean + (at - middle) * above / math.fsum((share - middle) ** 2 for share in shares)
    return value if value > 0 else None
