"""Says how the learning rate grows with the units of an update."""

from __future__ import annotations

import math
from typing import Literal, get_args

from hybridsync.core.errors import PlanError

Scaling = Literal["linear", "sqrt"]
SCALINGS = get_args(Scaling)


def scaled(num_units: float, scaling: str) -> float:
    """Return the factor on the learning rate of an update on the mean of so many units.

    Linear: Sync-Switch's configuration policy (Li et al., ICDCS 2021). Square root: Krizhevsky, "One weird trick for
    parallelizing convolutional neural networks", 2014 (arXiv 1404.5997), section 5.
    """
    return math.sqrt(num_units) if scaling == "sqrt" else float(num_units)


def check_scaling(name: str, scaling: str) -> None:
    """Check what a plan gives as a protocol's `scaling`.

    Raises:
      PlanError: the value is not a scaling.
    """
    if scaling not in SCALINGS:
        raise PlanError(f"{name}(scaling={scaling}) names no scaling of the rate; known: {', '.join(SCALINGS)}")
