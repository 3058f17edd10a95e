"""PS+: pushes and pulls go on beside the computation, on parameters that are one exchange old.

    worker i: begin pull
              loop: g = g_i(w);  d = optimizer_i step of g, rate = n * eta * modulation
                    W = await what was begun                  # asked for one iteration ago
                    begin push_pull(d)                        # asks for the next iteration's W in the same call
                    w = W - d                                 # own newest update, full weight, not yet in W
    server:   W <- W - d / n on arrival;  reply W to i as soon as clock_i - min_j clock_j <= s

The optimizer state is each worker's own; at the end of the phase it is the mean of theirs. The gate delays the reply
only, so whoever is ahead computes on while it waits. With one worker, W - d is what the server makes of d: the plain
loop, one exchange ahead. That worker pushes W - d itself, and W takes its place, so that it is the plain loop bit for
bit.

**Modulation of a worker's rate**, by the progress that comes with every reply:

    schedule   no factor; the schedule is read at the cluster's progress (default: progress is units applied)
    staleness  1 / max(1, tau), tau = updates of others between the worker's last two versions
    progress   clip(own units / the fastest worker's, 0.1, 1)
    none       no factor; the schedule is read at the worker's own progress alone, as in the public code

**Staleness**, in updates, is at most (n - 1)(2s + 2) + 1: what SSP's bound says of the reply one push earlier, so each
other worker makes one more update, and the worker's own last push is one. A worker for whom nobody waited may exceed
that; its push is dropped.

Source: Jin, Xu, Guo, Hu, Yeung, "PS+", IEEE TPDS 33(12), 2022, doi 10.1109/TPDS.2022.3200518; the loop and the server's
d / n are those of the authors' public demo. Reconstruction: the three modulations, of which the paper's abstract names
the aim only, and the lower limit of 0.1; idleness and the bound in updates are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hybridsync.core.errors import ConfigError
from hybridsync.protocols.base import (
    Action,
    Apply,
    Arrival,
    Await,
    Begin,
    Change,
    Combine,
    Compute,
    Difference,
    Lease,
    Program,
    Protocol,
    Pull,
    PushPull,
    ServerRule,
    Step,
    Version,
)
from hybridsync.protocols.modes import SERVER, SyncMode
from hybridsync.protocols.ssp import Gate, check_not_negative
from hybridsync.protocols.staleness import Bounded

MODULATIONS = ("schedule", "staleness", "progress", "none")
LOWEST_FACTOR = 0.1
"""Of the modulation by progress: who is far behind still moves."""


class _Shared(Gate):
    """SSP's gate; an update takes 1/n of the difference, and the reply alone waits.

    Args:
      members: of the phase.
      staleness: iterations that a worker may be ahead of the slowest, s.
    """

    def __init__(self, members: tuple[int, ...], staleness: int) -> None:
        super().__init__(members, staleness)
        self._share = 1.0 / len(members)

    def add_push(self, arrival: Arrival) -> list[Action]:
        super().add_push(arrival)
        return [Apply((arrival.push_id,), self._share)]


@dataclass(frozen=True)
class PsPlus(Protocol):
    """Transfers beside the computation (see the module's docstring).

    Args:
      staleness: iterations that a worker may be ahead of the slowest, s.
      modulation: of a worker's rate: schedule, staleness, progress or none.
    """

    staleness: int = 3
    modulation: str = "schedule"
    name: ClassVar[str] = "psplus"
    mode: ClassVar[SyncMode] = SERVER
    local_updates: ClassVar[bool] = True
    awaits_workers: ClassVar[bool] = True

    def change(self, num_workers: int) -> Change:
        return "add" if num_workers > 1 else "replace"

    def worker_program(self, num_workers: int) -> Program:
        lease, alone = Lease(), self.modulation == "none"
        parameters = version = before = yield Await((yield Begin(Pull())))
        pending = yield Begin(Pull())
        while (units := (yield lease)) is not None:
            gradient = yield Compute(units, parameters)
            stepped = yield Step(gradient, parameters, self._factor(before, version), alone)
            difference = yield Difference(parameters, stepped)
            before, version = version, (yield Await(pending))
            pending = yield Begin(PushPull(difference))
            parameters = yield Combine(version, difference)
        yield Await(pending)

    def server_rule(self, members: tuple[int, ...]) -> ServerRule:
        check_not_negative(self.name, staleness=self.staleness)
        if self.modulation not in MODULATIONS:
            raise ConfigError(f"psplus(modulation={self.modulation}) is unknown; give one of {', '.join(MODULATIONS)}")
        return Bounded(_Shared(members, self.staleness), self.staleness_bound(len(members)))

    def units_per_update(self, num_workers: int) -> int:
        return 1

    def lr_factor(self, num_units: int, num_workers: int) -> float:
        return float(num_workers)

    def staleness_bound(self, num_workers: int) -> int:
        return (num_workers - 1) * (2 * self.staleness + 2) + 1

    def _factor(self, before: Version, version: Version) -> float:
        """Return the modulation of a worker's rate, by its newest version and the one before."""
        if self.modulation == "staleness":
            return 1.0 / max(1, version.sequence - before.sequence - 1)
        if self.modulation == "progress" and version.fastest:
            return min(1.0, max(LOWEST_FACTOR, version.own / version.fastest))
        return 1.0
