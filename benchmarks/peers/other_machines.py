"""What was measured on further machines, of which no rounds are kept: medians and ranges, beside those of the results.

>>> figure = Figure("digits-busy/lockstep", "torch_ddp", "ratio", median=2.6, low=2.1, high=3.6)
>>> Range(13.2, 5.6, 16.6).over(figure.range).written(str), figure.range.written(str)
('2.1 to 16.6', '2.6 (2.1 to 3.6)')
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.peers.figures import Results, Spread
from benchmarks.peers.systems import OURS
from benchmarks.peers.work import ALL_REDUCES, ASYNC, DIGITS, LOCKSTEP, case_of

FILE = Path(__file__).resolve().parents[2] / "docs" / "performance" / "other_machines.json"

What = Literal["ratio", "ideal", "figure"]
"""How many times as fast as a system ours is, a share of the ideal, or a figure in its case's unit."""


@dataclass(frozen=True)
class Range:
    """A median and the lowest and highest of the rounds; a part that is not known is None."""

    median: float | None = None
    low: float | None = None
    high: float | None = None

    def over(self, other: Range) -> Range:
        """Return the range over both, which has no median."""
        known = [each for one in (self, other) for each in (one.median, one.low, one.high) if each is not None]
        return Range(None, min(known), max(known))

    def written(self, form: Callable[[float], str]) -> str:
        """Return it in words, each value as `form` writes it."""
        around = "" if self.low is None or self.high is None else f"{form(self.low)} to {form(self.high)}"
        if self.median is None:
            return around
        return form(self.median) + (f" ({around})" if around else "")


@dataclass(frozen=True)
class Figure:
    """One figure of a machine.

    Args:
      case: what was measured (`benchmarks.peers.work`).
      system: by whom (`benchmarks.peers.systems`); for a ratio, beside whom.
      what: kind of figure.
      median, low, high: see `Range`.
    """

    case: str
    system: str
    what: What
    median: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def range(self) -> Range:
        """The figure's values."""
        return Range(self.median, self.low, self.high)


@dataclass(frozen=True)
class Machine:
    """A machine: what people call it, what it is, and its figures."""

    name: str
    machine: dict[str, str]
    figures: tuple[Figure, ...]


def read(path: Path = FILE) -> list[Machine]:
    """Return the machines of a file, in its order."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return [Machine(each["name"], each["machine"], tuple(Figure(**one) for one in each["figures"])) for each in found]


def measured(results: Results, figure: Figure) -> Range | None:
    """Return the same figure on the machine of the results; None where it was not measured there."""
    found = [each.figure for each in results.figures(figure.case, figure.system).values()]
    if figure.what == "ratio":
        sums = [case_of(work) for work in ALL_REDUCES]
        found = results.ratios(figure.case, OURS, figure.system, lower_is_better=figure.case in sums)
    if not found:
        return None
    ideals = {case_of(work, kind): work.ideal(kind) for work in DIGITS for kind in (LOCKSTEP, ASYNC)}
    spread, whole = Spread.of(found), 1.0
    if figure.what == "ideal":
        whole = ideals[figure.case] or 1.0
    return Range(*(each / whole for each in (spread.median, spread.low, spread.high)))


def beside(results: Results, machine: Machine) -> Iterator[tuple[Figure, Range | None, Range]]:
    """Yield each figure of a machine with the same one of the results, and the range over both."""
    for figure in machine.figures:
        here = measured(results, figure)
        yield figure, here, figure.range.over(here or figure.range)
