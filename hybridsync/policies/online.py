"""Reacts to stragglers while a run trains in lock-step: Sync-Switch's online policies. Pure.

    >>> view = View(
    ...     now=12.0, units_left=4000, live=(0, 1, 2, 3), slow={3: 10.0},
    ...     units_per_sec={0: 20.0, 1: 20.0, 2: 20.0, 3: 5.0},
    ... )
    >>> Baseline().decide(view).action, Elastic().decide(view).action, Greedy().decide(view).action
    (AsPlanned(), ExcludeWorkers(workers=(3,)), TemporaryProtocol(spec='asp'))

A policy decides how a lock-step stage is to be carried out from now on, and the policy driver carries out the
difference to the current state. It decides by numbers that were measured in this run; the two that it may have to
guess, what a switch costs and how long a straggler stays one, have priors (`hybridsync.policies.actions`).

- *baseline* ignores stragglers.
- *greedy* goes to asynchrony, and back to lock-step when no worker is a straggler any more, until the lock-step share
  is done. It stays where it would not save what the two switches cost, so that it stays whenever the episode is
  expected to be shorter than they are.
- *elastic* leaves the stragglers out: lock-step continues with n - k members, n - k units an update, and the rate of so
  many. They come back at the planned switch to asynchrony, or earlier when they are well.
- *rebalance* keeps all workers and divides a step's units in proportion to speed: more units an update, and the rate of
  so many (see `hybridsync.policies.step_shares`).

Lock-step with members M does |M| * min rate units a second, asynchrony the sum of the rates, and lock-step by shares c
sum(c) units in max(c / rate) seconds.

- `policy.guard=off` gives greedy and elastic as the paper has them: they weigh nothing, and act on every straggler.

Source: Sync-Switch, ICDCS 2021, section IV, reconstruction; the guard of greedy, what elastic weighs and rebalance are
ours.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hybridsync.config.policy_config import PolicyConfig
from hybridsync.policies.actions import (
    EPISODE_SECS,
    PLANNED,
    Action,
    Choice,
    ExcludeWorkers,
    TemporaryProtocol,
    View,
    WeightedShares,
)
from hybridsync.policies.step_shares import MOST, shares, units_per_sec

MARGIN = 0.05
"""Other members have to do more units a second by this share: measured rates scatter."""
ALIKE = 0.1
"""Rates of healthy workers scatter by this share of their median at the most, where their devices are alike."""
SMALLER = 2 / 3
"""A step of so many of the units is worth a change that makes nothing faster."""
WORTH = 10
"""Equal shares are gone back to where so many times the seconds of a change are left."""
RETURN_UNITS = 50
"""Units of a worker between its being well again and its being called back: four windows, and reports on their way."""


class Policy(Protocol):
    """Decides how a lock-step stage is carried out.

    Attributes:
      name: as the configuration names it.
      keeps_protocol: whether the policy changes only which workers take part, or with how many units: such a change
        costs less than a switch to another protocol, and the measured costs of the two kinds are kept apart by it.
    """

    @property
    def name(self) -> str: ...

    @property
    def keeps_protocol(self) -> bool: ...

    def decide(self, view: View) -> Choice:
        """Return what is to be done from now on; asked again and again."""
        ...


@dataclass(frozen=True)
class Baseline:
    """Ignores stragglers."""

    name: str = "baseline"
    keeps_protocol: bool = False

    def decide(self, view: View) -> Choice:
        return Choice(PLANNED)


@dataclass(frozen=True)
class Greedy:
    """Asynchronous as long as somebody is a straggler, if that saves more than it costs.

    Of the time for which the straggler is expected to stay one, and of what the stage would still take, it saves the
    share that asynchrony is faster by.

    Args:
      prior_secs: expected duration of an episode before one has ended, in seconds.
    """

    prior_secs: float = EPISODE_SECS
    name: str = "greedy"
    keeps_protocol: bool = False

    def decide(self, view: View) -> Choice:
        away = isinstance(view.holds, TemporaryProtocol)
        if not any(worker in view.live for worker in view.slow):
            return Choice(PLANNED, "no straggler is left" if away else "")
        if away:
            return Choice(view.holds)
        lock_step, alone = view.lock_step_units_per_sec(view.live), math.fsum(map(view.units_per_sec_of, view.live))
        if not lock_step:
            return Choice(PLANNED)
        expected = view.expected_secs(self.prior_secs)
        saved = min(expected, view.units_left / lock_step) * (1.0 - lock_step / alone)
        numbers = (expected, saved, 2 * view.cost_secs)
        if saved <= 2 * view.cost_secs:
            return Choice(PLANNED, "two switches would cost more than asynchrony saves", *numbers)
        return Choice(TemporaryProtocol(view.detour), "asynchrony saves more than two switches cost", *numbers)


@dataclass(frozen=True)
class PlainGreedy:
    """Asynchronous whenever somebody is a straggler, as the paper has it."""

    name: str = "greedy"
    keeps_protocol: bool = False

    def decide(self, view: View) -> Choice:
        if any(worker in view.live for worker in view.slow):
            return Choice(TemporaryProtocol(view.detour), "somebody is a straggler")
        away = isinstance(view.holds, TemporaryProtocol)
        return Choice(PLANNED, "no straggler is left" if away else "")


@dataclass(frozen=True)
class PlainElastic:
    """Leaves out every worker that was a straggler once, up to the planned switch, as the paper has it.

    If no other worker would be left, the members stay.
    """

    name: str = "elastic"
    keeps_protocol: bool = True

    def decide(self, view: View) -> Choice:
        held = view.holds.workers if isinstance(view.holds, ExcludeWorkers) else ()
        before = tuple(worker for worker in view.live if worker in held)
        out = tuple(worker for worker in view.live if worker in before or worker in view.slow)
        if out == view.live:
            out = before if before != view.live else ()
        return Choice(_without(out), "somebody is a straggler" if {*out} - {*before} else "")


@dataclass(frozen=True)
class Elastic:
    """Chooses the lock-step members that do most units a second, where the change of members is worth it.

    Only stragglers are left out, the slowest first, and only where the others do more units a second without them by
    `margin`. A worker that is left out stays out until it is no straggler any more: one good measurement does not call
    it back.

    What leaving some out saves is counted for as long as they are expected to be slow. If they are well before the
    stage is done, the others lack them until that is known, RETURN_UNITS later, and a second change brings them back;
    else the planned switch does, which is made anyway.

    Args:
      margin: share by which other members must be faster.
      prior_secs: expected duration of an episode before one has ended, in seconds.
    """

    margin: float = MARGIN
    prior_secs: float = EPISODE_SECS
    name: str = "elastic"
    keeps_protocol: bool = True

    def decide(self, view: View) -> Choice:
        left_out = view.holds.workers if isinstance(view.holds, ExcludeWorkers) else ()
        out_now = tuple(worker for worker in left_out if worker in view.live)
        if not (here := _others(view.live, out_now)):  # the others are gone: continue with those left out
            out_now, here = (), view.live
        stays = [worker for worker in out_now if worker in view.slow]
        slow = sorted((view.units_per_sec_of(worker), worker) for worker in view.slow if worker in here)
        ways = [tuple(sorted((*stays, *(worker for _, worker in slow[:count])))) for count in range(len(slow) + 1)]
        fastest = max(ways, key=lambda out: (view.lock_step_units_per_sec(_others(view.live, out)), -len(out)))
        now, then = view.lock_step_units_per_sec(here), view.lock_step_units_per_sec(_others(view.live, fastest))
        if fastest == out_now or not now or not then:
            return Choice(_without(out_now))
        if set(fastest) <= set(out_now):
            why, numbers = f"workers {sorted({*out_now} - {*fastest})} are well", self._return(view, now, then)
        else:
            why, numbers = "the others are faster", self._exclusion(view, now, then)
        if then <= (1.0 + self.margin) * now:
            return Choice(_without(out_now), "the others would hardly be faster", *numbers)
        if numbers[1] <= numbers[2]:
            return Choice(_without(out_now), "the change would cost more than it saves", *numbers)
        return Choice(_without(fastest), why, *numbers)

    @staticmethod
    def _return(view: View, now: float, then: float) -> tuple[float | None, float, float]:
        return None, view.units_left * (1.0 / now - 1.0 / then), view.cost_secs

    def _exclusion(self, view: View, now: float, then: float) -> tuple[float | None, float, float]:
        expected, whole = view.expected_secs(self.prior_secs), len(view.live) * view.usual_units_per_sec
        lasts = min(expected, view.units_left / now)
        saved = lasts * (then - now) / whole
        if expected >= view.units_left / then:
            return expected, saved, view.cost_secs
        late = RETURN_UNITS / view.usual_units_per_sec * max(0.0, 1.0 - then / whole)
        return expected, saved, 2 * view.cost_secs + late


@dataclass(frozen=True)
class Rebalance:
    """Gives each worker as many units of a lock-step step as it gets done while the slowest does its own.

    No member gets more than one unit while there is no straggler: measured rates scatter. While there is one, the
    shares follow the rates wherever that is faster by `margin`, and saves more than the changes of shares cost, counted
    as elastic counts it; or wherever as fast a step is much smaller, because a larger batch is the price of it. Every
    member has at least one unit, by which it continues to measure itself.

    Args:
      most: maximum number of units of one member in a step.
      margin: share by which other shares must be faster.
      prior_secs: expected duration of an episode before one has ended, in seconds.
    """

    most: int = MOST
    margin: float = MARGIN
    prior_secs: float = EPISODE_SECS
    name: str = "rebalance"
    keeps_protocol: bool = True

    def decide(self, view: View) -> Choice:
        holds = view.holds if isinstance(view.holds, WeightedShares) else PLANNED
        rates = self._rates(view)
        if not all(rates):
            return Choice(holds)
        secs, ones = [1.0 / rate for rate in rates], (1,) * len(rates)
        held = holds.of(view.live) if isinstance(holds, WeightedShares) else ones
        if not any(worker in view.live for worker in view.slow):
            if holds == PLANNED or view.units_left / units_per_sec(ones, secs) <= WORTH * view.cost_secs:
                return Choice(holds)
            return Choice(PLANNED, "no straggler is left", cost_secs=view.cost_secs)
        fit = shares(secs, self.most, least=1) or ones
        if fit == held:
            return Choice(holds)
        now, then = units_per_sec(held, secs), units_per_sec(fit, secs)
        numbers = self._numbers(view, fit, now, then)
        dealt = WeightedShares(tuple(zip(view.live, fit, strict=True))) if fit != ones else PLANNED
        if sum(fit) <= SMALLER * sum(held) and then >= now:
            return Choice(dealt, "a smaller step is as fast", *numbers)
        if then <= (1.0 + self.margin) * now:
            return Choice(holds, "other shares would hardly be faster", *numbers)
        if numbers[1] <= numbers[2]:
            return Choice(holds, "other shares would cost more than they save", *numbers)
        return Choice(dealt, "units in proportion to speed are faster", *numbers)

    def _numbers(self, view: View, fit: tuple[int, ...], now: float, then: float) -> tuple[float, float, float]:
        """Return for how long the stragglers are expected to stay some, what `fit` saves and what it costs."""
        expected, whole = view.expected_secs(self.prior_secs), len(fit) * view.usual_units_per_sec
        saved = min(expected, view.units_left / now) * (then - now) / whole
        if expected >= view.units_left / then or isinstance(view.holds, WeightedShares):  # or it is to be undone anyway
            return expected, saved, view.cost_secs
        step_secs = max(fit) / view.usual_units_per_sec  # a recovered member has one unit of it until that is known
        late = RETURN_UNITS * step_secs * max(0.0, 1.0 - sum(fit) / step_secs / whole)
        return expected, saved, 2 * view.cost_secs + late

    @staticmethod
    def _rates(view: View) -> list[float]:
        """Return the rates of the live workers; healthy ones of about the same speed count as equally fast."""
        well = [view.units_per_sec_of(worker) for worker in view.live if worker not in view.slow]
        median = statistics.median(well or (0.0,))

        def rate(worker: int) -> float:
            own = view.units_per_sec_of(worker)
            return median if worker not in view.slow and abs(own - median) <= ALIKE * median else own

        return [rate(worker) for worker in view.live]


def _others(live: tuple[int, ...], out: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(worker for worker in live if worker not in out)


def _without(workers: tuple[int, ...]) -> Action:
    return ExcludeWorkers(workers) if workers else PLANNED


POLICIES: dict[str, Callable[[PolicyConfig], Policy]] = {
    "baseline": lambda config: Baseline(),
    "greedy": lambda config: Greedy() if config.guard == "on" else PlainGreedy(),
    "elastic": lambda config: Elastic() if config.guard == "on" else PlainElastic(),
    "rebalance": lambda config: Rebalance(config.most_units),
}


def policy_of(config: PolicyConfig) -> Policy:
    """Return the policy that a configuration names."""
    return POLICIES[config.online](config)
