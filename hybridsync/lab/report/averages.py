"""Means over runs: of single figures, and of lines whose points stand at different places.

>>> spread_of([1.0, 3.0, None])
Spread(mean=2.0, sd=1.4142135623730951, n=2)
>>> mean_line([[(0.0, 1.0), (2.0, 3.0)], [(0.0, 3.0), (2.0, 3.0)]]).points
((0.0, 2.0), (2.0, 3.0))
"""

import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hybridsync.lab.report.scales import Point

NUM_PLACES = 100
"""Places at which lines are averaged that share too few of their own."""


@dataclass(frozen=True)
class Spread:
    """A figure of some runs: mean, sample standard deviation (None of fewer than two), and how many runs have it."""

    mean: float | None
    sd: float | None
    n: int


@dataclass(frozen=True)
class MeanLine:
    """A line averaged over runs.

    Args:
        points: place and mean.
        edges: place, mean less one standard deviation, and mean plus one; empty for one run.
        n: number of runs in it.
    """

    points: tuple[Point, ...]
    edges: tuple[tuple[float, float, float], ...]
    n: int


def spread_of(values: Iterable[float | None]) -> Spread:
    """Return mean and deviation of the values that are there."""
    found = [value for value in values if value is not None]
    mean = statistics.fmean(found) if found else None
    return Spread(mean, statistics.stdev(found) if len(found) > 1 else None, len(found))


def mean_line(lines: Iterable[Sequence[Point]]) -> MeanLine:
    """Return the mean of some runs' lines, over the stretch that all of them cover.

    Where they share none (short runs of unequal speed), it goes to the end of the longest, and a line that has ended
    keeps its last value: a mean of whichever lines cover a place would jump where one begins or ends.
    It stands at the places that all lines share, where those are most of the shortest line's. Otherwise it
    stands at equal steps, and each line is interpolated between its points.
    """
    each = [sorted(dict(line).items()) for line in lines if line]  # of two points at one place, the later
    if len(each) < 2:
        return MeanLine(tuple(each[0]) if each else (), (), len(each))
    shared = sorted(set.intersection(*({at for at, _ in line} for line in each)))
    if 2 * len(shared) > min(map(len, each)):
        places = shared
    else:
        low, high = max(line[0][0] for line in each), min(line[-1][0] for line in each)
        if low >= high:
            high = max(line[-1][0] for line in each)
        steps = NUM_PLACES - 1
        places = [low + (high - low) * step / steps for step in range(NUM_PLACES)] if low < high else [low]
    points, edges = [], []
    for at in places:
        values = [_value(line, at) for line in each]
        mean, sd = statistics.fmean(values), statistics.stdev(values)
        points.append((at, mean))
        edges.append((at, mean - sd, mean + sd))
    return MeanLine(tuple(points), tuple(edges), len(each))


def _value(line: Sequence[Point], at: float) -> float:
    """Return a line's value at a place, after its end its last one."""
    right = min(bisect_left(line, at, key=lambda point: point[0]), len(line) - 1)
    (x, y), (before, value) = line[right], line[max(right - 1, 0)]
    return y if x <= at or x == before else value + (y - value) * (at - before) / (x - before)
