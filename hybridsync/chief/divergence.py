"""Training that has diverged: contributions that are not finite, one after another, and nothing applied between them.

>>> divergence = Divergence()
>>> bad = [(unit, "non_finite: leaf w, first index [0]") for unit in range(10)]
>>> divergence.record(applied=(), dropped=bad), divergence.record(applied=((10, 11),), dropped=())
(None, None)
>>> divergence.record(applied=(), dropped=bad), type(divergence.record(applied=(), dropped=bad[:1])).__name__
(None, 'Diverged')
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hybridsync.core.errors import Diverged
from hybridsync.core.units import Range
from hybridsync.interfaces.messages import NON_FINITE

MAX_IN_A_ROW = 10
DIVERGED = "training has diverged"
"""The error of such a run, and the one in its summary, begin with these words."""


class Divergence:
    """Counts units that were dropped because their contribution was not finite, since the last unit applied."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def record(self, applied: Sequence[Range], dropped: Iterable[tuple[int, str]], held: int = 0) -> Diverged | None:
        """Take what was reported in one go; returns the error to end the run with, if it has come to that.

        Args:
          applied: ranges of units that were applied.
          dropped: units, with the reasons.
          held: maximum number of finite contributions that a server may keep before it applies them.
        """
        reasons = [(unit, reason) for unit, reason in dropped if reason.startswith(NON_FINITE)]
        if applied:
            self._in_a_row = 0
            return None
        self._in_a_row += len(reasons)
        if not reasons or self._in_a_row <= MAX_IN_A_ROW + held:
            return None
        unit, reason = reasons[-1]
        return Diverged(
            f"{DIVERGED}: the contributions of {self._in_a_row} units in a row were not finite, more than "
            f"{MAX_IN_A_ROW + held}, and no unit was applied between them; the last was unit {unit}, {reason}. Lower "
            "the learning rate, limit the gradient with clip=, or look at the loss at that unit; the last "
            "checkpoint is finite"
        )
