"""Sync-Switch: lock-step first or last, at equal shares."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.reproduction.clusters import Fitted
from benchmarks.reproduction.definition import Cell, Claim, Experiment, Row
from benchmarks.reproduction.jobs import CONV, HURT, Job
from benchmarks.reproduction.parameters import asp_first, hybrid
from benchmarks.reproduction.plot import Line, Panel, Point, draw
from benchmarks.reproduction.reporting import claimed, markdown, spread, values
from benchmarks.reproduction.training import Training

SHARES = (12.5, 25, 31.25, 50)
DIGITS_SEEDS, IMAGES_SEEDS = range(400, 410), range(400, 403)
APART = 0.4
"""Of the two orders' marks, so that their spreads stand side by side."""
ORDERS = {"lock-step first": hybrid, "lock-step last": asp_first}


def cells(job: Job, seeds: Sequence[int]) -> list[Cell]:
    """Return a run for each share, order and seed."""
    return [
        Cell(
            {"share": share, "order": order, "seed": seed},
            Training(job, plan_of(share), Fitted(), seed, evaluations=0),
        )
        for share in SHARES
        for order, plan_of in ORDERS.items()
        for seed in seeds
    ]


def differences(rows: Sequence[Row], share: float) -> list[float]:
    """Return the points by which lock-step first is better, seed by seed."""
    by = {(row["order"], row["seed"]): float(row["accuracy"] or 0) for row in rows if row["share"] == share}
    seeds = sorted({seed for _, seed in by}, key=str)
    return [100 * (by["lock-step first", seed] - by["lock-step last", seed]) for seed in seeds]


def claims(rows: Sequence[Row], job: Job, seeds: Sequence[int]) -> list[Claim]:
    """Return the claim about the order."""

    def told(rows: Sequence[Row]) -> tuple[str, bool]:
        means = {share: statistics.fmean(differences(rows, share)) for share in SHARES}
        said = ", ".join(f"{points:+.1f} at {share:g} %" for share, points in means.items())
        return f"{said} (points)", all(points > 0 for points in means.values())

    where = f"{job.name}, {len(seeds)} paired seeds"
    return [claimed(rows, "lock-step first is better than last, at each of four equal shares", "better", where, told)]


def table(rows: Sequence[Row]) -> str:
    """Return both orders' accuracies and their paired differences."""
    told = []
    for share in SHARES:
        both = (spread(values(rows, "accuracy", order=order, share=share), "{:.4f}") for order in ORDERS)
        told.append((f"{share:g} %", *both, spread(differences(rows, share), "{:.1f}")))
    head = ("share of lock-step", "`bsp:S%,asp`", "`asp:(100-S)%,bsp`", "first less last, points, paired")
    return markdown(head, told)


def plot(rows: Sequence[Row]) -> str:
    """Return accuracy by share, a line an order."""
    lines = []
    for color, order in enumerate(ORDERS):
        points = []
        for share in SHARES:
            found = values(rows, "accuracy", order=order, share=share)
            points.append(Point(share + (color - 0.5) * APART, statistics.fmean(found), min(found), max(found)))
        lines.append(Line(order, color, points, marks=True))
    panel = Panel("", "share of lock-step, %", "test accuracy", lines, ticks=SHARES)
    return draw("Lock-step first or last, at equal shares", "mark: mean; line: worst to best seed", [panel])


DIGITS = Experiment(
    "syncswitch_order",
    "Sync-Switch",
    "Both orders have the same share, so neither has more lock-step than the other. The job is the frontier's.",
    cells(HURT, DIGITS_SEEDS),
    lambda rows: claims(rows, HURT, DIGITS_SEEDS),
    table,
    plot,
)
IMAGES = Experiment(
    "syncswitch_order_images",
    "Sync-Switch",
    "The same on real images.",
    cells(CONV, IMAGES_SEEDS),
    lambda rows: claims(rows, CONV, IMAGES_SEEDS),
    table,
)
