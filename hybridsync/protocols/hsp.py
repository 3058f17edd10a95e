"""HSP, hybrid synchronous parallelism: lock-step, gradients one at a time, and stale computing where a wait is long.

    server, iteration t: for worker i in the order its READY came: g_i = transfer(i)         # one at a time
                         w_{t+1} <- optimizer(w_t, mean_i g_i, rate = n * eta);  reply w_{t+1} to all
    worker i:            compute g_i; READY; when it is granted, send g_i; until w_{t+1} comes:
                         if predicted wait >= rho * T_compute and fewer than S stale units in a row:
                         start the next unit on w_t, else wait

No two transfers contend: each has the whole link, so that the first gradients are in, and their workers free, long
before the last. The wait ends when w_{t+1} has arrived, for one worker after another in the order of their gradients.
It is predicted by the rule from the calls that it saw: T_compute of a worker from its last answer to its READY, the
shortest of four, T_transfer from its grant to its push; the transfers that are still to come are laid one behind
another. Without an estimate nobody computes stale, nor does who brought the last gradient: its wait is over. A stale
gradient is in the next update for certain, so staleness is at most 1.

The transfers of `bsp_server` stagger its workers, so that a round takes T_compute + n * T_transfer there. Here, with S
= 1 and equal workers, one half comes to compute stale in each round and the other half in the next: while those who
have w_{t+1} compute, the others' gradients pass, and a round takes about T_compute + n * T_transfer / 2; a larger S
saves the wait of who was stale before. It pays where n * T_transfer is not small against T_compute.

Source: Li, Huang et al., "Hybrid synchronous parallelism ...", ICPP 2022 (doi 10.1145/3545008.3545024), by its
abstract. The protocol is a reconstruction, and so are rho = 0.5, S = 1 and the prediction.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from hybridsync.core.errors import ConfigError
from hybridsync.protocols.base import (
    Action,
    Apply,
    Arrival,
    Compute,
    Grant,
    Lease,
    Program,
    Pull,
    PushPull,
    Ready,
    Release,
    ServerRule,
    scaled,
)
from hybridsync.protocols.server_protocol import ServerProtocol, WaitingRule, check_not_negative

SHORTEST_OF = 4
"""Of so many times from an answer to READY the shortest holds the least of the answer's own transfer."""


class _Turns(WaitingRule):
    """Grants one transfer at a time, and makes an update of the gradients of all who are awaited.

    Args:
      members: of the phase.
      rho: share of a worker's compute time that its wait has to last for it to compute stale.
      stale: stale units of a worker in a row.
    """

    def __init__(self, members: tuple[int, ...], rho: float, stale: int) -> None:
        super().__init__(members)
        self._rho, self._stale = rho, stale
        self._ready: dict[int, float] = {}
        self._granted: tuple[int, float] | None = None
        self._held: dict[int, list[Arrival]] = {}
        self._waiting: dict[int, int] = {}
        self._in_a_row = dict.fromkeys(members, 0)
        self._answered_at: dict[int, float] = {}
        self._taken: dict[int, deque[float]] = {}
        self._compute_secs: dict[int, float] = {}
        self._transfer_secs: dict[int, float] = {}
        self._now = 0.0

    def on_ready(self, worker: int, at: float) -> list[Action]:
        self._now = at
        self._enter(worker)
        self._ready[worker] = at
        if worker in self._answered_at:
            taken = self._taken.setdefault(worker, deque(maxlen=SHORTEST_OF))
            taken.append(at - self._answered_at[worker])
            self._compute_secs[worker] = min(taken)
        return self.ready_actions()

    def on_join(self, worker: int) -> list[Action]:
        self._end_turn(worker)
        return super().on_join(worker)

    def on_idle(self, worker: int) -> list[Action]:
        self._end_turn(worker)
        return super().on_idle(worker)

    def forget_worker(self, worker: int) -> None:
        self._end_turn(worker)
        for known in (
            self._held,
            self._waiting,
            self._answered_at,
            self._taken,
            self._compute_secs,
            self._transfer_secs,
        ):
            known.pop(worker, None)

    def add_push(self, arrival: Arrival) -> list[Action]:
        worker, self._now = arrival.worker, arrival.at
        if self._granted is not None and self._granted[0] == worker:
            self._transfer_secs[worker] = arrival.at - self._granted[1]
        self._end_turn(worker)
        self._held.setdefault(worker, []).append(arrival)  # a second one was not granted: its unit was another's before
        self._waiting[worker] = arrival.push_id
        if not self._computes_stale(worker):
            return []
        self._in_a_row[worker] += 1
        return self._answer([worker])

    def ready_actions(self) -> list[Action]:
        actions = []
        if self._held and all(worker in self._held for worker in self.awaited):
            actions = self.on_last()
        if self._granted is None:
            chosen = next((worker for worker in self._ready if worker not in self._held), None)
            if chosen is not None:
                self._granted = chosen, self._now
                del self._ready[chosen]
                actions.append(Grant(chosen))
        return actions

    def on_last(self) -> list[Action]:
        if not self._held:
            return []
        held, self._held = [arrival for arrivals in self._held.values() for arrival in arrivals], {}
        rate = float(sum(len(arrival.units) for arrival in held))
        for worker in self._waiting:
            self._in_a_row[worker] = 0
        return [Apply(tuple(arrival.push_id for arrival in held), rate), *self._answer([*self._waiting])]

    def _answer(self, workers: list[int]) -> list[Action]:
        for worker in workers:
            self._answered_at[worker] = self._now
        return [Release(self._waiting.pop(worker)) for worker in workers]

    def _end_turn(self, worker: int) -> None:
        self._ready.pop(worker, None)
        if self._granted is not None and self._granted[0] == worker:
            self._granted = None

    def _computes_stale(self, worker: int) -> bool:
        own = self._compute_secs.get(worker)
        if own is None or self._in_a_row[worker] >= self._stale:
            return False
        wait = self._wait_secs()
        return wait is not None and wait >= self._rho * own

    def _wait_secs(self) -> float | None:
        """Return how long the next update is expected to take to reach who waits last; None: unknown, or now."""
        comes: list[tuple[float, int]] = []
        for other in self.awaited:
            if other in self._held:
                continue
            if other in self._ready:
                comes.append((self._now, other))
            elif other in self._compute_secs and other in self._transfer_secs:
                comes.append((self._answered_at[other] + self._compute_secs[other], other))
            else:
                return None
        if not comes:
            return None
        end = self._now
        for at, other in sorted(comes):
            end = max(end, at) + self._transfer_secs.get(other, 0.0)
        answers = math.fsum(self._transfer_secs.get(waiting, 0.0) for waiting in self._waiting)
        return end + answers - self._now


@dataclass(frozen=True)
class Hsp(ServerProtocol):
    """Transfers one at a time (see the module's docstring).

    Args:
      rho: a worker computes stale where its expected wait is at least so many times its compute time.
      stale: units that a worker may compute stale in a row; 0 is never.
    """

    rho: float = 0.5
    stale: int = 1
    name: ClassVar[str] = "hsp"
    awaits_workers: ClassVar[bool] = True

    def worker_program(self, num_workers: int) -> Program:
        parameters, lease = (yield Pull()), Lease()
        while (units := (yield lease)) is not None:
            gradient = yield Compute(units, parameters)
            yield Ready(gradient)
            parameters = yield PushPull(gradient)

    def rule(self, members: tuple[int, ...]) -> ServerRule:
        check_not_negative(self.name, stale=self.stale)
        if not self.rho >= 0:
            raise ConfigError(f"hsp(rho={self.rho}) compares with no time; give a rho of 0 or more")
        return _Turns(members, self.rho, self.stale)

    def units_per_update(self, num_workers: int) -> int:
        return num_workers

    def lr_factor(self, num_units: int, num_workers: int) -> float:
        return scaled(num_units, self.scaling)

    def rule_bound(self, num_workers: int) -> int | None:
        return min(1, self.stale)

    def num_answered_early(self, num_workers: int) -> int:
        return num_workers - 1 if self.stale else 0
