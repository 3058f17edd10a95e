"""Puts the page together: one HTML file that needs nothing else and opens without a network."""

import base64
import hashlib
import importlib.resources
from collections.abc import Sequence
from html import escape

from hybridsync.report import tables
from hybridsync.report.charts import NUM_COLORS, draw
from hybridsync.report.figures import figures
from hybridsync.report.lanes import draw_busy, draw_lanes, draw_stalls
from hybridsync.report.model import Record, RunModel, model


def page(records: Sequence[Record], left_out: Sequence[str] = ()) -> str:
    """Return the page of one or more runs as HTML text, which names what was left out, one reason a run."""
    runs = [model(record) for record in records]
    protocols = dict.fromkeys(bar.protocol for run in runs for bar in run.phases)
    colors = {protocol: at % NUM_COLORS for at, protocol in enumerate(protocols)}
    title = ", ".join(run.name for run in runs)
    sections = [
        section("Phases and incidents", draw_lanes(runs, colors) + tables.incidents(runs)),
        section("Speed and learning", f'<div class="charts">{"".join(map(draw, figures(runs, colors)))}</div>'),
        section(
            "What switching cost",
            draw_stalls(runs) + tables.stalls(runs),
            "A stall lasts from the last unit applied in one phase to the first in the next, less one unit's time. "
            "rest is what the stages do not explain: the first units of the new phase on their way.",
        ),
        section(
            "Where the workers' time went",
            draw_busy(runs),
            "By the spans that the timeline kept: the first and the last ones of each worker in each phase.",
        ),
        section("Every phase", tables.phases(runs) if any(run.phases for run in runs) else ""),
        section(
            "What each host contributed",
            tables.hosts(runs),
            "Units that were applied while a worker on that host had them; time in which one was there.",
        ),
        section(
            "Every unit accounted for",
            tables.account(runs),
            "Issued = applied + dropped + outstanding. Units that were rolled back were applied again and count once.",
        ),
    ]
    names = [run.name for run in runs] if len(runs) > 1 else []
    not_shown = "".join(f'<p class="error">{escape(f"left out: {reason}")}</p>' for reason in left_out)
    return document(title, _header(runs, title), not_shown + "".join(sections), names)


def document(title: str, header: str, content: str, names: Sequence[str]) -> str:
    """Return a page that needs nothing else as HTML text.

    Args:
        title: title of the window.
        header: ready HTML (see `heading`).
        content: ready HTML.
        names: names of the items that boxes in the header show and hide, in the order of their indices.
    """
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - HybridSync</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(_asset("page.js"))}">'
        f"<style>{_asset('page.css')}{_hiding(len(names))}</style></head><body>"
        f'{header}<main>{content}</main><div id="tip" role="status"></div>'
        f"<script>{_asset('page.js')}</script></body></html>\n"
    )


def _policy(script: str) -> str:
    """Return what a browser may load and run: the page's own script, by its hash, and styles; nothing else."""
    seal = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sources = f"default-src 'none'; script-src 'sha256-{seal}'; style-src 'unsafe-inline'"
    return f"{sources}; base-uri 'none'; form-action 'none'"


def _header(runs: Sequence[RunModel], title: str) -> str:
    ended = tables.exit_badge(runs[0]) if len(runs) == 1 else ""
    errors = "".join(
        f'<p class="error" data-run="{at}">{escape(f"{run.name}: " if len(runs) > 1 else "")}{escape(run.error)}</p>'
        for at, run in enumerate(runs)
        if run.error
    )
    names = [run.name for run in runs] if len(runs) > 1 else []
    return heading(title, ended, f"{errors}{tables.facts(runs)}", names)


def heading(title: str, badge: str, content: str, names: Sequence[str], what: str = "runs") -> str:
    """Return a page's header: its title, the choice of colours, and a box for each of `names`.

    Args:
        title: title of the page.
        badge: ready HTML next to the title.
        content: ready HTML below.
        names: names as in `document`.
        what: what `names` are, for the label of the boxes.
    """
    themes = "".join(
        f'<label><input type="radio" name="theme" id="theme-{name}"{checked}>{name}</label>'
        for name, checked in (("auto", " checked"), ("light", ""), ("dark", ""))
    )
    shown = "".join(
        f'<label><input type="checkbox" id="show{at}" checked><i class="swatch k{at % NUM_COLORS}"></i>'
        f"{escape(name)}</label>"
        for at, name in enumerate(names)
    )
    choice = f'<fieldset class="runs"><legend>{escape(what)}</legend>{shown}</fieldset>' if names else ""
    return (
        f'<header><div class="top"><h1>{escape(title)} {badge}</h1>'
        f'<fieldset class="theme"><legend>colours</legend>{themes}</fieldset></div>'
        f"{choice}{content}</header>"
    )


def section(title: str, content: str, note: str = "") -> str:
    """Return a section of ready HTML under a title; nothing where it has none."""
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
    return importlib.resources.files("hybridsync.report").joinpath(name).read_text(encoding="utf-8")
