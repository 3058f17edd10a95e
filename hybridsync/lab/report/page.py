"""Puts the page together: one HTML file that needs nothing else and opens without a network."""

import base64
import dataclasses
import hashlib
import importlib.resources
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from hybridsync.lab.report import tables
from hybridsync.lab.report.charts import NUM_COLORS, draw
from hybridsync.lab.report.figures import OVER, Series, figures
from hybridsync.lab.report.groups import Groups, group_by
from hybridsync.lab.report.history import history_of
from hybridsync.lab.report.lanes import draw_busy, draw_lanes, draw_stalls
from hybridsync.lab.report.model import RunModel, differing, model
from hybridsync.lab.report.scales import natural, shortened
from hybridsync.telemetry.run_record import Record


class Box(NamedTuple):
    """A box of the legend: its name, the look of its lines, and the indices of what it shows and hides.

    It has the number of its first one.
    """

    name: str
    look: str
    items: Sequence[int]


def page(records: Sequence[Record], left_out: Sequence[str] = (), by: Sequence[str] = ()) -> str:
    """Return the page of one or more runs as HTML text.

    Args:
        records: the runs.
        left_out: a reason for each run that was left out, which the page names.
        by: keys of the configuration by which the charts group the runs, and show means; empty leaves it to the page,
            which groups more runs than it has colours.

    Raises:
        ConfigError: no run's configuration has a key of `by`.
    """
    records = sorted(records, key=lambda record: natural(record.name))
    comparison = _grouped(records, tuple(by))
    if comparison is not None:  # the runs of a group stand together
        order = [run.name for group in comparison.groups for run in group.runs]
        records = sorted(records, key=lambda record: order.index(record.name))
    runs = [model(record) for record in records]
    common, labels = shortened(comparison.labels if comparison else [run.name for run in runs])
    if comparison is None:
        each = enumerate(zip(labels, runs, strict=True))
        series = [Series(label if len(runs) > 1 else "", at, at, (run,)) for at, (label, run) in each]
    else:
        series = _series(comparison, labels, runs)
    places = {run.name: each.color for each in series for run in each.runs}
    runs = [dataclasses.replace(run, color=places[run.name]) for run in runs]
    protocols = dict.fromkeys(bar.protocol for run in runs for bar in run.phases)
    colors = {protocol: at % NUM_COLORS for at, protocol in enumerate(protocols)}
    title = f"{len(runs)} runs by {', '.join(comparison.by)}" if comparison else ", ".join(run.name for run in runs)
    many = comparison is not None
    crowded = many and len(series) > NUM_COLORS
    told = tables.incidents(runs)
    sections = [
        section("Phases and incidents", draw_lanes(runs, colors, brief=many) + _folded(told, "every incident", many)),
        section(
            "Speed and learning",
            f'{AXES}<div class="charts{" crowded" * crowded}">{"".join(map(draw, figures(series, colors)))}</div>',
            "Drag a frame in a chart to enlarge it; a double click shows the whole again."
            + " A group's band of one deviation shows while you point at its name, or have tapped it." * crowded,
        ),
        section(
            "What switching cost",
            draw_stalls(runs) + tables.stalls(runs),
            "A stall lasts from the last unit applied in one phase to the first in the next, less one unit's time. "
            "rest is what the stages do not explain: the first units of the new phase on their way.",
            folded=many,
        ),
        section(
            "Where the workers' time went",
            draw_busy(runs),
            "By the spans that the timeline kept: the first and the last ones of each worker in each phase. read is "
            "time in which a worker stood still for the data of a unit.",
            folded=many,
        ),
        section("Every phase", tables.phases(runs) if any(run.phases for run in runs) else "", folded=many),
        section(
            "What each host contributed",
            tables.hosts(runs),
            "Units that were applied while a worker on that host had them; time in which one was there.",
            folded=many,
        ),
        section(
            "Every unit accounted for",
            tables.account(runs),
            "Issued = applied + dropped + outstanding. Units that were rolled back were applied again and count once.",
            folded=many,
        ),
    ]
    index = {run.name: at for at, run in enumerate(runs)}
    boxes = [Box(each.label, f"{each.style} k{each.color}", [index[run.name] for run in each.runs]) for each in series]
    groups = tables.groups(comparison.cells(), [each.run for each in series]) if comparison else ""
    not_shown = "".join(f'<p class="error">{escape(f"left out: {reason}")}</p>' for reason in left_out)
    if common and comparison:
        common = f"{', '.join(comparison.by)} {common}"
    content = not_shown + "".join(sections)
    return document(title, _header(runs, title, groups), content, boxes if len(boxes) > 1 else (), common)


MOST_KEYS = 3
"""Keys by which a page groups by itself: a label of more is longer than a legend."""

AXES = (
    '<fieldset class="axes"><legend>loss and accuracy over</legend>'
    + "".join(
        f'<label><input type="radio" name="over" id="over-{x}"{" checked" if x == "time" else ""}>over {x}</label>'
        for x in OVER
    )
    + "</fieldset>"
)


def _grouped(records: Sequence[Record], by: tuple[str, ...]) -> Groups | None:
    """Return the runs by groups; None where each run has a line of its own."""
    histories = [history_of(record) for record in records]
    if not by and len(records) > NUM_COLORS:
        differ = [key for key in differing([run.config for run in histories]) if key != "seed"]
        by = tuple(differ) if len(differ) <= MOST_KEYS else ("plan",)
    return group_by(histories, by) if by else None


def _series(comparison: Groups, labels: Sequence[str], runs: Sequence[RunModel]) -> list[Series]:
    """Return the groups as series of the charts, of those runs that a mean is of."""
    index = {run.name: at for at, run in enumerate(runs)}
    return [
        Series(label, index[group.runs[0].name], place, tuple(runs[index[run.name]] for run in group.runs))
        for place, (group, label) in enumerate(zip(comparison.groups, labels, strict=True))
    ]


def _folded(content: str, summary: str, folded: bool) -> str:
    return f"<details><summary>{summary}</summary>{content}</details>" if folded and content else content


def document(title: str, header: str, content: str, boxes: Sequence[Box] = (), common: str = "") -> str:
    """Return a page that needs nothing else as HTML text.

    Args:
        title: title of the window.
        header: ready HTML (see `heading`).
        content: ready HTML.
        boxes: boxes of the legend, which stays in sight.
        common: what the names of all boxes have in common, and leave out.
    """
    script = _asset("values.js") + _asset("page.js")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - HybridSync</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        f"<style>{_asset('page.css')}{_hiding(boxes)}</style></head><body>"
        f'{header}{_legend(boxes, common)}<main>{content}</main><div id="tip" role="status"></div>'
        f"<script>{script}</script></body></html>\n"
    )


def _policy(script: str) -> str:
    """Return what a browser may load and run: the page's own script, by its hash, and styles; nothing else."""
    seal = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sources = f"default-src 'none'; script-src 'sha256-{seal}'; style-src 'unsafe-inline'"
    return f"{sources}; base-uri 'none'; form-action 'none'"


def _header(runs: Sequence[RunModel], title: str, groups: str) -> str:
    ended = tables.exit_badge(runs[0]) if len(runs) == 1 else ""
    errors = "".join(
        f'<p class="error" data-run="{at}">{escape(f"{run.name}: " if len(runs) > 1 else "")}{escape(run.error)}</p>'
        for at, run in enumerate(runs)
        if run.error
    )
    facts = _folded(tables.facts(runs), "every run", bool(groups))
    return heading(title, ended, f"{errors}{groups}{facts}")


def heading(title: str, badge: str, content: str) -> str:
    """Return a page's header: its title, the choice of colours, and ready HTML next to the title and below."""
    themes = "".join(
        f'<label><input type="radio" name="theme" id="theme-{name}"{checked}>{name}</label>'
        for name, checked in (("auto", " checked"), ("light", ""), ("dark", ""))
    )
    return (
        f'<header><div class="top"><h1>{escape(title)} {badge}</h1>'
        f'<fieldset class="theme"><legend>colours</legend>{themes}</fieldset></div>'
        f"{content}</header>"
    )


def _legend(boxes: Sequence[Box], common: str) -> str:
    """Return the legend of all charts: a box hides, and the name next to it brings out while it is pointed at."""
    if not boxes:
        return ""
    shown = "".join(
        f'<span><input type="checkbox" id="show{items[0]}" checked aria-label="{escape(name)}">'
        f'<span id="name{items[0]}" tabindex="0"><i class="key {look}"></i>{escape(name)}</span></span>'
        for name, look, items in boxes
    )
    told = f'<span class="common">{escape(common)}</span>' if common else ""
    return f'<fieldset class="runs"><legend>shown</legend>{told}{shown}</fieldset>'


def section(title: str, content: str, note: str = "", *, folded: bool = False) -> str:
    """Return a section of ready HTML under a title; nothing where it has none. A folded one opens by its title."""
    if not content:
        return ""
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    if folded:
        return f"<section><details><summary><h2>{escape(title)}</h2></summary>{said}{content}</details></section>"
    return f"<section><h2>{escape(title)}</h2>{said}{content}</section>"


def _hiding(boxes: Sequence[Box]) -> str:
    """Return the rules, without a script, by which a box that is not ticked hides, and its name brings out."""
    rules = ""
    for _, _, items in boxes:
        pointed, own = f"body:has(#name{items[0]}:is(:hover,:focus)) main", _any_of(items)
        rules += f"body:has(#show{items[0]}:not(:checked)) main {own}{{display:none}}"
        rules += f"{pointed} [data-run]:not({own}){{opacity:.1}}{pointed} .spread[data-run]:not({own}){{opacity:0}}"
        rules += f"{pointed} .spread{own}{{opacity:.2}}"
    return rules


def _any_of(items: Sequence[int]) -> str:
    each = [f'[data-run="{item}"]' for item in items]
    return each[0] if len(each) == 1 else f":is({','.join(each)})"


def _asset(name: str) -> str:
    return importlib.resources.files("hybridsync.lab.report").joinpath(name).read_text(encoding="utf-8")
