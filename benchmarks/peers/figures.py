"""Figures of repeated measurements: what is left out, medians, spreads, ratios; pure.

>>> kept([9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 9.0])
[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
>>> Spread.of([3.0, 1.0, 2.0])
Spread(median=2.0, low=1.0, high=3.0, count=3)
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.jobs import SKIPPED_SHARE
from hybridsync.lab.report.scales import number


@dataclass(frozen=True)
class Measurement:
    """One figure of one system in one round.

    Args:
      case: what was measured (`benchmarks.peers.work`).
      system: by whom (`benchmarks.peers.systems`).
      round: number of the round, from 0; ratios are of one round.
      figure: in the case's unit.
      load: load average of the last minute when it ended; the measurement itself is in it.
      accuracy: on the test images at the end, 0 to 1; None where nothing was trained.
    """

    case: str
    system: str
    round: int
    figure: float
    load: float
    accuracy: float | None = None


@dataclass(frozen=True)
class Failure:
    """A system that did not give a figure in one round, and why."""

    work: str
    system: str
    round: int
    reason: str


@dataclass(frozen=True)
class Spread:
    """Several values of one figure: their median, the lowest and the highest, and how many there are."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return the spread of at least one value.

        Raises:
          ValueError: there is none.
        """
        found = sorted(values)
        if not found:
            raise ValueError("there is no value to take a spread of; measure one round at least")
        return cls(statistics.median(found), found[0], found[-1], len(found))


@dataclass
class Results:
    """What one run of the benchmark found; a JSON file.

    Args:
      machine: what it ran on, by name.
      pins: the packages of each environment with their versions, ours included.
      rounds: how many were asked for.
      measurements, failures: in the order in which they were made.
    """

    machine: dict[str, str]
    pins: dict[str, list[str]]
    rounds: int
    measurements: list[Measurement] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def figures(self, case: str, system: str) -> dict[int, Measurement]:
        """Return a system's measurements of a case by their round; {} where there are none."""
        return {each.round: each for each in self.measurements if (each.case, each.system) == (case, system)}

    def ratios(self, case: str, ours: str, peer: str, *, lower_is_better: bool) -> list[float]:
        """Return how many times as fast as `peer` ours was, in each round that has both."""
        one, other = self.figures(case, ours), self.figures(case, peer)
        pairs = [(one[number].figure, other[number].figure) for number in sorted(one.keys() & other.keys())]
        return [theirs / own if lower_is_better else own / theirs for own, theirs in pairs]

    def write(self, path: Path) -> None:
        """Write the file, a measurement a line."""
        head = {name: getattr(self, name) for name in ("machine", "pins", "rounds")}
        lists: list[str] = []
        for name in ("measurements", "failures"):
            rows = ",\n".join(f"  {json.dumps(dataclasses.asdict(each))}" for each in getattr(self, name))
            lists.append(f' "{name}": [\n{rows}\n ]' if rows else f' "{name}": []')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(head, indent=1)[:-2] + ",\n" + ",\n".join(lists) + "\n}\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Results:
        """Return what `write` wrote.

        Raises:
          ValueError: the file holds something else.
        """
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if missing := {each.name for each in dataclasses.fields(cls)} ^ found.keys():
            raise ValueError(f"{path} lacks or has too much: {sorted(missing)}; measure again with this version")
        measurements = [Measurement(**each) for each in found.pop("measurements")]
        failures = [Failure(**each) for each in found.pop("failures")]
        return cls(**found, measurements=measurements, failures=failures)


def kept(values: Sequence[float]) -> list[float]:
    """Return values in their order without the first and the last tenth of them; at least one stays."""
    skipped = round(len(values) * SKIPPED_SHARE)
    return list(values[skipped : len(values) - skipped])


def short(value: float) -> str:
    """Return a figure of three digits, or all of them above 1,000.

    >>> short(12345.6), short(999.4), short(0.12345)
    ('12,346', '999', '0.123')
    """
    return number(value if value >= 1000 else float(f"{value:.3g}"))


def calls_per_sec(secs: Sequence[float]) -> float:
    """Return the rate of calls that took `secs` each, without the first and the last tenth.

    >>> calls_per_sec([5.0] + 8 * [0.5] + [5.0])
    2.0
    """
    taken = kept(secs)
    return len(taken) / sum(taken)
