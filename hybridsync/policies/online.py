"""What a run does about stragglers while it trains in lock-step: Sync-Switch's online policies. Pure.

    >>> view = View(
    ...     now=12.0, units_left=4000, live=(0, 1, 2, 3), slow={3: 10.0}, rates={0: 20.0, 1: 20.0, 2: 20.0, 3: 5.0}
    ... )
    >>> Baseline().decide(view).action, Elastic().decide(view).action, Greedy().decide(view).action
    (AsPlanned(), Without(workers=(3,)), Instead(spec='asp'))

A policy says how a lock-step stage is to be carried out from now on, and who asks carries out the difference to what
holds. It decides by numbers that were measured in this run; the two that it may have to guess, what a switch costs and
how long a straggler stays one, have the priors below.

- *baseline* ignores stragglers.
- *greedy* goes to asynchrony, and back to lock-step when nobody is a straggler any more, until the lock-step share is
  done. It stays where it would not save what the two switches cost, so that it stays whenever the episode is expected
  to be shorter than they are.
- *elastic* leaves the stragglers out: lock-step goes on with n - k members, n - k units an update, and the rate of so
  many. They come back at the planned switch to asynchrony, or earlier when they are well.

Lock-step with members M does |M| * min rate units a second, asynchrony the sum of the rates.

Source: Sync-Switch, ICDCS 2021, section IV, reconstruction; the guard of greedy and what elastic weighs are ours.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hybridsync.config.values import PolicyConfig

SWITCH_SECS = 0.5
"""What a switch is taken to cost before this run has made one like it."""
EPISODE_SECS = 20.0
"""How long a straggler is taken to stay one before this run has seen one recover."""
MARGIN = 0.05
"""Other members have to do more units a second by this share: measured rates scatter."""
RETURN_UNITS = 50
"""Units of a worker between its being well again and its being called back: four windows, and reports on their way."""


@dataclass(frozen=True)
class AsPlanned:
    """Lock-step of everybody who lives."""

    @property
    def name(self) -> str:
        """For events and messages."""
        return "as planned"


@dataclass(frozen=True)
class Without:
    """Lock-step of the others: `workers`, ascending, are left out, and measure themselves meanwhile."""

    workers: tuple[int, ...]

    @property
    def name(self) -> str:
        """For events and messages."""
        return f"without workers {list(self.workers)}"


@dataclass(frozen=True)
class Instead:
    """Another protocol for a while, as written in a plan; the units of lock-step that are left are done later."""

    spec: str

    @property
    def name(self) -> str:
        """For events and messages."""
        return f"{self.spec} instead"


Action = AsPlanned | Without | Instead
PLANNED = AsPlanned()


@dataclass(frozen=True)
class View:
    """What a policy sees.

    Args:
      now: seconds of the clock that `slow` is told in.
      units_left: units of the stage that lock-step has still to do.
      live: workers that could take part, ascending.
      slow: stragglers -> since when they are held to be.
      rates: worker -> units a second that it does by itself, as it was measured last; those that were.
      holds: how the stage is carried out now.
      detour: the asynchronous protocol that could take the place of lock-step.
      switch_secs: seconds that each change of protocol, or for elastic of members, has cost in this run, in order.
      episodes: seconds of each stretch in which there was a straggler, from its flag to the last one's clearing.
    """

    now: float
    units_left: int
    live: tuple[int, ...]
    slow: Mapping[int, float]
    rates: Mapping[int, float]
    holds: Action = PLANNED
    detour: str = "asp"
    switch_secs: tuple[float, ...] = ()
    episodes: tuple[float, ...] = ()

    @property
    def cost_secs(self) -> float:
        """What one switch is expected to cost."""
        return statistics.fmean(self.switch_secs) if self.switch_secs else SWITCH_SECS

    @property
    def usual_rate(self) -> float:
        """The median of the workers' rates; 0 where nobody's was measured."""
        return statistics.median(self.rates.values() or (0.0,))

    def expected_secs(self, prior_secs: float) -> float:
        """Return for how much longer there is expected to be a straggler.

        As long as this run's episodes lasted in the mean, `prior_secs` before one has ended; one that has outlived that
        is expected to go on for as long as it has lasted.
        """
        mean = statistics.fmean(self.episodes) if self.episodes else prior_secs
        age = self.now - min(self.slow.values(), default=self.now)
        return max(mean - age, age)

    def rate(self, worker: int) -> float:
        """Return a worker's rate; the usual one where it was not measured yet."""
        return self.rates.get(worker) or self.usual_rate

    def lock_step_rate(self, members: Iterable[int]) -> float:
        """Return the units a second that lock-step of `members` does."""
        rates = [self.rate(worker) for worker in members]
        return len(rates) * min(rates, default=0.0)


@dataclass(frozen=True)
class Choice:
    """What a policy decides, and the numbers that it rests on.

    Args:
      action: how the stage is carried out from now on.
      why: in words; "" where there was nothing to decide.
      expected_secs: how much longer the straggler is expected to stay one, where that counts.
      saved_secs: what `action`, or what was weighed and not done, is expected to save.
      cost_secs: what the switches for it are expected to cost.
    """

    action: Action
    why: str = ""
    expected_secs: float | None = None
    saved_secs: float = 0.0
    cost_secs: float = 0.0


class Policy(Protocol):
    """Decides how a lock-step stage is carried out.

    Attributes:
      name: as the configuration names it.
    """

    @property
    def name(self) -> str: ...

    def decide(self, view: View) -> Choice:
        """Return what is to be done from now on; asked again and again."""
        ...


@dataclass(frozen=True)
class Baseline:
    """Ignores stragglers."""

    name: str = "baseline"

    def decide(self, view: View) -> Choice:
        return Choice(PLANNED)


@dataclass(frozen=True)
class Greedy:
    """Asynchronous as long as somebody is a straggler, if that saves more than it costs.

    Of the time for which the straggler is expected to stay one, and of what the stage would still take, it saves the
    share that asynchrony is faster by.

    Args:
      prior_secs: what an episode is expected to last before one has ended.
    """

    prior_secs: float = EPISODE_SECS
    name: str = "greedy"

    def decide(self, view: View) -> Choice:
        away = isinstance(view.holds, Instead)
        if not any(worker in view.live for worker in view.slow):
            return Choice(PLANNED, "no straggler is left" if away else "")
        if away:
            return Choice(view.holds)
        lock_step, alone = view.lock_step_rate(view.live), math.fsum(map(view.rate, view.live))
        if not lock_step:
            return Choice(PLANNED)
        expected = view.expected_secs(self.prior_secs)
        saved = min(expected, view.units_left / lock_step) * (1.0 - lock_step / alone)
        numbers = (expected, saved, 2 * view.cost_secs)
        if saved <= 2 * view.cost_secs:
            return Choice(PLANNED, "two switches would cost more than asynchrony saves", *numbers)
        return Choice(Instead(view.detour), "asynchrony saves more than two switches cost", *numbers)


@dataclass(frozen=True)
class Elastic:
    """Lock-step of the members who do most units a second, where the change of members is worth it.

    Only stragglers are left out, the slowest first, and only where the others do more units a second without them by
    `margin`. Who is left out stays so until it is no straggler any more: one good measure is not to call it back.

    What leaving some out saves is counted for as long as they are expected to be slow. If they are well before the
    stage is done, the others lack them until that is known, RETURN_UNITS later, and a second change brings them back;
    else the planned switch does, which is made anyway.

    Args:
      margin: share by which other members must be faster.
      prior_secs: what an episode is expected to last before one has ended.
    """

    margin: float = MARGIN
    prior_secs: float = EPISODE_SECS
    name: str = "elastic"

    def decide(self, view: View) -> Choice:
        left_out = view.holds.workers if isinstance(view.holds, Without) else ()
        out_now = tuple(worker for worker in left_out if worker in view.live)
        if not (here := _others(view.live, out_now)):  # the others are gone: who was left out goes on
            out_now, here = (), view.live
        stays = [worker for worker in out_now if worker in view.slow]
        slow = sorted((view.rate(worker), worker) for worker in view.slow if worker in here)
        ways = [tuple(sorted((*stays, *(worker for _, worker in slow[:count])))) for count in range(len(slow) + 1)]
        fastest = max(ways, key=lambda out: (view.lock_step_rate(_others(view.live, out)), -len(out)))
        now, then = view.lock_step_rate(here), view.lock_step_rate(_others(view.live, fastest))
        if fastest == out_now or not now or not then:
            return Choice(_without(out_now))
        if set(fastest) <= set(out_now):
            why, numbers = f"workers {sorted({*out_now} - {*fastest})} are well", self._return(view, now, then)
        else:
            why, numbers = "the others are faster", self._eviction(view, now, then)
        if then <= (1.0 + self.margin) * now:
            return Choice(_without(out_now), "the others would hardly be faster", *numbers)
        if numbers[1] <= numbers[2]:
            return Choice(_without(out_now), "the change would cost more than it saves", *numbers)
        return Choice(_without(fastest), why, *numbers)

    @staticmethod
    def _return(view: View, now: float, then: float) -> tuple[float | None, float, float]:
        return None, view.units_left * (1.0 / now - 1.0 / then), view.cost_secs

    def _eviction(self, view: View, now: float, then: float) -> tuple[float | None, float, float]:
        expected, whole = view.expected_secs(self.prior_secs), len(view.live) * view.usual_rate
        lasts = min(expected, view.units_left / now)
        saved = lasts * (then - now) / whole
        if expected >= view.units_left / then:
            return expected, saved, view.cost_secs
        late = RETURN_UNITS / view.usual_rate * max(0.0, 1.0 - then / whole)
        return expected, saved, 2 * view.cost_secs + late


def _others(live: tuple[int, ...], out: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(worker for worker in live if worker not in out)


def _without(workers: tuple[int, ...]) -> Action:
    return Without(workers) if workers else PLANNED


@dataclass
class Episodes:
    """Follows who is a straggler since when, and how long there was one.

    An episode's ends are both told late, by as many windows, so that its length is about right.

    >>> episodes = Episodes()
    >>> for now, flagged in ((1.0, (3,)), (2.0, (1, 3)), (4.0, (1,)), (6.0, ())):
    ...     episodes.note(flagged, now)
    >>> episodes.slow, episodes.lengths
    ({}, (5.0,))
    """

    slow: dict[int, float] = field(default_factory=dict)
    lengths: tuple[float, ...] = ()
    _began: float | None = None

    def note(self, flagged: Iterable[int], now: float) -> None:
        """Take in who is held to be a straggler now."""
        self.slow = {worker: self.slow.get(worker, now) for worker in flagged}
        if self.slow and self._began is None:
            self._began = now
        if not self.slow and self._began is not None:
            self.lengths, self._began = (*self.lengths, now - self._began), None


POLICIES: dict[str, type[Baseline] | type[Greedy] | type[Elastic]] = {
    "baseline": Baseline,
    "greedy": Greedy,
    "elastic": Elastic,
}


def policy_of(config: PolicyConfig) -> Policy:
    """Return the policy that a configuration names."""
    return POLICIES[config.online]()
