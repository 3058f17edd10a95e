"""The tables of `benchmarks.protocols` for a terminal: one for each straggler and link, a row a protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.table import Table

from benchmarks.grid.aggregate import CLAIMS, Block, Figures, sooner, speed
from benchmarks.grid.cells import LINKS, STRAGGLERS

HEAD = (
    "",
    "units/s",
    "/ bsp",
    "/ bsp_server",
    "to loss, s",
    "sooner than bsp",
    "accuracy",
    "staleness mean",
    "max / bound",
    "dropped",
    "its paper says",
)
NOTE = (
    "Times are virtual. bsp averages over a mesh, preduce and adpsgd in groups: for them the cost of a ring over the "
    "workers' own ports counts, not the servers' port, which a link throttles; bsp_server is lock-step over that port. "
    "The loss is that of training, a mean of the last 64 units begun, each on the parameters that its worker held: of "
    "localsgd, diloco, preduce and adpsgd that is the worker's own replica."
)


def titled(block: Block) -> str:
    """Return what a block is about."""
    straggler, link = block
    shared = "10 Gb/s" if not LINKS[link] else f"shared, n * T_transfer : T_compute = {link}"
    return f"{straggler}: {STRAGGLERS[straggler]}; servers' port: {shared}"


def cells(block: Mapping[str, Figures], name: str) -> list[str]:
    """Return the cells of a protocol's row, as HEAD names them."""
    row = block[name]
    return [
        name,
        _figure(row.units_per_sec, "{:.1f}"),
        _figure(speed(block, name, "bsp"), "{:.2f}x"),
        _figure(speed(block, name, "bsp_server"), "{:.2f}x"),
        _figure(row.secs_to_loss, "{:.1f}") + ("" if row.reached == len(row.seeds) else f" ({_reached(row)})"),
        _figure(sooner(block, name, "bsp"), "{:.2f}x"),
        f"{row.accuracy:.3f} ±{row.accuracy_sd:.3f}",
        f"{row.staleness_mean:.2f}",
        f"{row.staleness_max:g} / {'-' if row.bound is None else row.bound}",
        f"{row.dropped:.0f}",
        CLAIMS.get(name, ""),
    ]


def table(block: Block, rows: Mapping[str, Figures]) -> Table:
    """Return the table of a block."""
    drawn = Table(title=titled(block), title_justify="left", box=None, pad_edge=False)
    for name in HEAD:
        kind = "left" if name in ("", HEAD[-1]) else "right"
        drawn.add_column(name, justify=kind, no_wrap=name != HEAD[-1])
    for name in rows:
        drawn.add_row(*cells(rows, name))
    return drawn


def _reached(row: Figures) -> str:
    return f"{row.reached} of {len(row.seeds)}"


def _figure(value: float, how: str) -> str:
    return "-" if math.isnan(value) else how.format(value)
