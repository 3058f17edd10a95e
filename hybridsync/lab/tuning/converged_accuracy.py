"""Finds at which accuracy a run converged, as Sync-Switch's authors counted it. Pure.

    >>> converged([0.5, 0.7, 0.875, 0.875, 0.875, 0.875, 0.875, 0.95])
    0.875
    >>> converged([0.5, 0.7, 0.8]) is None
    True

Source: Li et al., Sync-Switch, ICDCS 2021: changes of less than .1 % over five evaluations. That the mean of the first
five counts is a reconstruction; as a share of all examples .1 % is .001.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

IN_A_ROW = 5
"""Evaluations in a row between which the accuracy hardly changes."""
CHANGE = 0.001
"""Of the accuracy, from one of them to the next, at which it does change."""


def converged(accuracies: Sequence[float]) -> float | None:
    """Return the mean of the first five evaluations in a row whose changes are below .1 %; None without such.

    Args:
      accuracies: accuracies of a run's evaluations, in order, in [0, 1]; a value that is not a number ends a row.
    """
    in_a_row = 1
    for at, (before, after) in enumerate(itertools.pairwise(accuracies), 1):
        in_a_row = in_a_row + 1 if abs(after - before) < CHANGE else 1
        if in_a_row == IN_A_ROW:
            return math.fsum(accuracies[at + 1 - IN_A_ROW : at + 1]) / IN_A_ROW
    return None
