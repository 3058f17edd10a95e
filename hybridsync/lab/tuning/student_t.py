"""Student's t for whole degrees of freedom: how far a mean of few runs may lie from what more runs would give.

>>> round(tail(2.015, 5), 3), round(tail(-2.015, 5), 3), tail(0.0, 3)
(0.05, 0.95, 0.5)
"""

from __future__ import annotations

import math


def tail(t: float, freedom: int) -> float:
    """Return the probability that Student's t exceeds `t`.

    Args:
      t: any number; infinite is allowed.
      freedom: degrees of freedom, at least 1.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    assert freedom >= 1, f"{freedom} degrees of freedom"
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, cosine) if odd else (1.0, 1.0)
    for power in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine * cosine * (power - 1) / power
        total += term
    if odd:
        within = 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))
    else:
        within = sine * total
    return (1 - within) / 2
