"""Groups that are made ahead and stand in one order for everybody: Ripples' group generator, as a machine without IO.

A worker that comes *asks* for a group. A made group is *pending* until all of its members are there and *free*: none of
them is in an earlier pending group. A look at the pending groups in their order marks the members of each as locked
(the lock vector), and a group with a locked member continues to wait (a conflict). All groups stand in this one order,
and a worker takes part in its own in that order. So the members of the first pending group wait only for workers that
compute: none waits in a circle.

By itself each request makes a new group, drawn at random and independent of what others hold; the worker that asks
continues after that group, and before takes part in those that others have drawn it into. Three things make conflicts
rare:

    buffer      a worker that is in a pending group takes its first one, instead of making a new one
    division    all free workers are divided into groups at once, where one asks
    slowdown    workers that are so many requests behind the asking worker are left out

    >>> rule = Queued((0, 1, 2, 3), seed=0, size=2)
    >>> for worker in range(4): rule.on_join(worker)
    >>> [group.members for worker in (2, 3, 0, 1) for group in rule.on_arrival(worker, at=0.0)]
    [(2, 3), (0, 1)]

Source: Luo et al., Prague, ASPLOS 2020 (Ripples, arXiv 1909.08029): lock vector, pending queue, one order, group
buffer, group division, slowdown filter, and the two phases of inter and intra synchronisation. Their bodies could not
be read: how one is worked into the other is a reconstruction.
"""

from __future__ import annotations

import math

from hybridsync.protocols.group_generators import Group, GroupRule
from hybridsync.protocols.group_size import GroupSize


class Queued(GroupRule):
    """Random groups in one order (see the module's docstring).

    Args:
      members, seed: see `GroupRule`.
      size: workers of a group, at least 2; in a division more where the free ones do not divide evenly. Or what chooses
        it.
      buffer: whether a worker that asks takes a pending group that it is in.
      division: whether all free workers are divided where one asks.
      slowdown: maximum lag, in requests, of a worker behind the one that asks; 0 disables the limit. When a slow worker
        asks itself, others join it.
    """

    def __init__(
        self,
        members: tuple[int, ...],
        seed: int,
        size: int | GroupSize,
        *,
        buffer: bool = True,
        division: bool = True,
        slowdown: int = 0,
    ) -> None:
        super().__init__(members, seed)
        self._buffer, self._division, self._slowdown = buffer, division, slowdown
        self._sizes = GroupSize(size, size) if isinstance(size, int) else size
        self._pending: list[list[int]] = []  # in the one order
        self._asked: dict[int, list[int]] = {}  # waits, or comes back at once -> the group to continue after

    def _measure(self, worker: int, at: float, average_secs: float) -> None:
        self._sizes.on_request(worker, at, average_secs)

    def _arrive(self, worker: int, at: float) -> None:
        if worker in self._asked:
            return
        own = self._first(worker) if self._buffer else None
        if own is None:
            made = self._make(worker)
            self._pending += made
            own = next(group for group in made if worker in group)
        self._asked[worker] = own

    def _first(self, worker: int) -> list[int] | None:
        return next((group for group in self._pending if worker in group), None)

    # --- making groups ---

    def _make(self, worker: int) -> list[list[int]]:
        """Return new groups on behalf of `worker`, which is in at least one: alone where nobody may join it."""
        if self._division:
            return self._divided(worker, self._free(worker))
        others = self._joining(worker)
        return [[worker, *self.random.sample(others, min(self._sizes.size - 1, len(others)))]]

    def _joining(self, worker: int) -> list[int]:
        """Return the other workers that may join a group on behalf of `worker`."""
        limit = self._counts[worker] - self._slowdown if self._slowdown else -math.inf
        return [other for other in self._active() if other != worker and self._counts[other] > limit]

    def _free(self, worker: int) -> list[int]:
        """Return those of them that are in no pending group."""
        return [other for other in self._joining(worker) if self._first(other) is None]

    def _divided(self, first: int, others: list[int]) -> list[list[int]]:
        """Return disjoint random groups of all, as equal in size as they can be, the first one with `first`."""
        self.random.shuffle(others)
        order = [first, *others]
        number = max(1, len(order) // self._sizes.size)
        return [order[index::number] for index in range(number)]

    # --- which of them start ---

    def _ready(self, at: float) -> list[Group]:
        locked: set[int] = set()
        ready, pending = [], []
        for group in self._pending:
            if locked.isdisjoint(group) and all(map(self._is_there, group)):
                ready.append(group)
            else:
                pending.append(group)
            locked.update(group)
        self._pending = pending
        return [self._begun(group, at) for group in ready]

    def _begun(self, group: list[int], at: float) -> Group:
        going = [worker for worker in group if self._asked.get(worker) is group]
        again = tuple(worker for worker in group if worker in self._waiting and worker not in going)
        for worker in going:
            del self._asked[worker]
            self._sizes.on_start(worker, at, len(group))
        return Group(tuple(sorted(group, key=self.members.index)), again=again)

    def _missing(self, worker: int) -> tuple[int, ...]:
        group = self._first(worker)
        assert group is not None, f"worker {worker} waits for no group"
        return tuple(other for other in group if not self._is_there(other) or self._first(other) is not group)

    def _forget(self, worker: int) -> None:
        self._asked.pop(worker, None)
        for group in self._pending:
            if worker in group:
                group.remove(worker)
        self._pending = [group for group in self._pending if group]

    def _dissolve(self) -> None:
        self._pending.clear()
        self._asked.clear()
        self._sizes.forget_starts()


class TwoPhase(Queued):
    """Divisions in two phases for nodes whose workers share a slow port: across the nodes, then inside them.

    Where a worker asks that is in no pending group, the free workers are divided twice. First the heads of the nodes,
    one of each drawn at random, form random groups, and the others form random groups inside their nodes. After that
    come the nodes as a whole. The first phase is a worker's next group, and the second the one after it. One node has
    no phases: its head would have nobody to meet in the first, ask half as often, and be left out for a slow worker.

    The slowdown filter counts from the worker that has asked most, not from the worker that asks: a worker that shares
    a node with a slow one meets it again and again, is as many requests behind, and would continue to join it. And a
    slow worker that asks itself is in the first phase only, because in the second its node would wait a whole unit for
    it.

    Args:
      members, seed, size, slowdown: see `Queued`.
      node: workers of a node, in the order of `members`.
    """

    def __init__(
        self, members: tuple[int, ...], seed: int, size: int | GroupSize, *, node: int, slowdown: int = 0
    ) -> None:
        super().__init__(members, seed, size, slowdown=slowdown)
        self._node = node

    def _make(self, worker: int) -> list[list[int]]:
        if len(self.members) <= self._node:
            return super()._make(worker)
        nodes: dict[int, list[int]] = {}
        for each in sorted([worker, *self._free(worker)], key=self.members.index):
            nodes.setdefault(self.members.index(each) // self._node, []).append(each)
        heads = [self.random.choice(inside) for inside in nodes.values()]
        across = self._drawn(heads)
        inside = [group for node in nodes.values() for group in self._drawn([w for w in node if w not in heads])]
        whole = [self._keeping_up(node) for node in nodes.values()]
        made = [group for group in (*across, *inside, *whole) if len(group) > 1]
        return made if any(worker in group for group in made) else [*made, [worker]]

    def _joining(self, worker: int) -> list[int]:
        if len(self.members) <= self._node:
            return super()._joining(worker)
        return [other for other in self._keeping_up(self._active()) if other != worker]

    def _drawn(self, workers: list[int]) -> list[list[int]]:
        return self._divided(workers[0], workers[1:]) if workers else []

    def _keeping_up(self, workers: list[int]) -> list[int]:
        limit = max(self._counts.values()) - self._slowdown if self._slowdown else -math.inf
        return [worker for worker in workers if self._counts[worker] > limit]
