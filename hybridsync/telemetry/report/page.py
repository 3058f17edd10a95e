"""Puts the page together: one HTML file that needs nothing else and opens without a network."""

import importlib.resources
from collections.abc import Sequence
from html import escape

from hybridsync.telemetry.report import tables
from hybridsync.telemetry.report.charts import draw
from hybridsync.telemetry.report.figures import NUM_COLORS, figures
from hybridsync.telemetry.report.lanes import draw_busy, draw_lanes, draw_stalls
from hybridsync.telemetry.report.model import Record, RunModel, model


def page(records: Sequence[Record]) -> str:
    """Return the page of one or more runs as HTML text."""
    runs = [model(record) for record in records]
    protocols = dict.fromkeys(bar.protocol for run in runs for bar in run.phases)
    colors = {protocol: at % NUM_COLORS for at, protocol in enumerate(protocols)}
    title = ", ".join(run.name for run in runs)
    sections = [
        _section("Phases and incidents", draw_lanes(runs, colors) + tables.incidents(runs)),
        _section("Speed and learning", f'<div class="charts">{"".join(map(draw, figures(runs, colors)))}</div>'),
        _section(
            "What switching cost",
            draw_stalls(runs) + tables.stalls(runs),
            "A stall lasts from the last unit applied in one epoch to the first in the next, less one unit's time. "
            "rest is what the stages do not explain: the first units of the new phase on their way.",
        ),
        _section(
            "Where the workers' time went",
            draw_busy(runs),
            "By the spans that the timeline kept: the first and the last ones of each worker in each epoch.",
        ),
        _section("Every phase", tables.phases(runs) if any(run.phases for run in runs) else ""),
        _section(
            "Every unit accounted for",
            tables.account(runs),
            "Issued = applied + dropped + outstanding. Units that were rolled back were applied again and count once.",
        ),
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - HybridSync</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_asset('page.css')}{_hiding(len(runs))}</style></head><body>"
        f'{_header(runs, title)}<main>{"".join(sections)}</main><div id="tip" role="status"></div>'
        f"<script>{_asset('page.js')}</script></body></html>\n"
    )


def _header(runs: Sequence[RunModel], title: str) -> str:
    themes = "".join(
        f'<label><input type="radio" name="theme" id="theme-{name}"{checked}>{name}</label>'
        for name, checked in (("auto", " checked"), ("light", ""), ("dark", ""))
    )
    ended = tables.exit_badge(runs[0]) if len(runs) == 1 else ""
    shown = "".join(
        f'<label><input type="checkbox" id="show{at}" checked><i class="swatch k{at % NUM_COLORS}"></i>'
        f"{escape(run.name)}</label>"
        for at, run in enumerate(runs)
    )
    choice = f'<fieldset class="runs"><legend>runs</legend>{shown}</fieldset>' if len(runs) > 1 else ""
    errors = "".join(
        f'<p class="error" data-run="{at}">{escape(f"{run.name}: " if len(runs) > 1 else "")}{escape(run.error)}</p>'
        for at, run in enumerate(runs)
        if run.error
    )
    return (
        f'<header><div class="top"><h1>{escape(title)} {ended}</h1>'
        f'<fieldset class="theme"><legend>colours</legend>{themes}</fieldset></div>'
        f"{choice}{errors}{tables.facts(runs)}</header>"
    )


def _section(title: str, content: str, note: str = "") -> str:
    if not content:
        return ""
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{said}{content}</section>"


def _hiding(num_runs: int) -> str:
    """Return the rules by which a run whose box is not ticked disappears, without a script."""
    return "".join(
        f'body:has(#show{at}:not(:checked)) main [data-run="{at}"]{{display:none}}' for at in range(num_runs)
    )


def _asset(name: str) -> str:
    return importlib.resources.files("hybridsync.telemetry.report").joinpath(name).read_text(encoding="utf-8")
