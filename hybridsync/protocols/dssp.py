"""DSSP, dynamic stale synchronous parallel: SSP whose threshold follows the workers' speeds.

As `ssp` with s = lower; but when the fastest worker p would have to wait, the server grants it up to `range` iterations
more: with I the interval between a worker's two latest pushes and t the latest,

    r* = argmin over 0 <= r <= range of  min over 1 <= k <= range of  |(t_slow + k * I_slow) - (t_p + r * I_p)|

that is as many as let it end as near as can be to a push of the slowest, where the wait is short. Between lower and
lower + range the lead is thus what costs least. Staleness in updates is at most that of `ssp` with s = lower + range.

Source: Zhao, An, Liu, Chen, "Dynamic stale synchronous parallel distributed training for deep learning", ICDCS 2019
(arXiv 1908.11848), algorithms 1 and 2. Reconstruction: ties take the fewest iterations; what is left of a grant when
the slowest has come near is forgotten; times of a worker that was away are not compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hybridsync.protocols.base import Action, Arrival, ServerRule
from hybridsync.protocols.server_protocol import ServerProtocol, check_not_negative
from hybridsync.protocols.ssp import Gate


class _Dynamic(Gate):
    def __init__(self, members: tuple[int, ...], lower: int, extra: int) -> None:
        super().__init__(members, lower)
        self._lower, self._extra = lower, extra
        self._times: dict[int, tuple[float, ...]] = {}
        self._granted = dict.fromkeys(members, 0)
        self._free: set[int] = set()

    def begin(self, worker: int) -> None:
        super().begin(worker)
        self._times.pop(worker, None)
        self._granted[worker] = 0

    def add_push(self, arrival: Arrival) -> list[Action]:
        worker = arrival.worker
        self._times[worker] = (*self._times.get(worker, ())[-1:], arrival.at)
        self._free.discard(worker)
        actions = super().add_push(arrival)
        clocks = {other: self._clocks[other] for other in self.awaited}
        lead = clocks[worker] - min(clocks.values())
        if lead <= self._lower:
            self._granted[worker] = 0
            return actions
        if not self._granted[worker] and clocks[worker] == max(clocks.values()):
            self._granted[worker] = self._iterations(worker, min(clocks, key=lambda other: (clocks[other], other)))
        if self._granted[worker] and lead <= self._lower + self._extra:
            self._granted[worker] -= 1
            self._free.add(worker)
        return actions

    def may_go_on(self, worker: int, slowest: int | None) -> bool:
        return worker in self._free or super().may_go_on(worker, slowest)

    def _iterations(self, fastest: int, slowest: int) -> int:
        """Return how many iterations more are granted to the fastest worker, r*."""
        own, other = self._times[fastest], self._times.get(slowest, ())
        if len(own) < 2 or len(other) < 2:
            return 0
        comes = [other[1] + k * (other[1] - other[0]) for k in range(1, self._extra + 1)]
        ends = [own[1] + r * (own[1] - own[0]) for r in range(self._extra + 1)]
        gaps = [min((abs(come - end) for come in comes), default=0.0) for end in ends]
        return gaps.index(min(gaps))


@dataclass(frozen=True)
class Dssp(ServerProtocol):
    """A lead whose bound follows the speeds (see the module's docstring).

    Args:
      lower: iterations that a worker may always be ahead of the slowest.
      range: maximum number of further iterations that the fastest may be granted.
    """

    lower: int = 3
    range: int = 12
    name: ClassVar[str] = "dssp"
    awaits_workers: ClassVar[bool] = True

    def rule(self, members: tuple[int, ...]) -> ServerRule:
        check_not_negative(self.name, lower=self.lower, range=self.range)
        return _Dynamic(members, self.lower, self.range)

    def units_per_update(self, num_workers: int) -> int:
        return 1

    def lr_factor(self, num_units: int, num_workers: int) -> float:
        return 1.0

    def rule_bound(self, num_workers: int) -> int | None:
        return (num_workers - 1) * (2 * (self.lower + self.range) + 1)
