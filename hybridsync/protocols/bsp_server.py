"""BSP through the parameter server: one update on the mean of all workers' gradients of one version.

    server: hold g_i(w_t) until every worker has pushed;  w_{t+1} <- optimizer(w_t, mean_i g_i(w_t), rate = n * eta);
            reply w_{t+1} to all

The server does not wait for a worker that has no unit or is gone: m gradients then make an update of rate m * eta. It
drops a push on an older version, from a worker that it did not wait for, and a fresh unit takes the place of the
dropped one. The mathematics are those of `bsp`; the transfers are through the server, and a worker's death does not
pause the others.

Source: bulk synchronous parallel with a parameter server, as Sync-Switch (Li et al., ICDCS 2021) runs it; idleness is
ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hybridsync.protocols.base import Action, Apply, Arrival, Release, ServerRule
from hybridsync.protocols.scaling import scaled
from hybridsync.protocols.server_protocol import ServerProtocol, WaitingRule


class Barrier(WaitingRule):
    """One update for each version, on the first gradients of it; a bound of 0 keeps those of older ones away.

    Args:
      members: worker ids of the phase.
      num_needed: number of gradients that make an update, where so many workers are awaited.
    """

    def __init__(self, members: tuple[int, ...], num_needed: int) -> None:
        super().__init__(members)
        self._num_needed = num_needed
        self._held: dict[int, Arrival] = {}

    def add_push(self, arrival: Arrival) -> list[Action]:
        self._held[arrival.worker] = arrival
        return []

    def forget_worker(self, worker: int) -> None:
        self._held.pop(worker, None)

    def ready_actions(self) -> list[Action]:
        return self.on_last() if len(self._held) >= min(self._num_needed, len(self.awaited)) else []

    def on_last(self) -> list[Action]:
        if not self._held:
            return []
        held = [self._held[worker] for worker in sorted(self._held)]
        self._held = {}
        pushes = tuple(arrival.push_id for arrival in held)
        rate = float(sum(len(arrival.units) for arrival in held))
        return [Apply(pushes, rate), *(Release(push) for push in pushes)]


@dataclass(frozen=True)
class BspServer(ServerProtocol):
    """Lock-step through the server (see the module's docstring)."""

    name: ClassVar[str] = "bsp_server"
    awaits_workers: ClassVar[bool] = True

    def rule(self, members: tuple[int, ...]) -> ServerRule:
        return Barrier(members, len(members))

    def units_per_update(self, num_workers: int) -> int:
        return num_workers

    def lr_factor(self, num_units: int, num_workers: int) -> float:
        return scaled(num_units, self.scaling)

    def rule_bound(self, num_workers: int) -> int | None:
        return 0
