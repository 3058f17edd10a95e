"""Finds stragglers: judged by what a unit takes a worker itself, never by the step, which takes everybody the same.

    >>> detector = Detector(RobustRule(consecutive=2))
    >>> detector.begin(range(4))
    >>> for _ in range(2):
    ...     for worker, secs in enumerate((0.02, 0.02, 0.02, 0.04)):
    ...         decisions = detector.observe(worker, [secs] * WINDOW)
    >>> [(decision.worker, decision.flagged, decision.rate) for decision in decisions]
    [(3, True, 25.0)]

A worker's units make up windows, and windows make up rounds: a round ends when every participating worker has closed
another window. A worker that closed several meanwhile is judged by all of them, so that the workers of a round are
compared over the same stretch of time. A slowdown that hits all of them at once makes no worker a straggler.

A window is ten units by default, and once a round has shown that they come slowly, as many as come in five seconds, at
least five: where a step takes a second, four windows of ten are longer than a published slowness lasts (23 steps).

Source: the detector of Sync-Switch (Li et al., ICDCS 2021), reconstructed as `PaperRule`, with its known weaknesses;
`RobustRule` mends them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from hybridsync.config.policy_config import PolicyConfig

WINDOW, WINDOW_SECS = 10, 5.0
"""Units of a worker that are judged together, and the seconds of them that are enough, unless a configuration says."""
LEAST = 5
"""Units of a window that is short for the time it takes: of five, a long one at either end is in no rate."""
PATIENCE = 3
"""A worker that has closed a window waits for the others' through so many of its own reports."""


class Level(NamedTuple):
    """Holds what a round's speeds, in units a second, are compared with: below `threshold` is slow."""

    centre: float
    threshold: float


Severe = tuple[tuple[float, int], ...]


class Rule(Protocol):
    """Says from which rate on a worker is slow.

    Attributes:
      consecutive: rounds in a row that make a straggler, and that clear it.
      severe: shares of the centre, and how many rounds in a row below one make a straggler sooner.
      hiccup: seconds that a window must have lost against the centre to count there.
    """

    @property
    def consecutive(self) -> int: ...

    @property
    def severe(self) -> Severe: ...

    @property
    def hiccup(self) -> float: ...

    def units_per_sec(self, secs: Sequence[float]) -> float:
        """Return the units a second of a worker whose last units took `secs`, at least one."""
        ...

    def level(self, rates: Sequence[float]) -> Level:
        """Return what the rates of a round, of at least two workers, are compared with."""
        ...


@dataclass(frozen=True)
class PaperRule:
    """Takes a worker below mean - k std of the cluster's throughput for slow: Sync-Switch, IV; reconstruction.

    k equal stragglers of n have a z-score of sqrt((n - k) / k), however slow they are: at half the cluster no worker is
    ever flagged. In any window 16 % of healthy workers are below mean - std, so that only `consecutive` keeps them from
    being flagged; one unit that took long is in the mean.

    Args:
      deviations: number of standard deviations, k.
      consecutive: windows in a row.
      severe, hiccup: see `Rule`; the paper has no such thing.
    """

    deviations: float = 1.0
    consecutive: int = 4
    severe: Severe = ()
    hiccup: float = 0.0

    def units_per_sec(self, secs: Sequence[float]) -> float:
        return len(secs) / math.fsum(secs)

    def level(self, rates: Sequence[float]) -> Level:
        mean = statistics.fmean(rates)
        return Level(mean, mean - self.deviations * statistics.pstdev(rates, mean))


@dataclass(frozen=True)
class RobustRule:
    """Takes a worker for slow if it is below the median by more than the cluster's scatter, and by a tenth at least.

        threshold = min(floor * median, median - k * 1.4826 * MAD)

    A window's rate is that of its middle units, without a fifth at either end, so that one unit that took long is
    nothing. Of an even number the higher median is taken, and the lower median of the deviations: with half the
    cluster slow both are the others'.

    Args:
      deviations: number of scaled median absolute deviations, k.
      floor: share of the median above which no worker is slow, however little the cluster scatters.
      consecutive: windows in a row.
      severe: shares of the median below which fewer windows in a row are enough: what costs most has to be found
        soonest. With one unit of a hundred three times as long, one window in 10^4 is below .75 of it by chance, and
        not one in 10^9 below .45; a single one below .3 takes most of its units so slow.
      hiccup: seconds that a window must have lost against the median to count there: a machine that is busy for a
        moment slows a whole window of units of a millisecond, and is not a straggler.
    """

    deviations: float = 2.0
    floor: float = 0.9
    consecutive: int = 4
    severe: Severe = ((0.75, 3), (0.45, 2), (0.3, 1))
    hiccup: float = 0.1

    def units_per_sec(self, secs: Sequence[float]) -> float:
        ends = len(secs) // 5
        middle = sorted(secs)[ends : len(secs) - ends]
        return len(middle) / math.fsum(middle)

    def level(self, rates: Sequence[float]) -> Level:
        median = statistics.median_high(rates)
        scatter = 1.4826 * statistics.median_low([abs(rate - median) for rate in rates])
        return Level(median, min(self.floor * median, median - self.deviations * scatter))


@dataclass(frozen=True)
class Decision:
    """A worker is a straggler from now on, or no longer, and the numbers that this rests on.

    Args:
      worker: id of the worker.
      flagged: whether it is one now.
      rate: rate of its last window, in units per second of local computation and transfer.
      centre: rate of the cluster's middle at this worker's speed.
      threshold: rate below which the worker is slow.
      rounds: number of rounds in a row in which it was slow, or was not.
      workers: number of workers that were compared.
    """

    worker: int
    flagged: bool
    rate: float
    centre: float
    threshold: float
    rounds: int
    workers: int


@dataclass(frozen=True)
class Judged:
    """Holds the judgements of all workers.

    Args:
      flagged: stragglers, ascending.
      units_per_sec: units per second of each worker, as measured last.
      threshold: rate below which a worker was slow in the last round; None before it.
    """

    flagged: tuple[int, ...]
    units_per_sec: dict[int, float]
    threshold: float | None


@dataclass
class _Watched:
    """Holds what is known of one worker.

    Args:
      secs: seconds of each of its units since the last round.
      waited: reports of its own since it has closed a window.
      units_per_sec: units per second of the last round that it was in, at speed 1; None before one.
      known: the same, of any phase.
      against: number of rounds in a row that contradict `flagged`.
      severe: rounds in a row in which it was below each share of the rule's.
      flagged: whether it is held to be a straggler.
      awaited: whether a round waits for its windows; False for a worker that is left out and measures itself.
    """

    secs: list[float] = field(default_factory=list)
    waited: int = 0
    units_per_sec: float | None = None
    known: float | None = None
    against: int = 0
    severe: tuple[int, ...] = ()
    flagged: bool = False
    awaited: bool = True

    def num_windows(self, window: int) -> int:
        return len(self.secs) // window

    def take(self, window: int, round_index: int, num_rounds: int) -> list[float]:
        """Return the units of one of the rounds that its closed windows are divided among."""
        num_windows = self.num_windows(window)
        first, last = (i * num_windows // num_rounds * window for i in (round_index, round_index + 1))
        return self.secs[first:last]


class Detector:
    """Watches the units of a cluster's workers.

    A worker takes part from its first unit until it is forgotten.

    Args:
      rule: rule that decides which worker is slow.
      speeds: worker -> how many times as fast as the others it is known to be, where devices differ; 1 where absent.
      window: units of a worker that are judged together, at most.
      window_secs: seconds in which they come that are enough; 0 for no such limit.

    Attributes:
      threshold: units a second, at speed 1, below which the last round held a worker for slow; None before one.
      excluded: workers that are not judged (see `exclude`).
    """

    def __init__(
        self,
        rule: Rule | None = None,
        speeds: Mapping[int, float] | None = None,
        window: int = WINDOW,
        window_secs: float = WINDOW_SECS,
    ) -> None:
        self.rule: Rule = rule or RobustRule()
        self._window = self._most = window
        self._window_secs = window_secs
        self._round_at: float | None = None  # clock seconds of the last round's end, or of the first report
        self._speeds = dict(speeds or {})
        self._watched: dict[int, _Watched] = {}
        self.threshold: float | None = None
        self.excluded: frozenset[int] = frozenset()
        self._flagged: tuple[int, ...] | None = ()  # None: to be counted anew
        self._late: set[int] = set()  # awaited workers: a report need look at no others

    @property
    def flagged(self) -> tuple[int, ...]:
        """Workers held to be stragglers, ascending."""
        if self._flagged is None:  # asked far more often than a judgement changes
            self._flagged = tuple(sorted(worker for worker, watched in self._watched.items() if watched.flagged))
        return self._flagged

    @property
    def units_per_sec(self) -> dict[int, float]:
        """Units a second of each worker, as it was measured last; ascending ids, without those never measured."""
        known = ((worker, self._watched[worker].known) for worker in sorted(self._watched))
        return {worker: rate * self._speeds.get(worker, 1.0) for worker, rate in known if rate is not None}

    def forget(self, worker: int) -> None:
        """Forget a worker that is gone; its successor begins anew."""
        self._watched.pop(worker, None)
        self._late.discard(worker)
        self._flagged = None

    def exclude(self, workers: Iterable[int]) -> None:
        """Judge all workers but these from now on: the times of these say too little about themselves."""
        self.excluded = frozenset(workers)
        for worker in self.excluded:
            self.forget(worker)

    def begin(self, workers: Iterable[int]) -> None:
        """Begin to measure anew where units cost something else than before, in another phase; what is held stays.

        Args:
          workers: workers that are expected to report; a round waits for none of the others.
        """
        expected = set(workers) - self.excluded
        for worker in sorted(expected):
            self._watched.setdefault(worker, _Watched())
        for worker, watched in self._watched.items():
            watched.secs, watched.waited, watched.units_per_sec = [], 0, None
            watched.awaited = worker in expected
        self._late, self._round_at = expected, None

    def observe(self, worker: int, secs: Sequence[float], at: float = 0.0) -> list[Decision]:
        """Take what a worker reports, which may be nothing; return what it is decided by, in order.

        Args:
          worker: id of the worker.
          secs: seconds of each unit since the worker's last report: local computation and transfer, without waiting for
            others.
          at: time of the report, in seconds of a clock, by which long windows are cut short.
        """
        if self._round_at is None:
            self._round_at = at
        if worker in self.excluded:
            return []
        watched = self._watched.get(worker)
        if watched is None:
            watched = self._watched[worker] = _Watched()
            self._late.add(worker)
        if secs:
            usual = min(secs) > 0.0 and math.isfinite(sum(secs))
            watched.secs += secs if usual else [unit for unit in secs if 0.0 < unit < math.inf]
        if not watched.num_windows(self._window):
            return []
        self._late.discard(worker)
        watched.waited += 1
        if self._late and watched.waited <= PATIENCE:
            return []
        window = self._window
        ready = {other: each for other, each in self._watched.items() if each.num_windows(window)}
        awaited = [each.num_windows(window) for each in ready.values() if each.awaited]
        num_rounds = min(awaited or [each.num_windows(window) for each in ready.values()])
        decisions = [found for i in range(num_rounds) for found in self._round(ready, i, num_rounds)]
        for each in ready.values():
            del each.secs[: each.num_windows(window) * window]
            each.waited = 0
        self._late = {other for other, each in self._watched.items() if each.awaited}
        self._resize(window * num_rounds, at)
        return decisions

    def _resize(self, num_units: int, at: float) -> None:
        """Choose the next windows' length by the time in which `num_units` of each worker have come."""
        assert self._round_at is not None
        took, self._round_at = at - self._round_at, at
        self._window = self._most
        if self._window_secs and took > 0:
            self._window = min(self._most, max(LEAST, math.ceil(self._window_secs * num_units / took)))

    def _round(self, ready: Mapping[int, _Watched], index: int, num_rounds: int) -> list[Decision]:
        ready = {worker: watched for worker, watched in ready.items() if watched.take(self._window, index, num_rounds)}
        for worker, watched in ready.items():
            rate = self.rule.units_per_sec(watched.take(self._window, index, num_rounds)) / self._speeds.get(
                worker, 1.0
            )
            watched.units_per_sec = watched.known = rate
        rates = [
            watched.units_per_sec for _, watched in sorted(self._watched.items()) if watched.units_per_sec is not None
        ]
        if len(rates) < 2:
            return []
        level = self.rule.level(rates)
        self.threshold = level.threshold
        found = (self._judge(worker, watched, level, len(rates)) for worker, watched in sorted(ready.items()))
        return [decision for decision in found if decision is not None]

    def _judge(self, worker: int, watched: _Watched, level: Level, num_workers: int) -> Decision | None:
        assert watched.units_per_sec is not None
        slow = watched.units_per_sec < level.threshold
        watched.against = watched.against + 1 if slow != watched.flagged else 0
        rule, before = self.rule, watched.severe or (0,) * len(self.rule.severe)
        speed = self._speeds.get(worker, 1.0)
        lasting = self._window * (1 / watched.units_per_sec - 1 / level.centre) / speed >= rule.hiccup
        watched.severe = tuple(
            rounds + 1 if lasting and watched.units_per_sec < share * level.centre else 0
            for rounds, (share, _) in zip(before, rule.severe, strict=True)
        )
        told = any(rounds >= enough for rounds, (_, enough) in zip(watched.severe, rule.severe, strict=True))
        if watched.against < rule.consecutive and not (slow and told and not watched.flagged):
            return None
        rounds, watched.against, watched.flagged = watched.against, 0, slow
        self._flagged = None
        centre, threshold = level.centre * speed, level.threshold * speed
        return Decision(
            worker,
            slow,
            watched.units_per_sec * speed,
            centre=centre,
            threshold=threshold,
            rounds=rounds,
            workers=num_workers,
        )


class NullDetector(Detector):
    """Judges nobody."""

    def begin(self, workers: Iterable[int]) -> None:
        pass

    def observe(self, worker: int, secs: Sequence[float], at: float = 0.0) -> list[Decision]:
        return []


def detector_of(config: PolicyConfig) -> Detector:
    """Return the detector that a configuration names."""
    if not config.detects:
        return NullDetector()
    consecutive = config.detector_consecutive
    rule: PaperRule | RobustRule = RobustRule(floor=config.detector_floor, consecutive=consecutive)
    if config.detector == "paper":
        rule = PaperRule(consecutive=consecutive)
    if config.detector_deviations is not None:
        rule = replace(rule, deviations=config.detector_deviations)
    return Detector(rule, dict(enumerate(config.speeds)), config.detector_window, config.detector_window_secs)
