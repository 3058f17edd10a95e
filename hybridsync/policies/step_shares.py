"""Divides the units of a lock-step step among its members, so that nobody waits long for a slow one.

    >>> shares([1.0, 1.0, 4.0, 1.0])
    (4, 4, 1, 4)
    >>> shares([1.0] * 7 + [2.0])
    (2, 2, 2, 2, 2, 2, 2, 1)

A step with shares c applies m = sum(c) units in max(c_j t_j) seconds. More units a step are a larger batch, with a rate
that grows with it: of choices that are as good as equal the one with the fewest units is taken.

    >>> shares([1.0, 1.05, 0.98, 1.0])  # as good as alike: one unit each
    ()
    >>> shares([1.0] * 7 + [5.0])  # seven of seven and a fifth, with a step of 7 units instead of 36
    (1, 1, 1, 1, 1, 1, 1, 0)

Source: a reconstruction. That units in proportion to speed make lock-step go at the speed of the whole cluster is the
idea of load-balanced BSP (for instance LB-BSP, Chen et al., 2020), which changes what each worker's batch holds; here
units stay what they are, and a member takes more or fewer of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MOST = 4
"""Units that a member takes in a step at most, unless told otherwise."""
AS_GOOD = 0.05
"""A smaller step is preferred where it costs no more than this share of the units a second."""


def shares(
    secs_per_unit: Sequence[float], most: int = MOST, *, least: int = 0, as_good: float = AS_GOOD
) -> tuple[int, ...]:
    """Return the units that each member takes in one step, () for one each.

    The choices are what fits into a step of some length: as much as each member gets done in it. They come as close to
    the most units a second as `as_good` allows, so with `least` 0 never below those of lock-step without the slow
    members by more than that; of the choices that do, the one with the fewest units a step, then the fastest.

    Args:
      secs_per_unit: seconds per unit of each member, above 0; math.inf, with `least` 0, for a member that is to have
        none.
      most: maximum number of units of one member, at least 1.
      least: minimum number of units of one member, 0 or 1.
      as_good: share of the most units a second that a choice may lack, in [0, 1).

    Raises:
      ValueError: there is no member to take a unit, or a number is out of range.

    >>> shares([1.0] * 7 + [5.0], most=8, least=1)
    (5, 5, 5, 5, 5, 5, 5, 1)
    """
    if most < 1 or not all(secs > 0 for secs in secs_per_unit) or min(secs_per_unit, default=math.inf) == math.inf:
        raise ValueError(
            f"shares need the seconds of a unit, above 0, of at least one member, and room for 1 unit of it; got "
            f"{list(secs_per_unit)} s and at most {most}; leave out who was not measured"
        )
    found: dict[tuple[int, ...], float] = {}
    for secs in {units * each for each in secs_per_unit if each < math.inf for units in range(1, most + 1)}:
        # The seconds of a step decide what fits into it; a rounding error must not cost a member a unit.
        fit = tuple(max(least, min(most, math.floor(secs / each * (1 + 1e-9)))) for each in secs_per_unit)
        found[fit] = units_per_sec(fit, secs_per_unit)
    enough = (1 - as_good) * max(found.values())
    best = min((fit for fit, rate in found.items() if rate >= enough), key=lambda fit: (sum(fit), -found[fit], fit))
    return () if set(best) == {1} else best


def units_per_sec(fit: Sequence[int], secs_per_unit: Sequence[float]) -> float:
    """Return what a step with shares `fit` applies a second, if it takes as long as its slowest member computes.

    >>> units_per_sec((4, 4, 1, 4), (1.0, 1.0, 4.0, 1.0)), units_per_sec((1, 1), (1.0, 4.0))
    (3.25, 0.5)
    """
    return sum(fit) / max(units * secs for units, secs in zip(fit, secs_per_unit, strict=True) if units)


def of_members(by_worker: Sequence[int], members: Sequence[int]) -> tuple[int, ...]:
    """Return the shares of a mesh's members, () for one each, from those of all workers.

    >>> of_members((4, 1, 0, 4), (0, 3)), of_members((4, 1, 0, 4), (1, 2)), of_members((1, 1, 2), (0, 1))
    ((4, 4), (1, 0), ())
    >>> of_members((4, 0), (1,))  # a single member takes what there is
    ()
    """
    own = tuple(by_worker[worker] for worker in members) if by_worker else ()
    return own if any(own) and set(own) != {1} else ()
