"""Sync-Switch: precision, recall and time-to-detect of the straggler detector."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.detector import RuleName
from benchmarks.reproduction.definition import Cell, Claim, Experiment, Row
from benchmarks.reproduction.detecting import Detection
from benchmarks.reproduction.reporting import claimed, markdown

RULES: tuple[RuleName, ...] = ("paper", "robust")
TARGET = "no figure (ours to reach: .95 each, 5 windows)"
FACTORS, COUNTS = (1.2, 1.5, 2.0, 4.0), (1, 2, 3)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Return what the rule of the paper and ours find of two stragglers and more."""

    def of(rule: str):
        def told(rows: Sequence[Row]) -> tuple[str, bool]:
            kept = [row for row in rows if row["rule"] == rule and float(row["factor"] or 0) >= 1.5]
            precision, recall = (min(float(row[name] or 0) for row in kept) for name in ("precision", "recall"))
            slowest = max((float(row["windows"]) for row in kept if row["windows"] is not None), default=float("nan"))
            said = f"precision {precision:.2f}, recall {recall:.2f}, at most {slowest:.1f} windows on average"
            return said, min(precision, recall) >= 0.95 and slowest <= 5

        return told

    where = "1 to 3 of 8 slow by 1.5x or more, 50 trials each of drawn unit times, the worst case"
    return [
        claimed(rows, "the detector finds stragglers: mean less a standard deviation", TARGET, where, of("paper")),
        claimed(rows, "the same, our rule: median and MAD", TARGET, where, of("robust")),
    ]


def table(rows: Sequence[Row]) -> str:
    """Return precision / recall / windows to detect."""
    told = []
    for rule in RULES:
        for count in COUNTS:
            line = [f"{rule}, {count} of 8"]
            for factor in FACTORS:
                (row,) = [r for r in rows if (r["rule"], r["count"], r["factor"]) == (rule, count, factor)]
                figures = (row["precision"], row["recall"], row["windows"])
                line.append(" / ".join("-" if held is None else f"{float(held):.2f}" for held in figures))
            told.append(line)
    return markdown(("rule, slow workers", *(f"{factor:g}x" for factor in FACTORS)), told)


EXPERIMENT = Experiment(
    "syncswitch_detector",
    "Sync-Switch",
    "Units take a lognormal time of 10 % spread and one of a hundred three times as long, so that healthy workers "
    "scatter enough to be mistaken. Workers become slow for good, anywhere in a window of ten units.",
    [
        Cell(
            {"rule": rule, "count": count, "factor": factor},
            Detection("draws", rule, "permanent", count, factor),
        )
        for rule in RULES
        for count in COUNTS
        for factor in FACTORS
    ],
    claims,
    table,
)
