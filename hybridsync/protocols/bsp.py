"""BSP, bulk synchronous parallel: lock-step over the mesh of the phase's members.

One step takes the next n units of the stream, one a member, averages their gradients, and updates every replica:

    w <- optimizer(w, mean_i g_i(w), rate = m * eta)        m = units in this step, n but for a short last one

Linear scaling of the rate with the units of the update follows Sync-Switch's configuration policy (Li et al.,
ICDCS 2021), as the momentum coefficient does that stays; with `scaling=sqrt` the rate is sqrt(m) * eta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hybridsync.protocols.base import (
    Average,
    Compute,
    Lease,
    LocalUpdate,
    Program,
    Protocol,
)
from hybridsync.protocols.modes import LOCKSTEP, SyncMode
from hybridsync.protocols.scaling import check_scaling, scaled


@dataclass(frozen=True)
class Bsp(Protocol):
    """Lock-step averaging of gradients (see the module's docstring).

    Args:
      scaling: growth of the learning rate with the units of an update, "linear" or "sqrt".
    """

    scaling: str = "linear"
    name: ClassVar[str] = "bsp"
    mode: ClassVar[SyncMode] = LOCKSTEP

    def __post_init__(self) -> None:
        check_scaling(self.name, self.scaling)

    def worker_program(self, num_workers: int) -> Program:
        while (units := (yield Lease())) is not None:
            # In no variable: a gradient, or a mean, would stay until the next step has its own.
            yield LocalUpdate((yield Average((yield Compute(units)))))

    def units_per_update(self, num_workers: int) -> int:
        return num_workers

    def lr_factor(self, num_units: int, num_workers: int) -> float:
        return scaled(num_units, self.scaling)

    def staleness_bound(self, num_workers: int) -> int | None:
        return 0
