"""Partial all-reduce (Ripples, published as Prague): local steps, then an average of parameters with a small group.

    worker i: compute g_i(x_i); x_i <- optimizer(x_i, g_i, rate = n * eta); x_j <- mean of x over G, for all j in G

Every worker has its own parameters and optimizer state. With `every=L` it meets a group after L units. The *group
generator* (`group_generators.py`) chooses the members of G:

    groups=random    groups are made ahead at random: `buffer`, `division` and the slowdown filter keep them from
                     conflicts, and without all three this is the naive generator (`group_queue.py`)
    groups=inter     the same in two phases: heads across nodes while the others meet inside theirs; then every node
    groups=arrival   those ready within a short wait that follows the arrivals, with a full synchronisation every
                     `period` group rounds
    groups=static    a fixed schedule of four group rounds for alike nodes of `node` workers

The mean of all replicas moves by the mean of their updates, so a local step has the rate n * eta: with one group of all
and plain SGD this is BSP.

Source: Luo et al., ASPLOS 2020 and arXiv 1909.08029, the abstracts; the static schedule follows the authors' code; what
both leave out (group size, the filter's C, how the two phases follow one another) is a reconstruction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from hybridsync.core.errors import ConfigError
from hybridsync.core.plan import MOST_ENTRIES
from hybridsync.protocols.base import AverageReplicas, Compute, JoinRound, Lease, LocalUpdate, Program, Protocol
from hybridsync.protocols.group_generators import Arrivals, GroupRule, Schedule, Scheduled
from hybridsync.protocols.group_queue import Queued, TwoPhase
from hybridsync.protocols.group_size import GroupSize
from hybridsync.protocols.modes import GROUP, SyncMode

KINDS = ("random", "arrival", "static", "inter")
AUTO = "auto"
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PReduce(Protocol):
    """Averaging of parameters in groups (see the module's docstring).

    Args:
      groups: kind of group generator: "random", "arrival", "static" or "inter".
      every: units of a worker between two meetings; it comes sooner where none are left or all are called.
      size: number of workers of a group, at least 2, or "auto" with "random" and "inter"; with "arrival" the number at
        which a group does not wait any longer.
      buffer: with "random": a worker that is in a waiting group takes that one, instead of asking for another.
      division: with "random": where one asks, all free workers are divided into groups at once.
      slowdown: with "random" and "inter": maximum lag, in requests, of a worker behind the one that asks; 0 disables
        the limit.
      patience: with "arrival": the wait, in mean gaps between two arrivals.
      period: with "arrival": group rounds of each worker between full synchronisations; 0 for none.
      node: with "static" and "inter": workers of a node.
      momentum: whether groups average the optimizer's state too.

    Raises:
      ConfigError: a value is none of these.
    """

    groups: str = "random"
    every: int = 1
    size: int | Literal["auto"] = 2
    buffer: bool = True
    division: bool = True
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
        if self.size == AUTO:
            if self.groups not in ("random", "inter"):
                raise ConfigError(
                    f"preduce(groups={self.groups},size=auto) measures groups that are not drawn; give a number of "
                    "workers, or groups=random or inter"
                )
            del least["size"]
        if self.groups != "random" and not (self.buffer and self.division):
            off = "buffer" if not self.buffer else "division"
            raise ConfigError(
                f"preduce(groups={self.groups},{off}=false) has no {off} to turn off; write groups=random"
            )
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
        if self.groups == "static":
            return Scheduled(members, seed, static_schedule(len(members), self.node))
        if isinstance(self.size, int) and self.groups == "arrival":
            return Arrivals(members, seed, self.size, self.patience, self.period)
        size = GroupSize(2, len(members)) if self.size == AUTO else self.size
        if self.groups == "inter":
            return TwoPhase(members, seed, size, node=self.node, slowdown=self.slowdown)
        switches = {"buffer": self.buffer, "division": self.division}
        return Queued(members, seed, size, slowdown=self.slowdown, **switches)

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
