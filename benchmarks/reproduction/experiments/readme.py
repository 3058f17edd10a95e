"""Accuracy over time with a straggler and a killed worker: the plot of the README's first screen."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.reproduction.clusters import Even
from benchmarks.reproduction.definition import Cell, Claim, Experiment, Row
from benchmarks.reproduction.jobs import HURT
from benchmarks.reproduction.plot import Line, Panel, Point, draw
from benchmarks.reproduction.reporting import markdown, mean, spread, values
from benchmarks.reproduction.training import Training, way_of
from hybridsync.lab.simulator.cluster import Death, Slow

SEEDS = range(400, 405)
KILL_SECS = 4.0
CONDITIONS = Even(slow=(Slow(7, factor=5.0),), deaths=(Death("worker", 2, at_secs=KILL_SECS),))
DRAIN = ("drain_secs=1.0",)
"""The straggler's last units go to others after a second: the run is short, and the default is 10 s."""
LOWEST, NUM_POINTS = 0.7, 160
PLANS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "bsp": ("bsp", "lock-step", ()),
    "asp": ("asp", "asynchronous", ()),
    "hybrid": ("bsp:31.25%,asp", "hybrid", ()),
    "elastic": ("bsp:31.25%,asp", "hybrid, elastic", ("policy.online=elastic",)),
}
COLORS = {"bsp": 0, "asp": 1, "hybrid": 2, "elastic": 3}


def no_claims(rows: Sequence[Row]) -> list[Claim]:
    """Return nothing: no paper has this figure."""
    return []


def table(rows: Sequence[Row]) -> str:
    """Return time and accuracy of each plan."""
    told = [
        (
            f"`{plan}`" + (", `elastic`" if sets else ""),
            spread(values(rows, "accuracy", plan=name), "{:.3f}"),
            spread(values(rows, "seconds", plan=name), "{:.1f}"),
        )
        for name, (plan, _, sets) in PLANS.items()
    ]
    return markdown(("plan", "accuracy", "seconds"), told)


def plot(rows: Sequence[Row]) -> str:
    """Return the mean accuracy over time of each plan; every seed in the background."""
    faint, bold = [], []
    for name, (_, said, _) in PLANS.items():
        ways = [[(0.0, 0.1), *way_of(row)] for row in rows if row["plan"] == name]
        faint += [Line("", COLORS[name], [Point(*each) for each in way], faint=True) for way in ways]
        bold.append(Line(said, COLORS[name], averaged(ways, mean(rows, "seconds", plan=name))))
    events = ((KILL_SECS, "a worker is killed"),)
    panel = Panel("", "seconds of the run (virtual)", "test accuracy", [*faint, *bold], LOWEST, events=events)
    title = "Digits, 8 workers, one of them 5x slow, another one killed"
    return draw(title, "bold: mean of 5 seeds, up to the run's end", [panel])


def averaged(ways: Sequence[Sequence[tuple[float, float]]], end: float) -> list[Point]:
    """Return the mean accuracy of runs over time, up to the mean of their ends, which is labelled."""
    points = []
    for number in range(NUM_POINTS + 1):
        at = end * number / NUM_POINTS
        points.append(Point(at, statistics.fmean(_at(way, at) for way in ways)))
    last = points[-1]
    return [*points[:-1], replace(last, label=f"{statistics.fmean(way[-1][1] for way in ways):.2f} in {end:.0f} s")]


def _at(way: Sequence[tuple[float, float]], secs: float) -> float:
    """Return the accuracy between two evaluations by the line, and after the last one that of the end."""
    for (before, low), (after, high) in itertools.pairwise(way):
        if before <= secs <= after:
            return low + (high - low) * (secs - before) / (after - before or 1.0)
    return way[-1][1]


EXPERIMENT = Experiment(
    "readme",
    "all",
    "The job that asynchrony hurts; the share of lock-step is what the search in `docs/tune.md` found on other seeds.",
    [
        Cell({"plan": name, "seed": seed}, Training(HURT, plan, CONDITIONS, seed, sets=(*DRAIN, *sets)))
        for name, (plan, _, sets) in PLANS.items()
        for seed in SEEDS
    ],
    no_claims,
    table,
    plot,
)
