"""AD-PSGD, asynchronous decentralised SGD: a worker averages with one random other, then applies its gradient.

    worker i: compute g_i(x_i); x_i, x_j <- (x_i + x_j) / 2 for a random j, atomically; x_i <- optimizer(x_i, g_i)

The partner takes part between two of its own units, so whoever asks waits for it; a pair under way is left alone, which
makes it atomic. Where nobody is free a worker goes on alone. Parameters only are averaged. A local update has the rate
n * eta, as in `preduce`.

Source: Lian, Zhang, Zhang, Liu, Asynchronous Decentralized Parallel Stochastic Gradient Descent, ICML 2018; there a
second thread of each worker takes part in averages while the first one computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hybridsync.protocols.base import AverageReplicas, Compute, JoinRound, Lease, LocalUpdate, Program, Protocol
from hybridsync.protocols.group_generators import GroupRule, Pairs
from hybridsync.protocols.modes import GROUP, SyncMode


@dataclass(frozen=True)
class AdPsgd(Protocol):
    """Atomic averaging of a random pair (see the module's docstring)."""

    name: ClassVar[str] = "adpsgd"
    mode: ClassVar[SyncMode] = GROUP

    def worker_program(self, num_workers: int) -> Program:
        while (units := (yield Lease())) is not None:
            gradient = (yield Compute(units)) if units else None
            yield AverageReplicas((yield JoinRound()))
            if units:
                yield LocalUpdate(gradient)
        yield AverageReplicas((yield JoinRound(last=True)))

    def group_rule(self, members: tuple[int, ...], seed: int) -> GroupRule:
        return Pairs(members, seed)

    def units_per_update(self, num_workers: int) -> int:
        """Return n: so many local updates move the mean of the replicas as one update of n units does."""
        return num_workers

    def lr_factor(self, num_units: int, num_workers: int) -> float:
        return float(num_workers)
