"""HSP, hybrid synchronous parallelism: lock-step, one transfer at a time; on request, stale computing in long waits.

    server, iteration t: for worker i in the order its READY came: g_i = transfer(i)         # one at a time
                         w_{t+1} <- optimizer(w_t, mean_i g_i, rate = n * eta)
                         for worker i in the order of the gradients: reply w_{t+1} to i      # one at a time
    worker i:            compute g_i; READY; when it is granted, send g_i; until w_{t+1} comes:
                         if predicted wait >= rho * T_compute and fewer than S stale units in a row:
                         start the next unit on w_t, else wait; when w_{t+1} is here, report it

No two transfers contend in either direction, but for the first pulls of a phase, and for new parameters that answer a
stale unit: each has the whole port, so that the first workers have w_{t+1} and compute while the others receive it, and
their gradients pass while the others compute. With a port that passes one gradient in T_transfer, and shares itself
fairly among transfers in progress, a round of n equal workers takes

    bsp_server   T_compute + 2 n T_transfer         all workers receive together, and send together
    hsp          T_compute + (n + 1) T_transfer     a pipeline: the last worker receives after n turns

and stale computing (`stale=1`) saves waits on top of that. A worker that is slow to receive keeps the next ones
waiting.

The wait ends when w_{t+1} has arrived. The rule predicts it from the calls that it saw: T_compute of a worker from the
arrival of its parameters to its READY, T_transfer from its grant to its push; the transfers that are still to come are
laid one after another. Without an estimate no worker computes stale, nor does the one that brought the last gradient:
its wait is over. A stale gradient is in the next update for certain, so staleness is at most `stale`, here 1.

stale = 0: four jobs at their own rates came to a loss later with stale units than without in 11 of 12 cases, up to 2.4
times; in the twelfth they took 11.0 s instead of 11.2. At a rate that is low enough for asynchrony stale units pay
(`docs/reproduction.md`). The rule sees times and no losses, so it cannot tell the two apart: who trains says so.

rho = 0.5: a stale unit costs the accuracy of one, and saves as much time as the worker would have waited, so it is
computed only where it saves half a unit or more. With n = 8 and a port that passes all gradients in a unit's time, 0.5
makes 1.76 times as many updates as `bsp_server`, 1 makes 1.49 and 0.1 no more than 0.5 does; at a port four times as
slow all three make 1.88 times as many, and at one four times as fast only 0.1 adds to what the turns alone save
(`benchmarks/shared_port.py`).

Source: Li, Huang et al., "Hybrid synchronous parallelism ...", ICPP 2022 (doi 10.1145/3545008.3545024), by its
abstract. The protocol is a reconstruction, and so are the turns of the replies, rho, S and the prediction.
"""

from __future__ import annotations

import math
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
    Received,
    Release,
    ServerRule,
)
from hybridsync.protocols.scaling import scaled
from hybridsync.protocols.server_protocol import ServerProtocol, WaitingRule, check_not_negative


class _Turns(WaitingRule):
    """Lets one transfer go on at a time in each direction, and updates by the gradients of all who are awaited.

    Args:
      members: worker ids of the phase.
      rho: share of a worker's compute time that its wait has to last for it to compute stale.
      stale: maximum number of stale units of a worker in a row.
    """

    def __init__(self, members: tuple[int, ...], rho: float, stale: int) -> None:
        super().__init__(members)
        self._rho, self._stale = rho, stale
        self._ready: dict[int, float] = {}
        self._granted: tuple[int, float] | None = None
        self._held: dict[int, list[Arrival]] = {}
        self._waiting: dict[int, int] = {}  # worker -> its push, whose answer depends on the next update
        self._replies: dict[int, int] = {}  # worker -> its push, whose answer waits for its turn
        self._receives: int | None = None  # worker that parameters are on their way to
        self._in_a_row = dict.fromkeys(members, 0)
        self._begun_at: dict[int, float] = {}
        self._compute_secs: dict[int, float] = {}
        self._transfer_secs: dict[int, float] = {}
        self._now = 0.0

    def on_ready(self, worker: int, at: float) -> list[Action]:
        self._now = at
        self._enter(worker)
        self._end_turns(worker)
        self._ready[worker] = at
        if worker in self._begun_at:
            self._compute_secs[worker] = at - self._begun_at[worker]
        return self.ready_actions()

    def on_received(self, worker: int, at: float) -> list[Action]:
        self._now = at
        if worker != self._receives:
            return []
        self._begun_at[worker] = at
        self._receives = None
        return self.ready_actions()

    def on_join(self, worker: int) -> list[Action]:
        self._end_turns(worker)
        return super().on_join(worker)

    def on_idle(self, worker: int) -> list[Action]:
        self._end_turns(worker)
        return super().on_idle(worker)

    def forget_worker(self, worker: int) -> None:
        self._end_turns(worker)
        of_worker = self._held, self._waiting, self._replies, self._begun_at, self._compute_secs, self._transfer_secs
        for known in of_worker:
            known.pop(worker, None)

    def add_push(self, arrival: Arrival) -> list[Action]:
        worker, self._now = arrival.worker, arrival.at
        if self._granted is not None and self._granted[0] == worker:
            self._transfer_secs[worker] = arrival.at - self._granted[1]
        self._end_turns(worker)
        self._held.setdefault(worker, []).append(arrival)  # a second one was not granted: its unit was another's before
        self._waiting[worker] = arrival.push_id
        if not self._computes_stale(worker):
            return []
        self._in_a_row[worker] += 1
        self._begun_at[worker] = self._now
        return [Release(self._waiting.pop(worker))]

    def ready_actions(self) -> list[Action]:
        actions: list[Action] = []
        if self._held and all(worker in self._held for worker in self.awaited):
            actions = self._update()
        if self._replies and self._receives is None:
            self._receives = next(iter(self._replies))
            actions.append(Release(self._replies.pop(self._receives)))
        if self._granted is None:
            chosen = next((worker for worker in self._ready if worker not in self._held), None)
            if chosen is not None:
                self._granted = chosen, self._now
                del self._ready[chosen]
                actions.append(Grant(chosen))
        return actions

    def on_last(self) -> list[Action]:
        actions = self._update() if self._held else []
        replies, self._replies, self._receives = self._replies, {}, None
        return [*actions, *map(Release, replies.values())]

    def _update(self) -> list[Action]:
        held, self._held = [arrival for arrivals in self._held.values() for arrival in arrivals], {}
        rate = float(sum(len(arrival.units) for arrival in held))
        for worker in self._waiting:
            self._in_a_row[worker] = 0
        self._replies.update(self._waiting)
        self._waiting = {}
        return [Apply(tuple(arrival.push_id for arrival in held), rate)]

    def _end_turns(self, worker: int) -> None:
        """Let nobody wait for a transfer of `worker` any more."""
        self._ready.pop(worker, None)
        if self._granted is not None and self._granted[0] == worker:
            self._granted = None
        if self._receives == worker:
            self._receives = None

    def _computes_stale(self, worker: int) -> bool:
        own = self._compute_secs.get(worker)
        if own is None or self._in_a_row[worker] >= self._stale:
            return False
        wait = self._wait_secs()
        return wait is not None and wait >= self._rho * own

    def _wait_secs(self) -> float | None:
        """Return how long the next update is expected to take to reach who waits last; None: unknown, or now."""
        receives = () if self._receives is None else (self._receives,)
        begins, end = self._begun_at.copy(), self._now
        for other in (*receives, *self._replies):
            begins[other] = end = end + self._transfer_secs.get(other, 0.0)
        comes: list[tuple[float, int]] = []
        for other in self.awaited:
            if other in self._held:
                continue
            if other in self._ready:
                comes.append((self._now, other))
            elif other in self._compute_secs and other in self._transfer_secs:
                comes.append((begins[other] + self._compute_secs[other], other))
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
    stale: int = 0
    name: ClassVar[str] = "hsp"
    awaits_workers: ClassVar[bool] = True

    def worker_program(self, num_workers: int) -> Program:
        version, lease = (yield Pull()), Lease()
        while (units := (yield lease)) is not None:
            gradient = yield Compute(units, version)
            yield Ready(gradient)
            before, version = version, (yield PushPull(gradient))
            if version.sequence != before.sequence:  # else nothing has travelled
                yield Received(version)

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
