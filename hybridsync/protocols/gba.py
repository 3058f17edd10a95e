"""GBA, global batch gradients aggregation: asynchronous workers, and updates of the batch that lock-step has.

    server: reply w to i at once;  hold g_i;  when a global batch of n gradients is here:
            w <- optimizer(w, mean of the n, rate = n * eta).  A g_i more than `tolerance` updates old is dropped.

No worker waits for another, yet each update has the batch size and the rate of BSP with n workers, so that a switch
between them needs other hyperparameters on neither side. Staleness counts updates of a whole batch. A held push is
outstanding: if its worker is lost, its units are issued again.

Source: Su, Zhang, Xu et al., "GBA: a tuning-free approach to switch between synchronous and asynchronous training for
recommendation models", NeurIPS 2022 (arXiv 2205.11048). There too stale gradients get weight 0 in a batch that is
smaller for it. Reconstruction: here they are dropped on arrival and others take their place, so that no batch is
smaller; a tolerance of 4 updates by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hybridsync.protocols.base import Action, Apply, Arrival, Release, ServerRule
from hybridsync.protocols.scaling import scaled
from hybridsync.protocols.server_protocol import ServerProtocol, check_not_negative


class _Batch(ServerRule):
    def __init__(self, size: int) -> None:
        self._size = size
        self._held: list[Arrival] = []

    def on_push(self, arrival: Arrival) -> list[Action]:
        self._held.append(arrival)
        full = self.on_last() if len(self._held) >= self._size else []
        return [*full, Release(arrival.push_id)]

    def on_leave(self, worker: int) -> list[Action]:
        self._held = [arrival for arrival in self._held if arrival.worker != worker]
        return []

    def on_last(self) -> list[Action]:
        held, self._held = self._held, []
        units = sum(len(arrival.units) for arrival in held)
        return [Apply(tuple(arrival.push_id for arrival in held), lr_factor=float(units))] if held else []


@dataclass(frozen=True)
class Gba(ServerProtocol):
    """Asynchronous global batches (see the module's docstring).

    Args:
      batch: gradients in an update; 0 is one for each worker.
      tolerance: updates that may lie between a gradient's parameters and its update.
    """

    batch: int = 0
    tolerance: int = 4
    name: ClassVar[str] = "gba"

    def rule(self, members: tuple[int, ...]) -> ServerRule:
        check_not_negative(self.name, batch=self.batch, tolerance=self.tolerance)
        return _Batch(self.units_per_update(len(members)))

    def units_per_update(self, num_workers: int) -> int:
        return self.batch or num_workers

    def lr_factor(self, num_units: int, num_workers: int) -> float:
        return scaled(num_units, self.scaling)

    def rule_bound(self, num_workers: int) -> int | None:
        return self.tolerance

    def num_answered_early(self, num_workers: int) -> int:
        return self.units_per_update(num_workers) - 1
