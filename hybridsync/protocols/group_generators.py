"""The group generator: decides which workers average their parameters together, as a state machine without IO.

A worker that has taken its local steps comes to a *group round*; it is answered with its group once everybody in that
group is there. A group is *made* when its members are decided, and *starts* when the last of them arrives. Made groups
are disjoint (a worker's place in one is its lock), and whoever is waited for is computing, so that nobody ever waits in
a circle: it is the same order of groups for everybody.

Nobody waits for a worker that has no work (`on_idle`), or is gone (`on_leave`): it is taken out of its group.

Two group rounds are of everybody: a *full synchronisation*, which somebody asks for (`synchronise`) and to which also
those come that have no work, and the *last* one, after which the phase is over. Both make all replicas one state.

    >>> rule = Pairs((0, 1, 2), seed=0)
    >>> for worker in (0, 1, 2): rule.on_join(worker)
    >>> rule.on_arrival(1, at=0.0), [rule.on_arrival(worker, at=0.1) for worker in (0, 2)]
    ([], [[Group(members=(0,), is_full_sync=False)], [Group(members=(1, 2), is_full_sync=False)]])

Source: Luo et al., Prague: High-Performance Heterogeneity-Aware Asynchronous Decentralized Training, ASPLOS 2020
(Ripples, arXiv 1909.08029): its abstract; what is not said there is a reconstruction.
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
      members: in the order of their sum; one alone averages with nobody.
      is_full_sync: everybody is in it, and all replicas become one state.
    """

    members: tuple[int, ...]
    is_full_sync: bool = False


class GroupRule(ABC):
    """Follows arrivals, absences and group rounds of everybody, for every generator; a kind of it makes the groups.

    Args:
      members: worker ids of the phase.
      seed: of the draws.

    Attributes:
      due: when `on_time` wants to be called, in seconds of the clock that `at` is read from; infinite for never.
      averages_optimizer: whether groups average the optimizer's state too; those of everybody always do.
    """

    def __init__(self, members: tuple[int, ...], seed: int) -> None:
        self.members = members
        self.due = math.inf
        self.averages_optimizer = False
        self.random = Random(seed)
        self._present: dict[int, None] = {}
        self._idle: set[int] = set()
        self._waiting: dict[int, bool] = {}
        self._counts: dict[int, int] = {}
        self._synchronising = self._closing = False

    # --- what a driver tells; each returns the groups that start now ---

    def on_join(self, worker: int) -> None:
        """Count on `worker` from now on; who comes late is no further behind than the fastest is."""
        if worker not in self._present:
            self._present[worker] = None
            self._counts[worker] = max(self._counts.values(), default=0)

    def on_arrival(self, worker: int, at: float, *, last: bool = False) -> list[Group]:
        """Take in a worker that waits for its group; `last` says that it has no work any more."""
        assert worker in self._present, f"worker {worker} meets, but has not joined"
        assert worker not in self._waiting, f"worker {worker} meets twice"
        self._idle.discard(worker)
        self._counts[worker] += 1
        self._waiting[worker] = last
        self._closing = self._closing or last
        if not (self._closing or self._synchronising):
            self._arrive(worker, at)
        return self._settle(at)

    def on_idle(self, worker: int, at: float) -> list[Group]:
        """Let nobody wait for a worker that has no work and does not come by itself."""
        if worker not in self._present or worker in self._waiting or worker in self._idle:
            return []
        self._idle.add(worker)
        self._forget(worker)
        return self._settle(at)

    def on_leave(self, worker: int, at: float) -> list[Group]:
        """Let nobody wait for a worker that is gone."""
        for known in (self._present, self._waiting, self._counts):
            known.pop(worker, None)
        self._idle.discard(worker)
        self._forget(worker)
        return self._settle(at)

    def on_time(self, at: float) -> list[Group]:
        """Start what does not wait any longer."""
        return self._settle(at) if at >= self.due else []

    def synchronise(self, at: float) -> list[Group]:
        """Make the next group round one of everybody: what was made and has not started is dissolved."""
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
    def _ready(self, at: float) -> list[tuple[int, ...]]:
        """Take out and return the groups of waiting workers that start now."""

    @abstractmethod
    def _missing(self, worker: int) -> tuple[int, ...]:
        """Return whom a waiting worker waits for."""

    @abstractmethod
    def _forget(self, worker: int) -> None:
        """Take a worker that is not waiting out of whatever it was to be in."""

    @abstractmethod
    def _dissolve(self) -> None:
        """Forget the groups that have not started: whoever waits goes to a group round of everybody."""

    def _active(self) -> list[int]:
        """Workers with work, in the order of the phase."""
        return [worker for worker in self.members if worker in self._present and worker not in self._idle]

    # --- inside ---

    def _has_come(self, worker: int) -> bool:
        return self._waiting.get(worker, False) if self._closing else worker in self._waiting

    def _settle(self, at: float) -> list[Group]:
        if not (self._closing or self._synchronising):
            return [self._start(members) for members in self._ready(at)]
        started = []
        if self._closing:
            # Whoever has work left is not to wait for those that have none: it goes on alone, and comes for good later.
            self._dissolve()
            started = [self._start((worker,)) for worker, last in [*self._waiting.items()] if not last]
        if self._present and all(map(self._has_come, self._present)):
            self._synchronising = False
            members = tuple(worker for worker in self.members if worker in self._present)
            started.append(self._start(members, is_full_sync=True))
        return started

    def _start(self, members: tuple[int, ...], *, is_full_sync: bool = False) -> Group:
        for worker in members:
            del self._waiting[worker]
        return Group(members, is_full_sync)


class Divided(GroupRule):
    """Groups that are made ahead, of workers that still compute: the group buffer, group division and their filter.

    A worker whom another's request has put into a group gets that one (its group buffer). Else a `division` is made of
    the workers that are in none, on behalf of whoever asks. The filter leaves out workers that are `slowdown` requests
    or more behind the one that asks, so that a slow worker holds up nobody; when it asks itself, the others join it.

    Args:
      members, seed: see `GroupRule`.
      size: workers of a group, at least 2; one more or so where the free ones do not divide evenly.
      slowdown: requests that a worker may be behind; 0 leaves nobody out.
    """

    def __init__(self, members: tuple[int, ...], seed: int, size: int, slowdown: int) -> None:
        super().__init__(members, seed)
        self._size, self._slowdown = size, slowdown
        self._made: dict[int, list[int]] = {}

    def _arrive(self, worker: int, at: float) -> None:
        if worker in self._made:
            return
        for group in self._divide(worker, self._free(worker)):
            for member in group:
                self._made[member] = group

    def _free(self, worker: int) -> list[int]:
        """Return the other workers that are in no group and may join one on behalf of `worker`."""
        limit = self._counts[worker] - self._slowdown if self._slowdown else -math.inf
        return [
            other
            for other in self._active()
            if other != worker and other not in self._made and self._counts[other] > limit
        ]

    def _divide(self, worker: int, others: list[int]) -> list[list[int]]:
        """Return disjoint random groups of all, the first one with `worker`.

        They are as equal in size as they can be; `worker` is alone where nobody is free.
        """
        self.random.shuffle(others)
        order = [worker, *others]
        number = max(1, len(order) // self._size)
        return [order[index::number] for index in range(number)]

    def _ready(self, at: float) -> list[tuple[int, ...]]:
        ready = {min(group): group for group in self._made.values() if all(w in self._waiting for w in group)}
        for group in ready.values():
            for member in group:
                del self._made[member]
        return [tuple(sorted(group, key=self.members.index)) for group in ready.values()]

    def _missing(self, worker: int) -> tuple[int, ...]:
        return tuple(other for other in self._made[worker] if other not in self._waiting)

    def _forget(self, worker: int) -> None:
        group = self._made.pop(worker, None)
        if group is not None:
            group.remove(worker)

    def _dissolve(self) -> None:
        self._made.clear()


class Pairs(Divided):
    """One random partner for each worker that asks; the rest stays as it is."""

    def __init__(self, members: tuple[int, ...], seed: int) -> None:
        super().__init__(members, seed, size=2, slowdown=0)

    def _divide(self, worker: int, others: list[int]) -> list[list[int]]:
        return [[worker, self.random.choice(others)] if others else [worker]]


FORGET = 0.2
"""How much a new gap between arrivals counts in their mean."""


class Arrivals(GroupRule):
    """Whoever is ready within a short wait forms the group; the wait follows the gaps between arrivals.

    The first to come waits `patience` mean gaps between two arrivals of anybody, or until `size` workers are there.
    Every `period` group rounds of each worker everybody is called, so that no two workers are apart for long.

    Args:
      members, seed: see `GroupRule`.
      size: workers with whom a group does not wait any longer.
      patience: how many mean gaps it waits.
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

    def _ready(self, at: float) -> list[tuple[int, ...]]:
        waiting = [worker for worker in self.members if worker in self._waiting]
        enough = len(waiting) >= min(self._size, len(self._active()))
        if not waiting or not (enough or at >= self.due):
            return []
        self.due = math.inf
        return [tuple(waiting)]

    def _missing(self, worker: int) -> tuple[int, ...]:
        return tuple(other for other in self._active() if other not in self._waiting)

    def _forget(self, worker: int) -> None:
        """Do nothing: nobody is in a group before it starts."""

    def _dissolve(self) -> None:
        self.due = math.inf


class Scheduled(GroupRule):
    """Groups that a schedule fixes by the number of a worker's group round, for workers that are alike.

    A group does not wait for members that have passed that group round; those that have not come so far are waited for
    by nobody at an earlier one, so there is no circle.

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

    def _ready(self, at: float) -> list[tuple[int, ...]]:
        ready: dict[int, tuple[int, ...]] = {}
        for worker in self._waiting:
            if not self._missing(worker):
                group = tuple(self._group(worker))
                ready[group[0]] = group
        return [ready[first] for first in sorted(ready)]

    def _missing(self, worker: int) -> tuple[int, ...]:
        number = self._counts[worker]
        return tuple(w for w in self._group(worker) if w not in self._waiting or self._counts[w] != number)

    def _forget(self, worker: int) -> None:
        """Do nothing: whoever is idle or gone is in no group."""

    def _dissolve(self) -> None:
        """Do nothing: the schedule stays."""
