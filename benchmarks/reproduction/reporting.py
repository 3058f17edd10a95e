r"""Means with their spread, and tables in Markdown. Pure.

>>> spread([0.91, 0.93], "{:.3f}")
'0.920 ± 0.014'
>>> markdown(("plan", "time"), [("bsp", "3 s")])
'| plan | time |\n|---|---|\n| bsp | 3 s |'
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from benchmarks.reproduction.definition import NOT_RUN, Claim, Row


def values(rows: Iterable[Row], column: str, **where: object) -> list[float]:
    """Return a column's numbers in the rows that have the given values; empty cells are left out."""
    found = (row for row in rows if all(row.get(name) == held for name, held in where.items()))
    return [float(held) for row in found if isinstance(held := row.get(column), int | float)]


def mean(rows: Iterable[Row], column: str, **where: object) -> float:
    """Return the mean of a column in the rows that have the given values; nan where there is none."""
    found = values(rows, column, **where)
    return statistics.fmean(found) if found else float("nan")


def mean_of_all(rows: Iterable[Row], column: str, runs: int, **where: object) -> float:
    """Return the mean of a column if each of so many runs has it, else nan: who never was there has no time."""
    found = values(rows, column, **where)
    return statistics.fmean(found) if len(found) == runs else float("nan")


def spread(found: Sequence[float], how: str = "{:.3g}") -> str:
    """Return mean and sample standard deviation, or a dash for nothing."""
    if not found:
        return "-"
    told = how.format(statistics.fmean(found))
    return f"{told} ± {how.format(statistics.stdev(found))}" if len(found) > 1 else told


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    told = ["| " + " | ".join(line) + " |" for line in lines]
    told[1] = "|" + "---|" * len(head)
    return "\n".join(told)


def claimed(
    rows: Sequence[Row],
    text: str,
    published: str,
    conditions: str,
    ours: Callable[[Sequence[Row]], tuple[str, bool | None]],
    case: str = "",
) -> Claim:
    """Return a claim; `ours` gives its figure and whether it is met, where there are results."""
    if not rows:
        return Claim(text, published, NOT_RUN, conditions, case=case)
    told, met = ours(rows)
    return Claim(text, published, told, conditions, met, case)
