"""The table of a study: a row a figure, a column a plan, ratios to the first plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from hybridsync.lab.simulator.calibration import Fitted
from hybridsync.lab.simulator.study import Column

if TYPE_CHECKING:
    from hybridsync.lab.simulator.simulation import Result


@dataclass(frozen=True)
class Row:
    """A figure of the table.

    Args:
      name: name of the figure, with its unit.
      of: returns the figure of a result.
      digits: number of digits after the decimal point.
      compared: whether the table shows its ratio to the first plan's figure.
    """

    name: str
    of: Callable[[Result], float]
    digits: int = 0
    compared: bool = False


ROWS = (
    Row("time, s", lambda result: result.seconds, 1, compared=True),
    Row("units/s", lambda result: result.units_per_sec, 1, compared=True),
    Row("examples/s", lambda result: result.examples_per_sec, 0),
    Row("staleness, mean", lambda result: result.summary.staleness["mean"], 2),
    Row("staleness, p95", lambda result: result.summary.staleness["p95"]),
    Row("staleness, max", lambda result: result.summary.staleness["max"]),
    Row("moved, MB", lambda result: result.num_bytes / 1e6, 1, compared=True),
    Row("switch stall, s", lambda result: result.stall_secs, 3),
    Row("units dropped", lambda result: result.summary.units.dropped),
    Row("units rolled back", lambda result: result.summary.units.rolled_back),
)


def table(columns: Sequence[Column]) -> Table:
    """Return the table of some plans; of several seeds each figure is a mean with its standard deviation."""
    drawn = Table(box=None, pad_edge=False)
    drawn.add_column("")
    for column in columns:
        drawn.add_column(column.plan, justify="right", no_wrap=True)
    finals = dict.fromkeys(name for column in columns for name in column.finals())
    measured = [Row(name, lambda result, name=name: float(result.summary.final.get(name, "nan")), 4) for name in finals]
    for row in (*ROWS, *measured):
        first, _ = columns[0].over_seeds(row.of)
        drawn.add_row(row.name, *(_cell(row, column, first if at else 0.0) for at, column in enumerate(columns)))
    return drawn


def _cell(row: Row, column: Column, first: float) -> str:
    mean, spread = column.over_seeds(row.of)
    text = f"{mean:,.{row.digits}f}"
    if len(column.results) > 1:
        text += f" ±{spread:,.{max(row.digits, 1)}f}"
    return f"{text} ({mean / first:.2f}x)" if row.compared and first else text


def fitted_table(fitted: Fitted) -> Table:
    """Return what a calibration found, in milliseconds."""
    drawn = Table(box=None, pad_edge=False)
    drawn.add_column("")
    for name in ("ms", "spread", "samples"):
        drawn.add_column(name, justify="right")
    for value in fitted.values:
        if value.secs is None:
            drawn.add_row(value.name, "-", "", "none: as by default")
        else:
            drawn.add_row(value.name, f"{value.secs * 1e3:.2f}", f"{value.spread * 1e3:.2f}", f"{value.samples:,}")
    return drawn
