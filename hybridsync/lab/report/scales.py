"""Axes: where ticks stand, how figures and names are written, which points of a long line are drawn.

>>> linear(0.0, 9.3).ticks
(0.0, 2.0, 4.0, 6.0, 8.0)
>>> logarithmic(0.03, 2.0).ticks
(0.1, 1.0)
>>> number(20_062.4), number(0.0381871), ids([0, 1, 2, 5])
('20,062', '0.03819', '0-2, 5')
"""

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Point = tuple[float, float]

MOST_POINTS = 600
"""Points of a line that are drawn: about as many as a chart has pixels."""


@dataclass(frozen=True)
class Axis:
    """One direction of a chart.

    Args:
        low: value at its beginning.
        high: value at its end, above `low`.
        ticks: values that are written next to the axis.
        is_log: whether equal steps are equal ratios; then `low` is above 0.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def fraction(self, value: float) -> float:
        """Return where `value` stands, from 0 to 1; what is outside stands at the nearer end."""
        if self.is_log:
            value = max(value, self.low)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)


def linear(low: float, high: float, num_ticks: int = 5) -> Axis:
    """Return an axis whose ticks are 1, 2 or 5 times a power of ten."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / num_ticks
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(low, high, tuple(round(index * step, 12) for index in range(first, last + 1)))


def time_axis(high: float, num_ticks: int = 5) -> Axis:
    """Return an axis of seconds from 0 whose ticks are round as seconds, minutes or hours."""
    raw = max(high, 1e-3) / num_ticks
    round_steps = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400]
    step = next((step for step in round_steps if step >= raw), 0)
    if raw < 5 or not step:
        return linear(0.0, max(high, 1e-3), num_ticks)
    return Axis(0.0, high, tuple(float(index * step) for index in range(math.floor(high / step) + 1)))


def logarithmic(low: float, high: float) -> Axis:
    """Return an axis with a tick at each power of ten, and at 2 and 5 times it when those are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        ticks = [round(10.0**power * factor, 12) for power in powers for factor in factors]
        inside = tuple(tick for tick in ticks if low <= tick <= high)
        if len(inside) >= 2:
            break
    while len(inside) > 6:
        inside = inside[::2]
    return Axis(low, high, inside, is_log=True)


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Return at most about `most` of a line's points; of each stretch the lowest, highest and last stay."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(3 * len(points) / most)
    kept = []
    for begin in range(0, len(points), size):
        stretch = range(begin, min(begin + size, len(points)))
        low, high = min(stretch, key=lambda i: points[i][1]), max(stretch, key=lambda i: points[i][1])
        kept += [points[index] for index in sorted({low, high, stretch[-1]})]
    return kept


def number(value: float | None) -> str:
    """Return a figure of four digits, or all of them above 1,000; "-" for none."""
    if value is None:
        return "-"
    if value == 0 or abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def short(value: float) -> str:
    """Return a tick's figure: 20k, 1.5M, 0.05."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{suffix}"
    return f"{value:.4g}"


def millis(secs: float | None) -> str:
    """Return a short length of time in milliseconds, without digits that say nothing; "-" for none."""
    if secs is None:
        return "-"
    return f"{secs * 1e3:,.0f} ms" if secs >= 0.01 else f"{secs * 1e3:.2g} ms"


_NUMBER = re.compile(
    r"((?:(?<![^\s=(,:\[])[-+]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)|[0-9]+(?:\.[0-9]+)?)(?:[eE][-+]?[0-9]+(?!\w))?)"
)
"""A number within a name. A sign, or a point without a digit before it, is a number's only where a value begins."""


def natural(value: Any) -> list[str | float]:
    """Return the key by which names are put in order: numbers within them by their size, as `natural` of the page.

    >>> sorted(["ssp(staleness=10)", "bsp:25%,asp", "ssp(staleness=2)", "bsp:5%,asp"], key=natural)
    ['bsp:5%,asp', 'bsp:25%,asp', 'ssp(staleness=2)', 'ssp(staleness=10)']
    >>> sorted([0.1, -2, 1e-05, -1, 4], key=natural)
    [-2, -1, 1e-05, 0.1, 4]
    """
    parts = _NUMBER.split(str(value))
    return [float(part) if at % 2 else part for at, part in enumerate(parts)]


def shortened(names: Sequence[str]) -> tuple[str, list[str]]:
    """Return what names have in common at their ends, by whole words, and the part in which they differ.

    >>> shortened(["ssp(staleness=1)", "ssp(staleness=10)"]), shortened(["asp", "bsp"])
    (('ssp(staleness=…)', ['1', '10']), ('', ['asp', 'bsp']))
    """
    words = [re.findall(r"[\w.%]+|[^\w.%]", name) for name in names]
    first = _num_alike(words)
    last = _num_alike([each[first:][::-1] for each in words])
    parts = ["".join(each[first : len(each) - last]) for each in words]
    if len(names) < 2 or not first + last or not all(parts):
        return "", [*names]
    return f"{''.join(words[0][:first])}…{''.join(words[0][len(words[0]) - last :])}", parts


def _num_alike(rows: Sequence[Sequence[str]]) -> int:
    """Return at how many places from their begin on all rows say the same."""
    return len([*itertools.takewhile(lambda column: len({*column}) == 1, zip(*rows, strict=False))])


def ids(numbers: Iterable[int]) -> str:
    """Return ids with neighbours put together."""
    runs: list[list[int]] = []
    for value in sorted(set(numbers)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
