"""The group generator: decides which workers average their parameters together, as a state machine without IO.

A worker that has taken its local steps comes to a *group round*; it is answered with its group once every member of
that group is there. A group is *made* when its members are decided, and *starts* when the last of them arrives. All
kinds of generators keep one order of groups for all workers, so that none ever waits in a circle. Groups that are made
ahead and may conflict are in `group_queue.py`; here are those by arrival and by schedule.

A worker may *serve* while it computes: it is then there for the groups that others ask for.

No worker waits for one that has no work (`on_idle`), or is gone (`on_leave`): it is taken out of its group.

Two group rounds include all workers: a *full synchronisation*, which the chief asks for (`synchronise`) and to which
also workers come that have no work, and the *last* one, after which the phase is over. Both make all replicas one
state.

    >>> rule = Arrivals((0, 1, 2), seed=0, size=2, patience=1.0, period=0)
    >>> for worker in (0, 1, 2): rule.on_join(worker)
    >>> [group.members for at, worker in enumerate((0, 2, 1)) for group in rule.on_arrival(worker, at)]
    [(0,), (1, 2)]

Source: Luo et al., Prague: High-Performance Heterogeneity-Aware Asynchronous Decentralized Training, ASPLOS 2020
(Ripples, arXiv 1909.08029): its abstract; the rest is a reconstruction.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from random import Random
from typing import NamedTuple

Schedule = tuple[tuple[tuple[int, ...], ...], ...]
"""Group rounds in turn, each the disjoint groups of positions that average then."""


class Group(NamedTuple):
    """Workers that average now.

    Args:
      members: worker ids in the order of their sum; a single member does not average.
      is_full_sync: whether all members are in it, and all replicas become one state.
      again: members that come back at once: the group that they asked for comes after this one.
    """

    members: tuple[int, ...]
    is_full_sync: bool = False
    again: tuple[int, ...] = ()


class GroupRule(ABC):
    """Follows arrivals, absences and group rounds of everybody, for every generator; a kind of it makes the groups.

    Args:
      members: worker ids of the phase.
      seed: random seed of the draws.

    Attributes:
      due: time at which `on_time` wants to be called, in seconds of the clock that `at` is read from; infinite for
        never.
      averages_optimizer: whether groups average the optimizer's state too; groups of all members always do.
    """

    def __init__(self, members: tuple[int, ...], seed: int) -> None:
        self.members = members
        self.due = math.inf
        self.averages_optimizer = False
        self.random = Random(seed)
        self._present: dict[int, None] = {}
        self._idle: set[int] = set()
        self._waiting: dict[int, bool] = {}
        self._serving: set[int] = set()
        self._again: set[int] = set()
        self._counts: dict[int, int] = {}
        self._synchronising = self._closing = False

    # --- what a driver reports; each method returns the groups that start now ---

    def on_join(self, worker: int) -> None:
        """Count on `worker` from now on; a late one begins as far along as the fastest."""
        if worker not in self._present:
            self._present[worker] = None
            self._counts[worker] = max(self._counts.values(), default=0)

    def on_arrival(self, worker: int, at: float, *, last: bool = False, average_secs: float = 0.0) -> list[Group]:
        """Take in a worker that waits for its group; it serves no longer.

        Args:
          worker: id of the worker.
          at: time of the arrival, in seconds of the clock.
          last: it has no work any more.
          average_secs: duration of its last average, in seconds; 0 if there was none.
        """
        assert worker in self._present, f"worker {worker} meets, but has not joined"
        assert worker not in self._waiting, f"worker {worker} meets twice"
        self._idle.discard(worker)
        self._serving.discard(worker)
        if worker in self._again:
            self._again.remove(worker)
        else:
            self._counts[worker] += 1
            self._measure(worker, at, average_secs)
        self._waiting[worker] = last
        self._closing = self._closing or last
        if not (self._closing or self._synchronising):
            self._arrive(worker, at)
        return self._settle(at)

    def on_serving(self, worker: int, at: float) -> list[Group]:
        """Take in a worker that computes, and is there meanwhile for one group that others ask for."""
        if worker in self._present and worker not in self._waiting:
            self._idle.discard(worker)
            self._serving.add(worker)
        return self._settle(at)

    def on_idle(self, worker: int, at: float) -> list[Group]:
        """Let nobody wait for a worker that has no work and does not come by itself."""
        if worker not in self._present or worker in self._waiting or worker in self._idle:
            return []
        self._idle.add(worker)
        self._serving.discard(worker)
        self._forget(worker)
        return self._settle(at)

    def on_leave(self, worker: int, at: float) -> list[Group]:
        """Let nobody wait for a worker that is gone."""
        for known in (self._present, self._waiting, self._counts):
            known.pop(worker, None)
        for kind in (self._idle, self._serving, self._again):
            kind.discard(worker)
        self._forget(worker)
        return self._settle(at)

    def on_time(self, at: float) -> list[Group]:
        """Start what does not wait any longer."""
        return self._settle(at) if at >= self.due else []

    def synchronise(self, at: float) -> list[Group]:
        """Make the next group round one of everybody: groups that were made and have not started are dissolved."""
        self._synchronising = True
        self._dissolve()
        return self._settle(at)

    @property
    def calls_everybody(self) -> bool:
        """Return whether workers without work have to come to a group round, too."""
        return self._synchronising and not self._closing

    def waits_for(self) -> dict[int, tuple[int, ...]]:
        """Return whom each waiting worker waits for."""
        if not (self._closing or self._synchronising):
            return {worker: self._missing(worker) for worker in self._waiting}
        missing = tuple(worker for worker in self._present if not self._has_come(worker))
        return dict.fromkeys(self._waiting, missing)

    # --- what a kind of generator adds ---

    @abstractmethod
    def _arrive(self, worker: int, at: float) -> None:
        """Take in a worker that has just come."""

    @abstractmethod
    def _ready(self, at: float) -> list[Group]:
        """Take out and return the groups that start now: all of their members are there."""

    @abstractmethod
    def _missing(self, worker: int) -> tuple[int, ...]:
        """Return whom a waiting worker waits for."""

    @abstractmethod
    def _forget(self, worker: int) -> None:
        """Take a worker that is not waiting out of whatever it was to be in."""

    @abstractmethod
    def _dissolve(self) -> None:
        """Forget the groups that have not started: waiting workers go to a group round of everybody."""

    def _measure(self, worker: int, at: float, average_secs: float) -> None:  # noqa: B027 - most rules have no use for it
        """Note how long ago a worker's last group started, and what its average took; nobody has to."""

    def _is_there(self, worker: int) -> bool:
        """Return whether a group may start with `worker` now."""
        return worker in self._waiting or worker in self._serving

    def _active(self) -> list[int]:
        """Workers with work, in the order of the phase."""
        return [worker for worker in self.members if worker in self._present and worker not in self._idle]

    # --- inside ---

    def _has_come(self, worker: int) -> bool:
        return self._waiting.get(worker, False) if self._closing else worker in self._waiting

    def _settle(self, at: float) -> list[Group]:
        if not (self._closing or self._synchronising):
            return [self._start(group) for group in self._ready(at)]
        started = []
        if self._closing:
            # A worker with work left does not wait for those without: it continues alone, and comes for good later.
            self._dissolve()
            started = [self._start(Group((worker,))) for worker, last in [*self._waiting.items()] if not last]
        if self._present and all(map(self._has_come, self._present)):
            self._synchronising = False
            members = tuple(worker for worker in self.members if worker in self._present)
            started.append(self._start(Group(members, is_full_sync=True)))
        return started

    def _start(self, group: Group) -> Group:
        for worker in group.members:
            if worker in self._waiting:
                del self._waiting[worker]
            else:
                self._serving.remove(worker)
        self._again.update(group.again)
        return group


FORGET = 0.2
"""How much a new gap between arrivals counts in their mean."""


class Arrivals(GroupRule):
    """Groups the workers that are ready within a short wait; the wait follows the gaps between arrivals.

    The first to come waits `patience` mean gaps between two arrivals of any worker, or until `size` workers are there.
    Every `period` group rounds of each worker all workers are called, so that no two workers are apart for long.

    Args:
      members, seed: see `GroupRule`.
      size: number of workers at which a group does not wait any longer.
      patience: number of mean gaps that a group waits.
      period: group rounds of each worker between two full synchronisations; 0 for none.

    Source: Miao et al., Heterogeneity-Aware Distributed Machine Learning Training via Partial Reduce, SIGMOD 2021; the
    wait is a reconstruction.
    """

    def __init__(self, members: tuple[int, ...], seed: int, size: int, patience: float, period: int) -> None:
        super().__init__(members, seed)
        self._size, self._patience, self._period = size, patience, period
        self._gap = 0.0
        self._came_at: float | None = None
        self._rounds = 0

    def _arrive(self, worker: int, at: float) -> None:
        if self._came_at is not None:
            gap = max(0.0, at - self._came_at)
            self._gap = gap if not self._gap else (1 - FORGET) * self._gap + FORGET * gap
        self._came_at = at
        self._rounds += 1
        if self._period and self._rounds >= self._period * len(self._present):
            self._rounds = 0
            self._synchronising = True
            self._dissolve()
        elif self.due == math.inf:
            self.due = at + self._patience * self._gap

    def _ready(self, at: float) -> list[Group]:
        waiting = [worker for worker in self.members if worker in self._waiting]
        enough = len(waiting) >= min(self._size, len(self._active()))
        if not waiting or not (enough or at >= self.due):
            return []
        self.due = math.inf
        return [Group(tuple(waiting))]

    def _missing(self, worker: int) -> tuple[int, ...]:
        return tuple(other for other in self._active() if other not in self._waiting)

    def _forget(self, worker: int) -> None:
        """Do nothing: nobody is in a group before it starts."""

    def _dissolve(self) -> None:
        self.due = math.inf


class Scheduled(GroupRule):
    """Groups that a schedule fixes by the number of a worker's group round, for workers that are alike.

    A group does not wait for members that have passed that group round; no worker waits at an earlier one for those
    that have not come so far, so there is no circle.

    Args:
      members, seed: see `GroupRule`.
      schedule: the workers of each group round in turn, as disjoint groups of positions in `members`.
    """

    def __init__(self, members: tuple[int, ...], seed: int, schedule: Schedule) -> None:
        super().__init__(members, seed)
        self._schedule = [
            {members[position]: tuple(members[p] for p in group) for group in groups for position in group}
            for groups in schedule
        ]

    def _group(self, worker: int) -> list[int]:
        """Return whom `worker` averages with at its group round: those with work that have not passed it."""
        number, active = self._counts[worker], self._active()
        group = self._schedule[(number - 1) % len(self._schedule)].get(worker, (worker,))
        return [w for w in group if w in active and self._counts[w] <= number]

    def _arrive(self, worker: int, at: float) -> None:
        """Do nothing: the schedule says everything."""

    def _ready(self, at: float) -> list[Group]:
        ready: dict[int, Group] = {}
        for worker in self._waiting:
            if not self._missing(worker):
                members = tuple(self._group(worker))
                ready[members[0]] = Group(members)
        return [ready[first] for first in sorted(ready)]

    def _missing(self, worker: int) -> tuple[int, ...]:
        number = self._counts[worker]
        return tuple(w for w in self._group(worker) if w not in self._waiting or self._counts[w] != number)

    def _forget(self, worker: int) -> None:
        """Do nothing: a worker that is idle or gone is in no group."""

    def _dissolve(self) -> None:
        """Do nothing: the schedule stays."""
