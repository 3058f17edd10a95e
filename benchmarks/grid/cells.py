"""The grid of `benchmarks.protocols`: which runs it has, on which simulated cluster, and what came of each. Pure.

>>> len(grid())
1040
>>> grid(protocols=("hsp",), stragglers=("uniform",), links=("1",), seeds=(7,))
[Cell(protocol='hsp', straggler='uniform', link='1', seed=7)]
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from random import Random
from typing import Any

from hybridsync.core.errors import ConfigError
from hybridsync.lab.simulator.cluster import Cluster, Device, Link, Scenario, Slow

WORKERS = 8
COMPUTE_SECS, SPREAD = 0.05, 0.2
"""Of a unit on a worker that nothing slows down: the mean, and standard deviation over mean."""
SLOW_WORKER = WORKERS - 1
BURST_SECS, PERIOD_SECS, HORIZON_SECS = 1.0, 10.0, 300.0
"""A transient straggler is slow once in every period, up to a horizon that no run of the grid reaches."""

PROTOCOLS = (
    "bsp",
    "bsp_server",
    "backup",
    "asp",
    "ssp",
    "dssp",
    "gba",
    "hsp",
    "psplus",
    "localsgd",
    "diloco",
    "preduce",
    "adpsgd",
)
"""From lock-step to groups, neighbours together; the page about protocols has the same order."""
STRAGGLERS = {
    "uniform": "eight equal workers",
    "one2x": "one of the eight takes twice as long",
    "one5x": "one of the eight takes five times as long",
    "transient": "each takes five times as long in a tenth of the time, in bursts of a second",
}
LINKS = {"free": 0.0, "0.25": 0.25, "1": 1.0, "4": 4.0}
"""What n transfers of a gradient through the servers' port take, over a unit's compute time; 0 for 10 Gb/s."""
SEEDS = tuple(range(200, 205))


@dataclass(frozen=True)
class Cell:
    """One run of the grid.

    Args:
      protocol: with its default settings.
      straggler: one of STRAGGLERS.
      link: one of LINKS.
      seed: of the model's start, the order of examples and every draw of the cluster.
    """

    protocol: str
    straggler: str
    link: str
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Args:
      cell: which one.
      workload: its units.
      seconds: virtual, from the first unit leased; None where it did not complete.
      units_per_sec: applied a virtual second; None where it did not complete.
      dropped: units left out for good.
      accuracy: of the held-out set at the end; that of guessing where the run diverged.
      staleness_mean, staleness_max: in updates.
      bound: the protocol's on staleness; None where it has none.
      curve: virtual second and training loss, a mean of the units that were computed last.
      error: why it did not complete; "" where it did, or diverged.
    """

    cell: Cell
    workload: int
    seconds: float | None
    units_per_sec: float | None
    dropped: int
    accuracy: float
    staleness_mean: float
    staleness_max: float
    bound: int | None
    curve: tuple[tuple[float, float], ...]
    error: str = ""

    @classmethod
    def failed(cls, cell: Cell, workload: int, error: str) -> Outcome:
        """Return what came of a run that could not go on."""
        return cls(cell, workload, None, None, 0, 0.0, 0.0, 0.0, None, (), error)

    @property
    def fault(self) -> str:
        """What is wrong with it; "" where nothing is."""
        if not self.error and self.bound is not None and self.staleness_max > self.bound:
            return f"a staleness of {self.staleness_max:g} is above the protocol's bound of {self.bound}"
        return self.error

    def secs_to(self, loss: float) -> float | None:
        """Return the virtual second at which the training loss came down to `loss`; None where it never did."""
        return next((secs for secs, value in self.curve if value <= loss), None)

    def to_json(self) -> dict[str, Any]:
        """Return the line of the record."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "cell"}
        return {**asdict(self.cell), **values}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Outcome:
        """Return what a line of the record says.

        Raises:
          ConfigError: it is no such line.
        """
        values = dict(line)
        try:
            cell = Cell(**{each.name: values.pop(each.name) for each in fields(Cell)})
            curve = tuple((float(secs), float(value)) for secs, value in values.pop("curve"))
            return cls(cell=cell, curve=curve, **values)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"a line of the record is no run of the grid ({error}); name another workdir") from None


def grid(
    protocols: Sequence[str] = PROTOCOLS,
    stragglers: Sequence[str] = tuple(STRAGGLERS),
    links: Sequence[str] = tuple(LINKS),
    seeds: Sequence[int] = SEEDS,
) -> list[Cell]:
    """Return the runs of a part of the grid, one block of the table after another.

    Raises:
      ConfigError: a name is not of the grid.
    """
    for kind, given, known in (
        ("protocols", protocols, PROTOCOLS),
        ("stragglers", stragglers, STRAGGLERS),
        ("links", links, LINKS),
    ):
        for name in given:
            if name not in known:
                raise ConfigError(f"--{kind} names {name!r}, which the grid has not; known: {', '.join(known)}")
    return [
        Cell(protocol, straggler, link, seed)
        for straggler, link, protocol, seed in itertools.product(stragglers, links, protocols, seeds)
    ]


def scenario(cell: Cell, gradient_bytes: int) -> Scenario:
    """Return the cluster of a run.

    Args:
      cell: of the grid.
      gradient_bytes: of one push, which makes the servers' port of a link as fast as its ratio says.
    """
    ratio = LINKS[cell.link]
    port = Link(bytes_per_sec=WORKERS * gradient_bytes / (ratio * COMPUTE_SECS)) if ratio else Link()
    cluster = Cluster(devices=(Device(COMPUTE_SECS, spread=SPREAD),), server_link=port)
    return Scenario(cluster=cluster, slow=_slow(cell.straggler, cell.seed))


def _slow(straggler: str, seed: int) -> tuple[Slow, ...]:
    if straggler == "uniform":
        return ()
    if straggler != "transient":
        return (Slow(SLOW_WORKER, factor={"one2x": 2.0, "one5x": 5.0}[straggler]),)
    random, bursts = Random(seed), []
    for period in range(int(HORIZON_SECS / PERIOD_SECS)):
        for worker in range(WORKERS):
            begin = period * PERIOD_SECS + random.uniform(0.0, PERIOD_SECS - BURST_SECS)
            bursts.append(Slow(worker, factor=5.0, start_secs=begin, stop_secs=begin + BURST_SECS))
    return tuple(bursts)
