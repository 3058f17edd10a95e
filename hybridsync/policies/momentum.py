"""Adapts the momentum where a run goes over to asynchrony: Sync-Switch's configuration policy. Pure.

    >>> handled = momentum_handling("ramp_linear", 0.1, 8, ends=(500, 4000), asynchronous=(False, True))
    >>> [handled.factor_at(units) for units in (499, 500, 700, 900)]
    [1.0, 0.125, 0.5625, 1.0]

The coefficient is a function of the units applied, as the learning rate is, so that every holder of the state, every
resume and every replay have the same one. With n workers and m the coefficient that the optimizer names:

    keep          m, and the slots stay: the default, and the best of the published ones (.914 mean accuracy)
    zero          the slots are zeroed once, in the state that asynchrony begins with; m stays (.861 to .877)
    scaled        m / n as long as it is asynchronous (.882 to .902)
    ramp_linear   m / n at the switch, m after a stretch of the workload, linear between (ramps: .897 to .912)
    ramp_steps    m / n at the switch, doubled in equal stretches until it is m
    ramp_stages   m / n at the switch, raised by as much in each of eight equal stretches, m in the eighth

The stretch is `policy.ramp` of the workload, a quarter by default: the authors' eight stages took 2,000 of 64,000 steps
each, and their increments with 8 workers 6,400 each (`ramp_steps` with a ramp of .3).

A protocol is asynchronous here if its updates are of fewer units than there are workers, on older parameters. If the
batch stays, as with GBA, there is nothing to handle.

Source: Li et al., Sync-Switch, ICDCS 2021, section IV; the lengths of the ramps are those of the authors' code, their
form with another number of workers than 8 is a reconstruction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hybridsync.config.policy_config import MomentumVariant
from hybridsync.protocols.base import Protocol


class Segment(NamedTuple):
    """Units from `begin` to before `end`, over which the coefficient's share goes from `first` to `last`."""

    begin: int
    end: int
    first: float
    last: float


@dataclass(frozen=True)
class MomentumHandling:
    """Scales or zeroes the momentum as units are applied.

    Args:
      variant: as the configuration names it, for messages.
      zero_at: units at which the slots are zeroed, before the next update.
      segments: parts of the run in which the coefficient is not the optimizer's own.
    """

    variant: MomentumVariant = "keep"
    zero_at: tuple[int, ...] = ()
    segments: tuple[Segment, ...] = ()

    def factor_at(self, units: int) -> float:
        """Return the share of the optimizer's own coefficient that the update after `units` units has."""
        for begin, end, first, last in self.segments:
            if begin <= units < end:
                return first + (last - first) * (units - begin) / (end - begin)
        return 1.0


NUM_STAGES = 8
"""Of `ramp_stages`, as the authors had them."""
KEEP = MomentumHandling()
"""Nothing is handled."""


def is_asynchronous(protocol: Protocol, num_workers: int) -> bool:
    """Return whether a protocol makes smaller updates than lock-step does, on older parameters."""
    return protocol.units_per_update(num_workers) < num_workers and protocol.staleness_bound(num_workers) != 0


def momentum_handling(
    variant: MomentumVariant, ramp: float, num_workers: int, ends: Sequence[int], asynchronous: Sequence[bool]
) -> MomentumHandling:
    """Return what becomes of the momentum in a plan.

    Args:
      variant: see the module's docstring.
      ramp: share of the workload that a ramp takes.
      num_workers: number of workers, n.
      ends: units applied at the end of each stage.
      asynchronous: whether each stage is asynchronous, in order.
    """
    if variant == "keep" or num_workers == 1:
        return MomentumHandling(variant)
    begins = (0, *ends[:-1])
    zero_at, segments = [], []
    for i in range(1, len(ends)):
        if not asynchronous[i] or asynchronous[i - 1]:
            continue
        after = (j for j in range(i, len(ends)) if j + 1 == len(ends) or not asynchronous[j + 1])
        begin, end = begins[i], ends[next(after)]
        if variant == "zero":
            zero_at.append(begin)
        else:
            segments += _segments(variant, begin, end, max(1, round(ramp * ends[-1])), num_workers)
    return MomentumHandling(variant, tuple(zero_at), tuple(segments))


def _segments(variant: MomentumVariant, begin: int, end: int, length: int, num_workers: int) -> list[Segment]:
    """Return the segments of one asynchronous stretch; a ramp that is longer than it ends with it."""
    low = 1.0 / num_workers
    if variant == "scaled":
        return [Segment(begin, end, low, low)]
    stop = min(end, begin + length)
    if variant == "ramp_linear":
        return [Segment(begin, stop, low, low + (1.0 - low) * (stop - begin) / length)]
    if variant == "ramp_steps":
        levels = [2**step * low for step in range(math.ceil(math.log2(num_workers)))]
    else:
        levels = [min(1.0, low + (1.0 - low) * stage / (NUM_STAGES - 1)) for stage in range(NUM_STAGES)]
    bounds = [begin + round(length * step / len(levels)) for step in range(len(levels) + 1)]
    steps = ((at, min(end, to), level) for level, (at, to) in zip(levels, itertools.pairwise(bounds), strict=True))
    return [Segment(at, to, share, share) for at, to, share in steps if at < to]
