"""Sync-Switch: the published times, predicted from pure lock-step and pure asynchrony, and from injected latency."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.reproduction.definition import Cell, Claim, Experiment, Row
from benchmarks.reproduction.parameters import hybrid
from benchmarks.reproduction.published import Latency, Share
from benchmarks.reproduction.reporting import claimed, markdown, mean
from benchmarks.syncswitch_stragglers import CASES, SETS

ANSWER = 5
"""The published runs of this share have the abstract's 5.13x and .9174; there is one run of 6.25 %."""
SHARES = (2, 4, 5, 6.25, 10, 15, 20, 25, 50)
MODEL = list(SETS)[-1]


def number(row: Row, column: str) -> float:
    """Return a column's number."""
    return float(row[column] or 0)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the throughput of the published answer, by the model."""

    def told(rows: Sequence[Row]) -> tuple[str, bool]:
        (row,) = [row for row in rows if row["share"] == ANSWER]
        ratio = number(row, "published_bsp_secs") / number(row, "seconds")
        worst = max(abs(number(r, "seconds") / number(r, "published_secs") - 1) for r in rows)
        return f"{ratio:.2f}x; worst error of a share {worst:.1%}", abs(ratio / 5.13 - 1) <= 0.02

    where = "time alone: 64,000 units, 8 simulated workers fitted to pure BSP and pure ASP; met within 2 %"
    return [claimed(rows, f"throughput of `{hybrid(ANSWER)}` over `bsp`, predicted", "5.13x", where, told)]


def table(rows: Sequence[Row]) -> str:
    """Return published and predicted times."""
    told = [
        (
            f"`{hybrid(number(row, 'share'))}`",
            f"{number(row, 'published_secs'):,.0f}",
            f"{number(row, 'seconds'):,.0f}",
            f"{number(row, 'seconds') / number(row, 'published_secs') - 1:+.1%}",
            f"{number(row, 'published_bsp_secs') / number(row, 'published_secs'):.2f}x",
            f"{number(row, 'published_bsp_secs') / number(row, 'seconds'):.2f}x",
            "-" if row["published_accuracy"] is None else f"{row['published_accuracy']:.4f} ({row['published_runs']})",
        )
        for row in rows
    ]
    head = ("plan", "published, s", "here, s", "error", "published / `bsp`", "here", "published accuracy (runs)")
    return markdown(head, told)


def straggler_claims(rows: Sequence[Row]) -> list[Claim]:
    """Return how well the best model fits."""

    def told(rows: Sequence[Row]) -> tuple[str, bool]:
        misfits = [abs(mean(rows, "slowdown", model=MODEL, case=at) - case.slowdown) for at, case in enumerate(CASES)]
        return f"worst misfit {100 * max(misfits):.1f} points", max(misfits) <= 0.05

    where = "8,000 units, 3 parameters fitted to these 8 figures; met within 5 points"
    return [claimed(rows, "slowdown by latency at one or two machines", "+5 % to +175 %", where, told)]


def straggler_table(rows: Sequence[Row]) -> str:
    """Return each published slowdown beside what every model makes of it."""
    told = []
    for at, case in enumerate(CASES):
        figures = (f"{mean(rows, 'slowdown', model=model, case=at):+.0%}" for model in SETS)
        told.append((f"`{case.plan}`, {1e3 * case.secs:g} ms at {case.machines}", f"{case.slowdown:+.0%}", *figures))
    return markdown(("what", "published", *SETS), told)


EXPERIMENT = Experiment(
    "syncswitch_times",
    "Sync-Switch",
    "These figures test the accounting: a share is of the units, a step is as many units as there are workers, and "
    "nobody idles at the switch. The published times leave out the gap of the switch.",
    [Cell({"share": share}, Share(share)) for share in SHARES],
    claims,
    table,
)
STRAGGLERS = Experiment(
    "syncswitch_stragglers",
    "Sync-Switch",
    "The published slowdowns by 10 and 30 ms of latency at the ports of one or two machines, each of which is a worker "
    "and a server, by four models. That the last one agrees is no proof that this is what happened there.",
    [Cell({"model": model, "case": at}, Latency(model, at)) for model in SETS for at in range(len(CASES))],
    straggler_claims,
    straggler_table,
)
