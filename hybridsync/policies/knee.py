"""Finds where lock-step has done its part in a run: where the loss stops falling steeply. Pure.

    >>> knee = Knee(window=10)
    >>> losses = (2.3, 2.2, 1.2, 0.6, 0.4, 0.3, 0.27, 0.25, 0.24, 0.235)
    >>> [knee.observe(10 * (index + 1), 10 * loss, 10) for index, loss in enumerate(losses)].index(True)
    6

Staleness hurts as long as a gradient changes much within the n updates that it is late, which is when the loss falls
steeply; where it has flattened, an old gradient still points the right way. So a plan like `bsp:50%,asp` may leave its
lock-step part early, without a search: its share is then the most that lock-step may take.

The loss of each window of the workload is averaged, and its fall from one window to the next compared with the steepest
such fall of the run so far. At a twentieth of it the knee is passed. Only a ratio of falls counts, so neither the
loss's unit nor its floor does.

Source: reconstruction. Sync-Switch (Li et al., ICDCS 2021) searches for the share by whole runs (`search_rules.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

SHARE = 0.05
"""Of the steepest fall: below it the loss is flat."""
WINDOWS = 20
"""Of the workload: a loss is averaged over this part of it."""
FIRST = 3
"""Windows before which there is no knee: a loss that has not begun to fall is flat as well."""


@dataclass
class Knee:
    """Follows the loss of one run.

    Args:
      window: units that are averaged, at least one; what is left of a window when the next one begins belongs to it.
      share: share of the steepest fall below which the loss counts as flat.

    Attributes:
      windows: mean losses so far.
      fall, steepest: fall of the mean loss between the last two windows, and the largest such fall; None before there
        are two.
    """

    window: int
    share: float = SHARE
    windows: list[float] = field(default_factory=list)
    fall: float | None = None
    steepest: float | None = None
    _sum: float = 0.0
    _count: int = 0
    _next: int = 0

    def observe(self, units: int, loss_sum: float, num_losses: int) -> bool:
        """Take in what was reported since the last call; returns whether the knee is passed.

        Args:
          units: applied so far, in the whole run.
          loss_sum: sum of the losses of the reported units.
          num_losses: number of the reported units.
        """
        self._sum, self._count = self._sum + loss_sum, self._count + num_losses
        if not self._next:
            self._next = units - num_losses + self.window
        if units >= self._next and self._count:
            self.windows.append(self._sum / self._count)
            self._sum, self._count, self._next = 0.0, 0, units + self.window
            self._compare()
        return self.passed

    @property
    def passed(self) -> bool:
        """Return whether the loss has fallen steeply, and does so no more."""
        if self.fall is None or self.steepest is None or len(self.windows) < FIRST:
            return False
        return self.steepest > 0 and self.fall <= self.share * self.steepest

    def _compare(self) -> None:
        if len(self.windows) < 2:
            return
        self.fall = self.windows[-2] - self.windows[-1]
        self.steepest = self.fall if self.steepest is None else max(self.fall, self.steepest)
