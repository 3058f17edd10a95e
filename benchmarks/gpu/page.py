"""Writes the made block of docs/gpu.md from the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.rows import Row, read
from benchmarks.protocol_page import BLOCK, DOCS

PAGE = DOCS / "gpu.md"
RESULTS = DOCS / "gpu"
NOT_SHOWN = "Not shown yet: nobody has run it on a GPU."
TITLES = {
    "check": "Processes and memory",
    "transfers": "Between GPU and host",
    "bare": "Plain JAX, one process",
    "trainer": "One worker",
    "shared": "Worker processes that share the GPU",
    "faults": "Faults and switches",
}
"""Command -> heading of its part, in their order."""


def refreshed(text: str, rows: Sequence[Row]) -> str:
    """Return the page's text with its made block as the rows are."""
    return BLOCK.sub(lambda block: f"{block[1]}{made(rows)}\n{block[3]}", text)


def made(rows: Sequence[Row]) -> str:
    """Return the tables of all rows; a sentence where there are none on a GPU."""
    shown = [row for row in rows if row.machine.get("platform") != "cpu"]
    if not shown:
        return NOT_SHOWN
    parts = [_table(("what", "value"), sorted(shown[0].machine.items()))]
    for command, title in TITLES.items():
        if own := [row for row in shown if row.name.split("/")[0] == command]:
            lines = [(row.name.partition("/")[2] or command, _said(row), row.at) for row in own]
            parts.append(f"### {title}\n\n{_table(('case', 'figures', 'date'), lines)}")
    return "\n\n".join(parts)


def _said(row: Row) -> str:
    return f"failed: {row.error.splitlines()[0]}" if row.error else "; ".join(map(_figure, row.figures.items()))


def _figure(figure: tuple[str, Any]) -> str:
    return f"{figure[0]} {figure[1]}"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines)


def write(folder: Path = RESULTS, page: Path = PAGE) -> None:
    """Write the page from the results in a folder."""
    page.write_text(refreshed(page.read_text(encoding="utf-8"), read(folder)), encoding="utf-8")
