"""Partial all-reduce (Ripples, published as Prague): local steps, then an average of parameters with a small group.

    worker i: compute g_i(x_i); x_i <- optimizer(x_i, g_i, rate = n * eta); x_j <- mean of x over G, for all j in G

Every worker has its own parameters and optimizer state. With `every=L` it meets a group after L units. The *group
generator* (`group_generators.py`) says who is in G:

    groups=random    groups are made ahead by dividing all free workers at random; the slowdown filter leaves out who is
                     `slowdown` requests behind
    groups=arrival   whoever is ready within a short wait that follows the arrivals, with a full synchronisation every
                     `period` group rounds
    groups=static    a fixed schedule of four group rounds for alike nodes of `node` workers
    groups=inter     in turn: the heads of the nodes across nodes, the others inside theirs; then every node inside

The mean of all replicas moves by the mean of their updates, so a local step has the rate n * eta: with one group of all
and plain SGD this is BSP.

Source: Luo et al., ASPLOS 2020 and arXiv 1909.08029, the abstracts; the static schedule follows the authors' code; what
neither says (group size, the filter's C, when the heads meet) is a reconstruction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from hybridsync.core.errors import ConfigError
from hybridsync.core.plan import MOST_ENTRIES
from hybridsync.protocols.base import AverageReplicas, Compute, JoinRound, Lease, LocalUpdate, Program, Protocol
from hybridsync.protocols.group_generators import Arrivals, Divided, GroupRule, Scheduled
from hybridsync.protocols.modes import GROUP, SyncMode

KINDS = ("random", "arrival", "static", "inter")
Groups = tuple[tuple[int, ...], ...]
Schedule = tuple[Groups, ...]


@dataclass(frozen=True)
class PReduce(Protocol):
    """Averaging of parameters in groups (see the module's docstring).

    Args:
      groups: how they are made: "random", "arrival", "static" or "inter".
      every: units of a worker between two meetings; it comes sooner where no units are left.
      size: workers of a group, at least 2; with "arrival" how many do not wait any longer.
      slowdown: with "random": requests by which a worker is left out; 0 leaves nobody out.
      patience: with "arrival": the wait, in mean gaps between two arrivals.
      period: with "arrival": group rounds of each worker between full synchronisations; 0 for none.
      node: with "static" and "inter": workers of a node.
      momentum: whether groups average the optimizer's state too.

    Raises:
      ConfigError: a value is none of these.
    """

    groups: str = "random"
    every: int = 1
    size: int = 2
    slowdown: int = 4
    patience: float = 1.0
    period: int = 16
    node: int = 4
    momentum: bool = False
    name: ClassVar[str] = "preduce"
    mode: ClassVar[SyncMode] = GROUP

    def __post_init__(self) -> None:
        if self.groups not in KINDS:
            raise ConfigError(f"preduce(groups={self.groups}) is unknown; write one of {', '.join(KINDS)}")
        least = {"every": 1, "size": 2, "slowdown": 0, "patience": 0, "period": 0, "node": 1}
        for name, bound in least.items():
            if not bound <= getattr(self, name) < math.inf:
                told = f"preduce({name}={getattr(self, name)}) is below {bound} or not finite"
                raise ConfigError(f"{told}; give a finite number from {bound} on")

    @property
    def units_between_rounds(self) -> int:
        return self.every

    def worker_program(self, num_workers: int) -> Program:
        num_units = 0  # since the last meeting
        while (units := (yield Lease())) is not None:
            if units:
                gradient = yield Compute(units)
                yield LocalUpdate(gradient)
                num_units += 1
            if not units or num_units == self.every:
                yield AverageReplicas((yield JoinRound()))
                num_units = 0
        yield AverageReplicas((yield JoinRound(last=True)))

    def group_rule(self, members: tuple[int, ...], seed: int) -> GroupRule:
        if (told := self.every * len(members)) > MOST_ENTRIES:
            raise ConfigError(
                f"preduce(every={self.every}) of {len(members)} workers tells of {told:,} units at a time, above the "
                f"{MOST_ENTRIES:,} of a message; give fewer"
            )
        rule = self._rule(members, seed)
        rule.averages_optimizer = self.momentum
        return rule

    def _rule(self, members: tuple[int, ...], seed: int) -> GroupRule:
        if self.groups == "random":
            return Divided(members, seed, self.size, self.slowdown)
        if self.groups == "arrival":
            return Arrivals(members, seed, self.size, self.patience, self.period)
        make = static_schedule if self.groups == "static" else inter_schedule
        return Scheduled(members, seed, make(len(members), self.node))

    def units_per_update(self, num_workers: int) -> int:
        """Return n: so many local updates move the mean of the replicas as one update of n units does."""
        return num_workers

    def lr_factor(self, num_units: int, num_workers: int) -> float:
        return float(num_workers)


def static_schedule(num_workers: int, node: int) -> Schedule:
    """Return the groups of four group rounds in turn, of positions; the last node may be smaller.

    With l the position in the node: first l=0 across nodes, l=1 alone, the others together; then the whole node; then
    the first and the last together, l=1 across nodes, the others alone or together; then the whole node again.

    >>> static_schedule(8, 4)[0]
    ((0, 4), (1,), (2, 3), (5,), (6, 7))
    >>> static_schedule(8, 4)[2]
    ((0, 3), (1, 5), (2,), (4, 7), (6,))
    """
    nodes = nodes_of(num_workers, node)
    first = [(members[1:2], members[2:]) for members in nodes]
    third = [(members[:1] + members[max(2, node - 1) :], members[2 : node - 1]) for members in nodes]
    return _group_round(nodes, 0, first), nodes, _group_round(nodes, 1, third), nodes


def inter_schedule(num_workers: int, node: int) -> Schedule:
    """Return the groups of two group rounds in turn: heads across nodes and the others inside; then every node inside.

    >>> inter_schedule(6, 3)
    (((0, 3), (1, 2), (4, 5)), ((0, 1, 2), (3, 4, 5)))
    """
    nodes = nodes_of(num_workers, node)
    return _group_round(nodes, 0, [(members[1:],) for members in nodes]), nodes


def nodes_of(num_workers: int, node: int) -> Groups:
    """Return the positions of each node; the last one may be smaller.

    >>> nodes_of(5, 2)
    ((0, 1), (2, 3), (4,))
    """
    return tuple(tuple(range(first, min(first + node, num_workers))) for first in range(0, num_workers, node))


def _group_round(nodes: Groups, across: int, inside: list[tuple[tuple[int, ...], ...]]) -> Groups:
    """Return a group round: the position `across` of every node together, and the groups that are inside them."""
    groups = [group for each in inside for group in each if group]
    heads = tuple(members[across] for members in nodes if len(members) > across)
    return tuple(sorted([heads, *groups] if heads else groups))
