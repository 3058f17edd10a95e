"""SSP, stale synchronous parallel: nobody is more than s iterations ahead of the slowest worker.

    server: w <- optimizer(w, g_i, rate = eta) on arrival;  clock_i += 1;  reply w to i as soon as
            clock_i - min_j clock_j <= s

s = 0 is lock-step with n updates a round. A worker that joins begins at the slowest one's clock. The server does not
wait for a worker that has no unit or is gone.

**Staleness**, in updates, is at most (n - 1)(2s + 1): when i is answered at its clock c, no other clock is below c - s;
before its next push arrives the slowest clock is at most c, so any other worker begins its last iteration at c + s or
below and ends it at c + s + 1: 2s + 1 updates of each. A worker that was not waited for may exceed that; its push is
dropped.

Source: Ho, Cipar, Cui et al., "More effective distributed ML via a stale synchronous parallel parameter server",
NIPS 2013; s = 3 by default. Idleness and the bound in updates are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hybridsync.protocols.base import Action, Apply, Arrival, Release, ServerRule
from hybridsync.protocols.server_protocol import ServerProtocol, WaitingRule, check_not_negative


class Gate(WaitingRule):
    """Applies on arrival, and lets a worker that is too far ahead of the slowest wait for the reply.

    Args:
      members: worker ids of the phase.
      staleness: iterations that a worker may be ahead of the slowest, s; infinite for any number.
    """

    def __init__(self, members: tuple[int, ...], staleness: float) -> None:
        super().__init__(members)
        self._staleness = staleness
        self._clocks = dict.fromkeys(members, 0)
        self._waiting: dict[int, int] = {}

    @property
    def slowest(self) -> int | None:
        """The lowest clock of those who are awaited; None where nobody is."""
        return min((self._clocks[worker] for worker in self.awaited), default=None)

    def begin(self, worker: int) -> None:
        slowest = self.slowest
        if slowest is not None:
            self._clocks[worker] = max(self._clocks[worker], slowest)

    def add_push(self, arrival: Arrival) -> list[Action]:
        self._clocks[arrival.worker] += 1
        self._waiting[arrival.worker] = arrival.push_id
        return [Apply((arrival.push_id,), lr_factor=1.0)]

    def forget_worker(self, worker: int) -> None:
        self._waiting.pop(worker, None)

    def may_go_on(self, worker: int, slowest: int | None) -> bool:
        """Return whether `worker` may begin its next iteration."""
        return slowest is None or self._clocks[worker] - slowest <= self._staleness

    def ready_actions(self) -> list[Action]:
        slowest = self.slowest
        return self._answer([worker for worker in self._waiting if self.may_go_on(worker, slowest)])

    def on_last(self) -> list[Action]:
        return self._answer([*self._waiting])

    def _answer(self, workers: list[int]) -> list[Action]:
        return [Release(self._waiting.pop(worker)) for worker in workers]


@dataclass(frozen=True)
class Ssp(ServerProtocol):
    """A bounded lead (see the module's docstring).

    Args:
      staleness: iterations that a worker may be ahead of the slowest, s.
    """

    staleness: int = 3
    name: ClassVar[str] = "ssp"
    awaits_workers: ClassVar[bool] = True

    def rule(self, members: tuple[int, ...]) -> ServerRule:
        check_not_negative(self.name, staleness=self.staleness)
        return Gate(members, self.staleness)

    def units_per_update(self, num_workers: int) -> int:
        return 1

    def lr_factor(self, num_units: int, num_workers: int) -> float:
        return 1.0

    def rule_bound(self, num_workers: int) -> int | None:
        return (num_workers - 1) * (2 * self.staleness + 1)
