"""ASP, asynchronous parallel: every push is applied on arrival and answered with the parameters after it.

    server: w <- optimizer(w, g_i(w_base), rate = eta);  reply w

No worker waits for another; a gradient's staleness is the number of updates between the parameters it was computed on
and those it is applied to. Source: the asynchronous parameter server of Sync-Switch (Li et al., ICDCS 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hybridsync.protocols.base import Action, Apply, Arrival, Release, ServerRule
from hybridsync.protocols.server_protocol import ServerProtocol


class _ApplyOnArrival(ServerRule):
    at_once = 1.0

    def on_push(self, arrival: Arrival) -> list[Action]:
        return [Apply((arrival.push_id,), lr_factor=1.0), Release(arrival.push_id)]


@dataclass(frozen=True)
class Asp(ServerProtocol):
    """Apply on arrival (see the module's docstring)."""

    name: ClassVar[str] = "asp"

    def rule(self, members: tuple[int, ...]) -> ServerRule:
        return _ApplyOnArrival()

    def units_per_update(self, num_workers: int) -> int:
        return 1

    def lr_factor(self, num_units: int, num_workers: int) -> float:
        return 1.0
