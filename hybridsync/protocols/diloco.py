"""DiLoCo: local SGD whose mean difference is the gradient of an outer optimizer with Nesterov momentum.

    worker i: x_i <- w;  H times: x_i <- optimizer_i(x_i, g_i(x_i), rate = eta);  push w - x_i
    server:   hold until every worker has pushed;  d <- sum_i (w - x_i) / n;
              m <- mu * m + d;  w <- w - rho * (d + mu * m);  reply w to all

The outer momentum m is kept in the training state while other protocols run, and continues when DiLoCo does; a run that
begins without it begins at 0. The inner optimizer is the run's own, its state each worker's, and the mean of theirs at
the end of the phase. With mu = 0, rho = 1 and `scale` = n this is `localsgd`.

Source: Douillard et al., arXiv 2311.08105: rho = 0.7, mu = 0.9, H = 500 there; 50 by default here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from hybridsync.core.errors import ConfigError
from hybridsync.protocols.base import Change, Outer, ServerRule
from hybridsync.protocols.localsgd import LocalRounds


@dataclass(frozen=True)
class DiLoCo(LocalRounds):
    """Local steps, then an outer step (see the module's docstring).

    Args:
      steps: number of steps of a worker between two outer steps, H.
      outer_rate: learning rate of the outer optimizer, rho.
      outer_momentum: Nesterov coefficient of the outer optimizer, mu.
      scale: factor on eta in the inner steps; 0 is the number of workers.
    """

    steps: int = 50
    outer_rate: float = 0.7
    outer_momentum: float = 0.9
    scale: float = 1.0
    name: ClassVar[str] = "diloco"

    def change(self, num_workers: int) -> Change:
        return Outer(self.name, self.outer_rate, self.outer_momentum)

    def server_rule(self, members: tuple[int, ...]) -> ServerRule:
        if not 0 < self.outer_rate < math.inf or not 0 <= self.outer_momentum < 1:
            raise ConfigError(
                f"diloco(outer_rate={self.outer_rate:g},outer_momentum={self.outer_momentum:g}) does not descend; "
                "give a finite rate above 0 and a momentum from 0 to below 1"
            )
        return super().server_rule(members)
