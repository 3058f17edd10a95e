"""The page of `benchmarks.protocols`, in the style of `hybridsync report`: charts and a table for each block. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from benchmarks.grid.aggregate import LOSS, Figures, claims, figures, speed
from benchmarks.grid.cells import PROTOCOLS, Outcome
from benchmarks.grid.table import HEAD, NOTE, cells, titled
from benchmarks.jobs import Row
from benchmarks.protocol_cells import CLAIMS, CellResult
from hybridsync.lab.report.charts import NUM_COLORS, STYLES, Chart, Line, draw
from hybridsync.lab.report.page import Box, document, heading, section
from hybridsync.lab.report.scales import number
from hybridsync.lab.report.tables import table

TITLE = "Protocols, simulated with real gradients"
NO_CELLS: Mapping[str, CellResult] = {}


def page(outcomes: Sequence[Outcome], loss: float = LOSS, real: Mapping[str, CellResult] = NO_CELLS) -> str:
    """Return the page of the grid's runs, and of real ones, whole or as far as they are there, as HTML text."""
    sections = [section("Claims", _claims(claims(outcomes, loss)))]
    if real:
        sections.append(section("Real processes beside their simulated twins", _twins(real)))
        sections.append(section("Claims, real and simulated", _claims(r for c in CLAIMS for r in c.rows(real))))
    for block, rows in figures(outcomes, loss).items():
        runs = [run for run in outcomes if (run.cell.straggler, run.cell.link) == block and not run.error]
        charts = f'<div class="charts">{draw(_losses(runs))}{draw(_accuracies(runs))}</div>'
        sections.append(section(titled(block), _speeds(rows) + charts + _table(rows)))
    content = f'<p class="note">{escape(f"{NOTE} Time to the loss: to {loss:g}.")}</p>'
    faults = "".join(f'<p class="error">{escape(f"{run.cell}: {run.fault}")}</p>' for run in outcomes if run.fault)
    boxes = [Box(name, f"{STYLES[at // NUM_COLORS]} k{at % NUM_COLORS}", (at,)) for at, name in enumerate(PROTOCOLS)]
    return document(TITLE, heading(TITLE, "", content + faults), "".join(sections), boxes)


def _claims(rows: Iterable[Row]) -> str:
    told = [
        (
            len(PROTOCOLS),
            [
                escape(row.name.strip()),
                f"{number(row.figure)} {escape(row.unit)}",
                escape(f"{row.bound} {row.target:g}"),
                "met" if row.met else '<span class="error">not met</span>',
            ],
        )
        for row in rows
    ]
    return table(["figure", "here", "to reach", ""], told, ["here", "to reach"]) if told else ""


def _twins(results: Mapping[str, CellResult]) -> str:
    """Return two bars a cell, and a table: what the real run came to, and what its twin did."""
    fastest = max(max(each.real.units_per_sec, each.simulated.units_per_sec) for each in results.values())
    bars, told = "", []
    for name, each in results.items():
        at = PROTOCOLS.index(each.cell.plan.partition("(")[0])
        stacks = ""
        for outcome, what in ((each.real, ""), (each.simulated, ' style="opacity:.5"')):
            width = 100 * outcome.units_per_sec / fastest
            part = f'<div class="part k{at % NUM_COLORS}" style="width:{width:.2f}%"></div>'
            stacks += f'<div class="stack"{what}>{part}</div>'
        said = f"{each.real.units_per_sec:.1f} units/s, simulated {each.simulated.units_per_sec:.1f}"
        bars += f'<div class="row" data-run="{at}"><p><b>{escape(name)}</b> {escape(said)}</p>{stacks}</div>'
        bound = "none" if each.cell.staleness_bound is None else str(each.cell.staleness_bound)
        stale = f"{each.real.staleness_mean:.1f}, {each.real.staleness_max} ({bound})"
        times = each.real.loss_secs, each.simulated.loss_secs
        to_loss = ["-" if secs is None else f"{secs:.1f} s" for secs in times]
        busy = ["-" if share is None else f"{share:.0%}" for share in (each.real.cpu_share, each.real.loopback_share)]
        told.append((at, [escape(name), escape(each.cell.plan), f"{each.ratio - 1:+.1%}", stale, *to_loss, *busy]))
    stale = "staleness: mean, max (bound)"
    head = ["cell", "plan", "real over simulated", stale, "to the loss", "simulated", "processors", "loopback"]
    return f'<div class="rows">{bars}</div>' + table(head, told, head[2:])


def _speeds(rows: Mapping[str, Figures]) -> str:
    """Return a bar a protocol: its throughput beside the fastest one's."""
    fastest = max((row.units_per_sec for row in rows.values() if not math.isnan(row.units_per_sec)), default=1.0)
    bars = ""
    for name, row in rows.items():
        ratio = speed(rows, name, "bsp")
        said = f"{row.units_per_sec:.1f} units/s" + ("" if math.isnan(ratio) else f", {ratio:.2f}x bsp")
        width = 0.0 if math.isnan(row.units_per_sec) else 100 * row.units_per_sec / fastest
        at = PROTOCOLS.index(name)
        bars += (
            f'<div class="row" data-run="{at}"><p><b>{escape(name)}</b> {escape(said)}</p>'
            f'<div class="stack"><div class="part k{at % NUM_COLORS}" style="width:{width:.2f}%"></div></div></div>'
        )
    return f'<div class="rows">{bars}</div>'


def _losses(runs: Sequence[Outcome]) -> Chart:
    lines = []
    for at, name in enumerate(PROTOCOLS):
        first = min((run for run in runs if run.cell.protocol == name), key=lambda run: run.cell.seed, default=None)
        if first is not None:
            style = STYLES[at // NUM_COLORS]
            lines.append(Line(name, at, at % NUM_COLORS, style, first.curve))
    return Chart("Training loss", "time", lines, note="Of the first seed of each protocol.", may_be_log=True)


def _accuracies(runs: Sequence[Outcome]) -> Chart:
    lines = []
    for at, name in enumerate(PROTOCOLS):
        mine = [run for run in runs if run.cell.protocol == name]
        points = sorted((run.seconds, run.accuracy) for run in mine if run.seconds is not None)
        if points:
            lines.append(Line(name, at, at % NUM_COLORS, "dots", points))
    note = "A dot a seed: when the whole workload was done, and the accuracy of the held-out set then."
    return Chart("Final accuracy", "time", lines, note=note, from_zero=False)


def _table(rows: Mapping[str, Figures]) -> str:
    told = [(PROTOCOLS.index(name), [escape(cell) for cell in cells(rows, name)]) for name in rows]
    return table(HEAD, told, HEAD[1:-1])
