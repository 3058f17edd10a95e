"""PS+: pushes and pulls go on beside the computation and beside each other, on parameters that are two exchanges old.

    worker i: begin pull
              loop: g = g_i(w)
                    await push                                # of the last iteration's d, begun one unit ago
                    W = await pull                            # begun at the same time
                    d = optimizer_i step of g, rate = n * eta * modulation
                    begin push(d);  begin pull                # each has a direction of the link to itself
                    w = W - last d, if that is not in W, - d  # own newest updates, full weight
    server:   W <- W - d / n on arrival;  reply to i, without W;  answer a pull at once

So a unit takes as long as the longest of three: its computation, a push, a pull. A pull and the push that begins at the
same time may come to the server in either order. W contains the number of i's units that are in it, and so does the
reply to a push. That shows whether W holds the last d, to the worker and to a replay alike.

The optimizer state is each worker's own; at the end of the phase it is the mean of theirs. With one worker, W less what
it lacks is what the server makes of it: the plain loop, two exchanges ahead. That worker pushes the parameters that it
came to, and they take W's place, so that it is the plain loop bit for bit.

No worker waits for others, as in the paper. `staleness=s` adds SSP's gate, which is ours: the reply to i's push waits
until clock_i - min_j clock_j <= s. It delays that reply only, so a worker that is ahead computes on while it waits.

`overlap=false` is a blocking twin to compare with: the same steps and updates, but w = W, which holds d / n already,
and the worker waits for the reply to each push, which brings W, before it computes on.

**Modulation of a worker's rate**, by the newest version that it has when its push begins, which the log names:

    progress   clip(own units / the fastest worker's, 0.1, 1) (default); a late joiner counts as slow
    staleness  (n - 1) / max(n - 1, tau), tau = updates of others between the worker's newest two versions: among
               alike workers tau is n - 1, so that only the stale are damped
    schedule   no factor; the schedule is read at the cluster's progress, as by all but `none`
    none       no factor; the schedule is read at the worker's own progress alone, as in the public code

**Staleness**, in updates, has no bound. With the gate it is at most (n - 1)(2s + 3) + 2. A pull begins when the reply
to i's push at its clock c is here, so no other clock is below c - s. The gradient computed on it arrives when i's clock
is c + 2 and the push before it was answered, so no other clock is above c + 2 + s + 1; two of the updates between are
i's own. Without overlap it is SSP's (n - 1)(2s + 1). A worker that the others did not wait for may exceed that; its
push is dropped.

Source: Jin, Xu, Guo, Hu, Yeung, "PS+", IEEE TPDS 33(12), 2022, doi 10.1109/TPDS.2022.3200518; the loop and the server's
d / n are those of the authors' public demo, which runs without a gate. Reconstruction: the three modulations, of which
the paper's abstract names the aim only, and the lower limit of 0.1; the gate, idleness and the bound are ours.
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
    PushOnly,
    PushPull,
    ServerRule,
    Step,
    Version,
)
from hybridsync.protocols.modes import SERVER, SyncMode
from hybridsync.protocols.ssp import Gate
from hybridsync.protocols.staleness import Bounded

MODULATIONS = ("progress", "staleness", "schedule", "none")
UNGATED = -1
"""The `staleness` of a plan that lets nobody wait."""
LOWEST_FACTOR = 0.1
"""The least factor of the modulation by progress, so that a worker far behind still moves."""


class _Shared(Gate):
    """SSP's gate; an update takes 1/n of the difference, and the reply alone waits.

    Args:
      members: worker ids of the phase.
      staleness: iterations that a worker may be ahead of the slowest, s; infinite without a gate.
    """

    def __init__(self, members: tuple[int, ...], staleness: float) -> None:
        super().__init__(members, staleness)
        self._share = 1.0 / len(members)

    def add_push(self, arrival: Arrival) -> list[Action]:
        super().add_push(arrival)
        return [Apply((arrival.push_id,), self._share)]


@dataclass(frozen=True)
class PsPlus(Protocol):
    """Transfers beside the computation (see the module's docstring).

    Args:
      staleness: iterations that a worker may be ahead of the slowest, s; -1 is any number, as in the paper.
      modulation: kind of modulation of a worker's rate: progress, staleness, schedule or none.
      overlap: whether transfers run in the background of the computation; false is a blocking twin to compare with.
    """

    staleness: int = UNGATED
    modulation: str = "progress"
    overlap: bool = True
    name: ClassVar[str] = "psplus"
    mode: ClassVar[SyncMode] = SERVER
    local_updates: ClassVar[bool] = True
    awaits_workers: ClassVar[bool] = True  # without a gate, too: an idle worker begins anew from the newest version

    def change(self, num_workers: int) -> Change:
        return "add" if num_workers > 1 else "replace"

    def worker_program(self, num_workers: int) -> Program:
        return self._overlapping(num_workers) if self.overlap else self._blocking(num_workers)

    def _overlapping(self, num_workers: int) -> Program:
        lease, alone = Lease(), self.modulation == "none"
        parameters = version = yield Await((yield Begin(Pull())))
        push, pull = None, (yield Begin(Pull()))
        difference, num_pushed = None, 0
        while (units := (yield lease)) is not None:
            gradient = yield Compute(units, parameters)
            if push is not None:
                num_pushed = (yield Await(push)).own
            before, version = version, (yield Await(pull))
            stepped = yield Step(gradient, parameters, self._factor(before, version, num_workers), alone)
            last, difference = difference, (yield Difference(parameters, stepped))
            push, pull = (yield Begin(PushOnly(difference, version))), (yield Begin(Pull()))
            parameters = yield Combine(version, (last, difference) if version.own < num_pushed else (difference,))
        if push is not None:
            yield Await(push)
        yield Await(pull)

    def _blocking(self, num_workers: int) -> Program:
        lease, alone = Lease(), self.modulation == "none"
        before = version = yield Pull()
        while (units := (yield lease)) is not None:
            gradient = yield Compute(units, version)
            stepped = yield Step(gradient, version, self._factor(before, version, num_workers), alone)
            difference = yield Difference(version, stepped)
            before, version = version, (yield PushPull(difference))

    def server_rule(self, members: tuple[int, ...]) -> ServerRule:
        if self.staleness < UNGATED:
            raise ConfigError(
                f"psplus(staleness={self.staleness}) is no lead; give 0 or more, or {UNGATED} for no gate at all"
            )
        if self.modulation not in MODULATIONS:
            raise ConfigError(f"psplus(modulation={self.modulation}) is unknown; give one of {', '.join(MODULATIONS)}")
        bound = self.staleness_bound(len(members))
        if bound is None:
            return _Shared(members, math.inf)
        return Bounded(_Shared(members, self.staleness), bound)

    def units_per_update(self, num_workers: int) -> int:
        return 1

    def lr_factor(self, num_units: int, num_workers: int) -> float:
        return float(num_workers)

    def staleness_bound(self, num_workers: int) -> int | None:
        if self.staleness == UNGATED:
            return None
        if self.overlap:
            return (num_workers - 1) * (2 * self.staleness + 3) + 2
        return (num_workers - 1) * (2 * self.staleness + 1)

    def _factor(self, before: Version, version: Version, num_workers: int) -> float:
        """Return the modulation of a worker's rate, by its newest version and the one before."""
        if self.modulation == "staleness":
            alike = max(1, num_workers - 1)
            of_others = version.sequence - before.sequence - (version.own - before.own)
            return alike / max(alike, of_others)
        if self.modulation == "progress" and version.fastest:
            return min(1.0, max(LOWEST_FACTOR, version.own / version.fastest))
        return 1.0
