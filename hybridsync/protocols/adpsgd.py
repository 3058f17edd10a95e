"""AD-PSGD, asynchronous decentralised SGD: a worker averages with one random other, then applies its gradient.

    worker i: compute g_i(x_i); x_i, x_j <- (x_i + x_j) / 2 for a random j, atomically; x_i <- optimizer(x_i, g_i)

A worker computes and serves at once: a worker that draws it as a partner averages with it while it computes, and its
gradient is then applied to the averaged copy. Pairs that share a worker stand in one order for everybody
(`group_queue.py`), so that none of them is waited for in a circle. Parameters only are averaged. A local update has the
rate n * eta, as in `preduce`. `overlap=false` is a twin with one thread: the partner takes part between two of its own
units.

Source: Lian, Zhang, Zhang, Liu, Asynchronous Decentralized Parallel Stochastic Gradient Descent, ICML 2018. There the
workers' graph is bipartite, against circles; the one order instead is a reconstruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hybridsync.protocols.base import AverageReplicas, Compute, JoinRound, Lease, LocalUpdate, Program, Protocol
from hybridsync.protocols.group_generators import GroupRule
from hybridsync.protocols.group_queue import Queued
from hybridsync.protocols.modes import GROUP, SyncMode


@dataclass(frozen=True)
class AdPsgd(Protocol):
    """Atomic averaging of a random pair (see the module's docstring).

    Args:
      overlap: whether a worker averages with whoever asks while it computes; false is a twin to compare with.
    """

    overlap: bool = True
    name: ClassVar[str] = "adpsgd"
    mode: ClassVar[SyncMode] = GROUP

    def worker_program(self, num_workers: int) -> Program:
        while (units := (yield Lease())) is not None:
            gradient = (yield Compute(units)) if units else None
            yield AverageReplicas((yield JoinRound()))
            if units:
                yield LocalUpdate(gradient)
        yield AverageReplicas((yield JoinRound(last=True)))

    @property
    def serves_averages(self) -> bool:
        return self.overlap

    def group_rule(self, members: tuple[int, ...], seed: int) -> GroupRule:
        return Queued(members, seed, 2, buffer=False, division=False)

    def units_per_update(self, num_workers: int) -> int:
        """Return n: so many local updates move the mean of the replicas as one update of n units does."""
        return num_workers

    def lr_factor(self, num_units: int, num_workers: int) -> float:
        return float(num_workers)
