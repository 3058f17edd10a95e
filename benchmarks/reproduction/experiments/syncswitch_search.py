"""Sync-Switch: what the search for the switch point costs, and how often it is right."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.reproduction.definition import Cell, Claim, Experiment, Row
from benchmarks.reproduction.jobs import NORMED
from benchmarks.reproduction.reporting import claimed, markdown
from benchmarks.reproduction.searching import Searches

REPEATS = (1, 3, 5)
POOLS = {
    "published": ("published", "60 published runs of setup 1"),
    "digits": ("syncswitch_frontier", "100 runs of our frontier on digits"),
    "long": ("syncswitch_frontier_long", "35 runs of our frontier of 20 passes"),
}
DRAWN = {
    "published": "published runs",
    "digits": "runs of our frontier on digits",
    "long": "runs of our frontier of 20 passes",
}
"""What the table says of them: a table of other published runs has other numbers of them."""
TARGETS = {"known": True, "5 runs of `bsp`": False}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Return what R = 5 gives on the published runs, and on our longest frontier that has every share."""

    def five_runs(pool: str) -> tuple[Row, str]:
        (row,) = [r for r in rows if (r["pool"], r["target"], r["repeats"]) == (pool, "known", 5)]
        cost, recurrences = row["cost_bsp_runs"], row["break_even_runs"]
        right, near = float(row["chance_right"] or 0), float(row["chance_within_twice"] or 0)
        return row, f"{cost} `bsp` runs, {recurrences} recurrences, right in {right:.0%}, within twice in {near:.0%}"

    def pays(rows: Sequence[Row]) -> tuple[str, None]:
        return five_runs("published")[1], None

    def finds(rows: Sequence[Row]) -> tuple[str, bool]:
        row, cost = five_runs("long")
        answer = float(row["right_answer"] or 0)
        return f"{answer:g} %; {cost}", answer <= 6.25

    drawn = "runs drawn 1,000 times, target known, R = 5, every run made"
    long = f"{NORMED.name}, 35 {drawn}"
    return [
        claimed(rows, "a recurring job pays for its search", "pays off; a table over R", f"published {drawn}", pays),
        claimed(rows, "the search finds the paper's share of lock-step", "6.25 %", long, finds),
    ]


def table(rows: Sequence[Row]) -> str:
    """Return cost, break-even and the chance of the right answer."""
    told = []
    for pool, what in DRAWN.items():
        for row in (row for row in rows if row["pool"] == pool):
            told.append(
                (
                    f"{row['runs']} {what}",
                    str(row["target"]),
                    str(row["repeats"]),
                    f"{float(row['cost_bsp_runs'] or 0):.1f}",
                    "never" if row["break_even_runs"] is None else str(row["break_even_runs"]),
                    f"{float(row['right_answer'] or 0):g} %",
                    f"{float(row['chance_right'] or 0):.0%}",
                    f"{float(row['chance_within_twice'] or 0):.0%}",
                )
            )
    head = (
        "runs drawn from",
        "target",
        "R",
        "cost, `bsp` runs",
        "recurrences to break even",
        "answer without noise",
        "found in",
        "within twice of it in",
    )
    return markdown(head, told)


EXPERIMENT = Experiment(
    "syncswitch_search",
    "Sync-Switch",
    "The right answer is what the same search gives where every run of a share has the mean of its runs. Settings do "
    "not end early here, as in the paper.",
    [
        Cell(
            {"pool": pool, "target": target, "repeats": repeats},
            Searches(runs, what, known, repeats),
        )
        for pool, (runs, what) in POOLS.items()
        for target, known in TARGETS.items()
        for repeats in REPEATS
    ],
    claims,
    table,
)
