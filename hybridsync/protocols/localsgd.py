"""Local SGD: every worker takes H local steps, then all go on from the mean of where they came to.

    worker i: x_i <- w;  H times: x_i <- optimizer_i(x_i, g_i(x_i), rate = n * eta);  push w - x_i
    server:   hold until every worker has pushed;  w <- w - sum_i (w - x_i) / n;  reply w to all

The optimizer state is each worker's own; at the end of the phase it is the mean of theirs. With H = 1 and plain SGD
this is BSP, whose rate n * eta it therefore has by default, so that a switch between them changes no rate (post-local
SGD does the same); `scale` is another factor on eta. A push carries all of its units or none. The server does not wait
for a worker that has no unit or is gone: it still divides the differences of m workers by n, as a short lock-step
update has the rate m * eta, and a unit weighs the same, whichever workers are there. One worker alone pushes x_i
itself, and w takes its place: the plain loop, bit for bit.

Source: McMahan et al., arXiv 1602.05629; Stich, arXiv 1805.09767; Lin et al. (post-local SGD), arXiv 1808.07217. The
division by n in a short round, and that the last rounds of a phase may have fewer than H units, are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from hybridsync.core.errors import ConfigError
from hybridsync.core.plan import MOST_ENTRIES
from hybridsync.protocols.base import (
    Action,
    Apply,
    Arrival,
    Change,
    Compute,
    Difference,
    Lease,
    Program,
    Protocol,
    Pull,
    PushPull,
    Release,
    ServerRule,
    Step,
)
from hybridsync.protocols.modes import SERVER, SyncMode
from hybridsync.protocols.server_protocol import WaitingRule
from hybridsync.protocols.staleness import Bounded


class Rounds(WaitingRule):
    """One update on the differences of everybody who is awaited.

    Args:
      members: worker ids of the phase; their number divides the sum of the differences.
    """

    def __init__(self, members: tuple[int, ...]) -> None:
        super().__init__(members)
        self._num_members = len(members)
        self._held: dict[int, int] = {}

    def add_push(self, arrival: Arrival) -> list[Action]:
        self._held[arrival.worker] = arrival.push_id
        return []

    def forget_worker(self, worker: int) -> None:
        self._held.pop(worker, None)

    def ready_actions(self) -> list[Action]:
        return self.on_last() if len(self._held) >= len(self.awaited) else []

    def on_last(self) -> list[Action]:
        if not self._held:
            return []
        pushes = tuple(self._held[worker] for worker in sorted(self._held))
        self._held = {}
        return [Apply(pushes, len(pushes) / self._num_members), *(Release(push) for push in pushes)]


class LocalRounds(Protocol):
    """Implements the rounds of local SGD and DiLoCo: H own steps of each worker, then one update on their mean."""

    mode: ClassVar[SyncMode] = SERVER
    local_updates: ClassVar[bool] = True
    awaits_workers: ClassVar[bool] = True
    steps: int
    scale: float

    def worker_program(self, num_workers: int) -> Program:
        start, lease = (yield Pull()), Lease(self.steps)
        while (units := (yield lease)) is not None:
            parameters = start
            for unit in units:
                gradient = yield Compute((unit,), parameters)
                parameters = yield Step(gradient, parameters)
            difference = yield Difference(start, parameters)
            start = yield PushPull(difference)

    def server_rule(self, members: tuple[int, ...]) -> ServerRule:
        if self.steps < 1:
            raise ConfigError(f"{self.name}(steps={self.steps}) would never push; give 1 step or more")
        if self.steps > MOST_ENTRIES:
            raise ConfigError(
                f"{self.name}(steps={self.steps}) pushes more units at a time than the {MOST_ENTRIES} of a message; "
                "give fewer steps"
            )
        if not 0 <= self.scale < math.inf:
            raise ConfigError(f"{self.name}(scale={self.scale:g}) does not descend; give a finite factor, 0 for n")
        return Bounded(Rounds(members), 0)

    def units_per_update(self, num_workers: int) -> int:
        return num_workers * self.steps

    def lr_factor(self, num_units: int, num_workers: int) -> float:
        return self.scale or float(num_workers)

    def staleness_bound(self, num_workers: int) -> int | None:
        return 0


@dataclass(frozen=True)
class LocalSgd(LocalRounds):
    """Local steps, then averaging (see the module's docstring).

    Args:
      steps: number of steps of a worker between two averages, H.
      scale: factor on eta in those steps; 0 is the number of workers.
    """

    steps: int = 50
    scale: float = 0.0
    name: ClassVar[str] = "localsgd"

    def change(self, num_workers: int) -> Change:
        return "add" if num_workers > 1 else "replace"
