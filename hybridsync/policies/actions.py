"""Defines what an online policy sees of a run, and how it may have lock-step carried out. Pure.

    >>> view = View(
    ...     now=12.0, units_left=4000, live=(0, 1, 2, 3), slow={3: 10.0},
    ...     units_per_sec={0: 20.0, 1: 20.0, 2: 20.0, 3: 5.0},
    ... )
    >>> view.usual_units_per_sec, [view.lock_step_units_per_sec(members) for members in ((0, 1, 2, 3), (0, 1, 2))]
    (20.0, [20.0, 60.0])

An action describes how a lock-step stage is carried out, not what is to be done: the policy driver carries out the
difference to the current state (`phases/policy_driver.py`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

SWITCH_SECS = 0.5
"""The assumed cost of a switch before this run has made one like it."""
EPISODE_SECS = 20.0
"""The time that a straggler is assumed to stay one, before this run has seen one recover."""


@dataclass(frozen=True)
class AsPlanned:
    """Keeps the plan: lock-step of all live workers."""

    @property
    def name(self) -> str:
        """For events and messages."""
        return "as planned"


@dataclass(frozen=True)
class ExcludeWorkers:
    """Leaves `workers` (ascending) out of lock-step; they measure themselves meanwhile."""

    workers: tuple[int, ...]

    @property
    def name(self) -> str:
        """For events and messages."""
        return f"without workers {list(self.workers)}"


@dataclass(frozen=True)
class TemporaryProtocol:
    """Enters another protocol for a while, written as in a plan; the remaining lock-step units are done later."""

    spec: str

    @property
    def name(self) -> str:
        """For events and messages."""
        return f"{self.spec} instead"


@dataclass(frozen=True)
class WeightedShares:
    """Gives some workers several units of each lock-step step, in which all live workers take part.

    A worker that is not named, because it came later, takes one.

    Args:
      units: (worker, units) of each of these; the others have one.
    """

    units: tuple[tuple[int, int], ...]

    @property
    def name(self) -> str:
        """For events and messages."""
        by_units = {units: [worker for worker, each in self.units if each == units] for _, units in self.units}
        return "a step of " + ", ".join(f"{units} for {by_units[units]}" for units in sorted(by_units, reverse=True))

    def of(self, workers: Iterable[int]) -> tuple[int, ...]:
        """Return the units of each of `workers`."""
        units = dict(self.units)
        return tuple(units.get(worker, 1) for worker in workers)


Action = AsPlanned | ExcludeWorkers | TemporaryProtocol | WeightedShares
PLANNED = AsPlanned()


@dataclass(frozen=True)
class View:
    """Holds what a policy knows of the run when it decides.

    Args:
      now: time in seconds of the clock that `slow` uses.
      units_left: units of the stage that lock-step has still to do.
      live: workers that could take part, ascending.
      slow: stragglers -> time since when each is held to be one.
      units_per_sec: units per second of each worker by itself, as measured last; only of workers that were measured.
      holds: action that is in force now.
      detour: the asynchronous protocol that could take the place of lock-step.
      switch_secs: seconds that each change of the kind that the policy makes has cost in this run, in order: of
        protocol, or of members or shares (`Policy.keeps_protocol`).
      episodes: seconds of each stretch in which there was a straggler, from its flag to the last one's clearing.
    """

    now: float
    units_left: int
    live: tuple[int, ...]
    slow: Mapping[int, float]
    units_per_sec: Mapping[int, float]
    holds: Action = PLANNED
    detour: str = "asp"
    switch_secs: tuple[float, ...] = ()
    episodes: tuple[float, ...] = ()

    @property
    def cost_secs(self) -> float:
        """Expected cost of one switch."""
        return statistics.fmean(self.switch_secs) if self.switch_secs else SWITCH_SECS

    @property
    def usual_units_per_sec(self) -> float:
        """The median rate of those who are no stragglers, else of everybody; 0 where nobody's was measured."""
        well = [rate for worker, rate in self.units_per_sec.items() if worker not in self.slow]
        return statistics.median(well or self.units_per_sec.values() or (0.0,))

    def expected_secs(self, prior_secs: float) -> float:
        """Return for how much longer there is expected to be a straggler.

        As long as this run's episodes lasted in the mean, `prior_secs` before one has ended; one that has outlived that
        is expected to go on for as long as it has lasted.
        """
        mean = statistics.fmean(self.episodes) if self.episodes else prior_secs
        age = self.now - min(self.slow.values(), default=self.now)
        return max(mean - age, age)

    def units_per_sec_of(self, worker: int) -> float:
        """Return a worker's rate; the usual one where it was not measured yet."""
        return self.units_per_sec.get(worker) or self.usual_units_per_sec

    def lock_step_units_per_sec(self, members: Iterable[int]) -> float:
        """Return the units a second that lock-step of `members` does."""
        rates = [self.units_per_sec_of(worker) for worker in members]
        return len(rates) * min(rates, default=0.0)


@dataclass(frozen=True)
class Choice:
    """Holds a policy's decision, and the numbers that it rests on.

    Args:
      action: action that is in force from now on.
      why: reason in words; "" if there was nothing to decide.
      expected_secs: further time that the straggler is expected to stay one, in seconds, where that counts.
      saved_secs: seconds that `action`, or an action that was weighed and rejected, is expected to save.
      cost_secs: seconds that the switches for it are expected to cost.
    """

    action: Action
    why: str = ""
    expected_secs: float | None = None
    saved_secs: float = 0.0
    cost_secs: float = 0.0


@dataclass
class Episodes:
    """Follows who is a straggler since when, and how long there was one.

    Both ends of an episode are noticed late, by as many windows, so that its length is about right.

    >>> episodes = Episodes()
    >>> for now, flagged in ((1.0, (3,)), (2.0, (1, 3)), (4.0, (1,)), (6.0, ())):
    ...     episodes.record(flagged, now)
    >>> episodes.slow, episodes.lengths
    ({}, (5.0,))
    """

    slow: dict[int, float] = field(default_factory=dict)
    lengths: tuple[float, ...] = ()
    _began: float | None = None

    def record(self, flagged: Iterable[int], now: float) -> None:
        """Take in who is held to be a straggler now."""
        self.slow = {worker: self.slow.get(worker, now) for worker in flagged}
        if self.slow and self._began is None:
            self._began = now
        if not self.slow and self._began is not None:
            self.lengths, self._began = (*self.lengths, now - self._began), None
