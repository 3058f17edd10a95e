"""Backup workers: an update on the first m of n gradients of a version; the others come too late and are dropped.

    server: hold g_i(w_t) until m workers have pushed;  w_{t+1} <- optimizer(w_t, mean of the m, rate = m * eta);
            reply w_{t+1} to them.  A later g_i(w_t) is dropped, and answered with the newest parameters at once.

n - m stragglers cost the others no time; each of them costs a gradient. m = n is `bsp_server`.

Source: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting distributed synchronous SGD", 2016 (arXiv 1604.00981),
section 3.2. The default m = max(1, n - ceil(.05 n)) is about their best share of backups. With fewer than m workers
that have something to do, all of those make an update: ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from hybridsync.core.errors import ConfigError
from hybridsync.protocols.base import ServerRule
from hybridsync.protocols.bsp_server import Barrier
from hybridsync.protocols.scaling import scaled
from hybridsync.protocols.server_protocol import ServerProtocol

BACKUP_SHARE = 0.05


@dataclass(frozen=True)
class Backup(ServerProtocol):
    """The first m of n gradients (see the module's docstring).

    Args:
      m: gradients that make an update; 0 is n less a twentieth of them, at least 1.
    """

    m: int = 0
    name: ClassVar[str] = "backup"
    awaits_workers: ClassVar[bool] = True

    def rule(self, members: tuple[int, ...]) -> ServerRule:
        if not 0 <= self.m <= len(members):
            raise ConfigError(
                f"backup(m={self.m}) with {len(members)} workers would wait for ever: give an m from 1 to "
                f"{len(members)}, or 0 for {self._num_needed(len(members), 0)}"
            )
        return Barrier(members, self._num_needed(len(members), self.m))

    def units_per_update(self, num_workers: int) -> int:
        return self._num_needed(num_workers, self.m)

    def lr_factor(self, num_units: int, num_workers: int) -> float:
        return scaled(num_units, self.scaling)

    def rule_bound(self, num_workers: int) -> int | None:
        return 0

    @staticmethod
    def _num_needed(num_workers: int, m: int) -> int:
        return m or max(1, num_workers - math.ceil(BACKUP_SHARE * num_workers))
