"""Sync-Switch: time and accuracy by the share of lock-step, on a cluster with the published times."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.reproduction.clusters import Conditions, Even, Fitted
from benchmarks.reproduction.definition import Cell, Claim, Experiment, Row
from benchmarks.reproduction.jobs import CONV, HURT, NORMED, NORMED_SHORT, NORMED_WHOLE, Job
from benchmarks.reproduction.parameters import hybrid
from benchmarks.reproduction.plot import Line, Panel, Point, draw
from benchmarks.reproduction.reporting import claimed, markdown, mean, spread, values
from benchmarks.reproduction.training import Training, secs_to
from hybridsync.lab.simulator.study import Gradients

MAIN = (0, 6.25, 12.5, 25, 50, 100)
SEARCHED = (3.125, 18.75, 31.25, 37.5)
"""Shares that a search for the switch point asks for besides."""
DIGITS_SEEDS, IMAGES_SEEDS, LONG_SEEDS = range(400, 410), range(400, 403), range(4, 9)
POINT = 0.01
PAPERS = (5, 6.25)
"""The paper's text names 6.25 %, and its 5.13x is that of the published runs of 5 %."""
FITTED = Fitted()


def cells(
    job: Job,
    shares: Sequence[float],
    seeds: Sequence[int],
    evaluations: int = 40,
    conditions: Conditions = FITTED,
    gradients: Gradients = "real",
) -> list[Cell]:
    """Return a run for each share and seed."""
    options = {"evaluations": evaluations, "gradients": gradients}
    return [
        Cell({"share": share, "seed": seed}, Training(job, hybrid(share), conditions, seed, **options))
        for share in sorted(shares)
        for seed in seeds
    ]


def to_target(rows: Sequence[Row], share: float) -> list[float]:
    """Return the seconds to lock-step's mean accuracy less one point, of the runs that came there and stayed."""
    target = mean(rows, "accuracy", share=100) - POINT
    found = (secs_to(row, target) for row in rows if row["share"] == share)
    return [secs for secs in found if secs is not None]


def smallest(rows: Sequence[Row]) -> float:
    """Return the smallest share whose mean accuracy is at most a point below lock-step's."""
    bound = mean(rows, "accuracy", share=100) - POINT
    return min(share for share in shares_of(rows) if mean(rows, "accuracy", share=share) >= bound)


def shares_of(rows: Sequence[Row]) -> list[float]:
    """Return the shares, ascending."""
    return sorted({float(row["share"] or 0) for row in rows})


def table(rows: Sequence[Row]) -> str:
    """Return time and accuracy of every share."""
    bsp_secs, told = mean(rows, "seconds", share=100), []
    for share in shares_of(rows):
        reached, seeds = to_target(rows, share), len(values(rows, "accuracy", share=share))
        secs = mean(rows, "seconds", share=share)
        told.append(
            (
                f"`{hybrid(share)}`",
                spread(values(rows, "accuracy", share=share), "{:.4f}"),
                f"{min(values(rows, 'accuracy', share=share)):.4f}",
                f"{secs:.1f}",
                f"{bsp_secs / secs:.2f}x",
                (f"{statistics.fmean(reached):.1f} s" if reached else "-") + f", {len(reached)} of {seeds}",
                f"{mean(rows, 'staleness_mean', share=share):.1f}",
            )
        )
    head = (
        "plan",
        "accuracy",
        "worst seed",
        "seconds",
        "throughput / `bsp`",
        "to `bsp`'s accuracy less a point",
        "staleness",
    )
    return markdown(head, told)


def plot(rows: Sequence[Row], job: Job) -> str:
    """Return accuracy over time, a mark a share of lock-step."""
    points = []
    for share in shares_of(rows):
        found = values(rows, "accuracy", share=share)
        at = mean(rows, "seconds", share=share)
        points.append(
            Point(at, statistics.fmean(found), min(found), max(found), f"{share:g} %" if share in MAIN else "")
        )
    line = Line("", 0, points, marks=True)
    panel = Panel(job.name, "seconds of the run (virtual), logarithmic", "test accuracy", [line], is_log=True)
    num_seeds = len({row["seed"] for row in rows})
    note = f"mark: mean of {num_seeds} seeds; line: worst to best" if num_seeds > 1 else "one seed"
    return draw("Accuracy and time by the share of lock-step", note, [panel])


def above(rows: Sequence[Row]) -> tuple[str, bool]:
    """Return what the smallest share that is good enough gains over asynchrony, and what time it takes beside it."""
    share = smallest(rows)
    more = 100 * (mean(rows, "accuracy", share=share) - mean(rows, "accuracy", share=0))
    ratio = mean(rows, "seconds", share=share) / mean(rows, "seconds", share=0)
    return f"{more:+.1f} points at {ratio:.2f}x the time ({share:g} %)", more >= 3.8 and ratio <= 1.23


def even_claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the abstract's claim beside asynchrony, where a lock-step step costs no more than its slowest unit."""
    where = (
        f"{HURT.name}, 8 simulated workers of 50 ms a unit, lock-step without network costs, {len(DIGITS_SEEDS)} seeds"
    )
    return [claimed(rows, "accuracy above `asp`, and time over its time", "+3.8 points at 1.23x", where, above)]


def claims(rows: Sequence[Row], job: Job, seeds: Sequence[int]) -> list[Claim]:
    """Return the abstract's claims about time and accuracy, of the seeds that there are rows of."""
    num_seeds = len({row["seed"] for row in rows}) or len(seeds)
    counted = f"{num_seeds} seeds" if num_seeds == len(seeds) else f"{num_seeds} of {len(seeds)} seeds"
    where = f"{job.name}, 8 simulated workers on the published times, {counted}"

    def faster(rows: Sequence[Row]) -> tuple[str, bool]:
        share = smallest(rows)
        ratio = mean(rows, "seconds", share=100) / mean(rows, "seconds", share=share)
        less = 100 * (mean(rows, "accuracy", share=share) - mean(rows, "accuracy", share=100))
        return f"{ratio:.2f}x at {share:g} %, {less:+.1f} points", ratio >= 5.13

    def fixed(rows: Sequence[Row]) -> tuple[str, bool]:
        found = []
        for share in (share for share in PAPERS if share in shares_of(rows)):
            ratio = mean(rows, "seconds", share=100) / mean(rows, "seconds", share=share)
            less = 100 * (mean(rows, "accuracy", share=share) - mean(rows, "accuracy", share=100))
            found.append((f"{ratio:.2f}x, {less:+.1f} points ({share:g} %)", ratio >= 5.0 and less >= -1))
        return "; ".join(said for said, _ in found), any(met for _, met in found)

    def soon(rows: Sequence[Row]) -> tuple[str, bool]:
        found = {share: to_target(rows, share) for share in shares_of(rows)}
        whole = {share: statistics.fmean(some) for share, some in found.items() if len(some) == num_seeds}
        if 100 not in whole:
            return "`bsp` does not stay above it in every seed", False
        best = min((share for share in whole if share != 100), key=lambda share: whole[share], default=None)
        if best is None:
            return "no hybrid came there in every seed", False
        return f"{whole[100] / whole[best]:.2f}x at {best:g} %, in every seed", whole[100] / whole[best] >= 3.99

    return [
        claimed(rows, "throughput of `bsp` at similar accuracy (at most a point less)", "5.13x", where, faster),
        claimed(
            rows,
            "the paper's share of lock-step: throughput over, and accuracy against, `bsp`",
            "5.13x, -.1 points (8 runs of 5 %); one run of 6.25 %: 5.07x",
            where,
            fixed,
        ),
        claimed(rows, "accuracy above `asp`, and time over its time", "+3.8 points at 1.23x", where, above),
        claimed(rows, "time to `bsp`'s accuracy (less a point)", "3.99x / 1.08x (two setups)", where, soon),
    ]


DIGITS = Experiment(
    "syncswitch_frontier",
    "Sync-Switch",
    "The job was chosen on other seeds so that asynchrony costs it 4 to 7 points, while lock-step stands at .97 and a "
    "point is 3.6 test examples. Step and unit take the published times of setup 1.",
    cells(HURT, (*MAIN, *SEARCHED), DIGITS_SEEDS),
    lambda rows: claims(rows, HURT, DIGITS_SEEDS),
    table,
    lambda rows: plot(rows, HURT),
)
IMAGES = Experiment(
    "syncswitch_frontier_images",
    "Sync-Switch",
    "Real images, 10,000 test images and an accuracy of one half, so nothing is saturated. The rate is the best of a "
    "ladder for lock-step on another seed, as published jobs are tuned; asynchrony was not looked at.",
    cells(CONV, MAIN, IMAGES_SEEDS, 20),
    lambda rows: claims(rows, CONV, IMAGES_SEEDS),
    table,
    lambda rows: plot(rows, CONV),
)


def gentler(name: str, part: int, times: int, why: str) -> Experiment:
    """Return the frontier of images at a part of the job's rate, with so many times its units."""
    config = CONV.config()
    sets = [f"optimizer.learning_rate={config.optimizer.learning_rate / part:g}"]
    told = f"{CONV.name}, 1/{part} of its rate"
    if times > 1:
        sets.append(f"workload={times * config.workload}")
        told += f", {times} times its units"
    job = replace(CONV, name=told, sets=tuple(sets))
    return Experiment(
        f"syncswitch_frontier_{name}",
        "Sync-Switch",
        why,
        cells(job, MAIN, IMAGES_SEEDS, 20),
        lambda rows: claims(rows, job, IMAGES_SEEDS),
        table,
        lambda rows: plot(rows, job),
    )


GENTLER = (
    "The conv net at 1/{} of its rate, where asynchrony may lose less. Both rates, 1/2 and 1/4, were committed before "
    "either was run."
)
HALF_RATE = gentler("half_rate", 2, 1, GENTLER.format(2))
QUARTER_RATE = gentler("quarter_rate", 4, 1, GENTLER.format(4))
LONGER = gentler(
    "longer",
    4,
    4,
    "The job of the table above with 12,800 units instead of 3,200; the published runs have 64,000. It was defined "
    "after that table was measured and before any run of its own.",
)
EVEN = Experiment(
    "syncswitch_frontier_even",
    "Sync-Switch",
    "The cluster of docs/tune.md, whose search gave 31.25 % on other seeds. Lock-step is only 1.3 times as slow as "
    "asynchrony here, so a hybrid costs little time and saves little.",
    cells(HURT, (0, 25, 31.25, 100), DIGITS_SEEDS, conditions=Even()),
    even_claims,
    table,
)


def by_length(
    name: str,
    job: Job,
    why: str,
    shares: Sequence[float] = (*MAIN, 5),
    seeds: Sequence[int] = LONG_SEEDS,
    gradients: Gradients = "real",
) -> Experiment:
    """Return a frontier of the job with BatchNorm, seed after seed."""
    seed_by_seed = [cell for seed in seeds for cell in cells(job, shares, (seed,), 20, gradients=gradients)]
    return Experiment(
        f"syncswitch_frontier_{name}",
        "Sync-Switch",
        why,
        seed_by_seed,
        lambda rows: claims(rows, job, seeds),
        table,
        lambda rows: plot(rows, job),
        by_seed=True,
    )


LONG = by_length(
    "long",
    NORMED,
    "Twenty passes over real images, with BatchNorm and weight decay. The published runs have 164 passes, the jobs "
    "above 2 to 8 over images, without BatchNorm. Job and rate were committed before any run of these seeds.",
)
SHORT = by_length(
    "short",
    NORMED_SHORT,
    "The same job with 2 passes instead of 20: whether the share that is needed depends on the length alone.",
)
WHOLE = by_length(
    "whole",
    NORMED_WHOLE,
    "The same job with 64,000 units, as many as the published runs have: 82 passes. Shares and seeds were committed "
    "before any of these runs. Gradients are computed in compiled blocks.",
    (0, 5, 25, 100),
    range(4, 7),
    "compiled",
)
