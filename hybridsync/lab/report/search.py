"""The page of a search for a job's switch point: the shares tried, in their order, and what came of their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from hybridsync.lab.report.charts import tick_labels
from hybridsync.lab.report.page import document, heading, section
from hybridsync.lab.report.scales import Axis, linear, number
from hybridsync.lab.report.tables import table

GOOD, BAD, OPEN = 2, 1, 7
"""Colours, of the page's eight: good enough, rejected, not judged."""
HALF_MARK = 14
"""Half a mean's mark, in thousandths of the chart's width."""


def search_page(name: str, search: Mapping[str, Any]) -> str:
    """Return the page of one search as HTML text.

    Args:
        name: name of the search's folder.
        search: record of the search, as `hybridsync.lab.tuning.search_record.record_of` makes it.
    """
    badge = "found" if search["answer"] else "under way"
    pairs = {
        "job": search["job"],
        "runs made": search["where"],
        "answer": search["answer"] or f"not yet: {search['missing']}",
        "target": "not yet known" if search["target"] is None else f"{search['target']:.4f}",
        "tolerance": f"{search['tolerance']:g}",
    }
    told = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(str(said))}</dd></div>" for key, said in pairs.items())
    shown = f'<span class="badge {"completed" if search["answer"] else ""}">{badge}</span>'
    note = (
        "A dot is a run, a bar the mean of a share's runs; numbers give the order in which shares were tried. The "
        "dashed line is what a share has to reach: the target less the tolerance."
    )
    verdict = "".join(f"<p>{escape(line)}</p>" for line in search["lines"])
    content = section("The search's path", _draw(search) + _rows(search), note) + section("What it comes to", verdict)
    return document(name, heading(name, shown, f'<dl class="facts">{told}</dl>'), content)


def _rows(search: Mapping[str, Any]) -> str:
    head = ("", "plan", "runs", "accuracy", "sd", "converged", "seconds a run", "verdict")
    rows = [
        (
            0,
            (
                str(at + 1),
                f"<code>{escape(setting['plan'])}</code>",
                f"{len(setting['accuracies'])} of {search['runs']}",
                _figure(setting["mean"]),
                _figure(setting["spread"]),
                _figure(setting["converged"]),
                "-" if setting["secs_a_run"] is None else number(setting["secs_a_run"]),
                escape(setting["verdict"]),
            ),
        )
        for at, setting in enumerate(search["settings"])
    ]
    return table(head, rows, head[2:7])


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _draw(search: Mapping[str, Any]) -> str:
    settings = [each for each in search["settings"] if each["mean"] is not None]
    if not settings:
        return '<figure class="chart"><p class="none">no run has ended yet</p></figure>'
    bound = None if search["target"] is None else search["target"] - search["tolerance"]
    values = [value for each in settings for value in each["accuracies"] if value is not None]
    values += [bound] if bound is not None else []
    pad = (max(values) - min(values) or 0.01) * 0.12
    x, y = _shares(settings), linear(min(values) - pad, max(values) + pad)
    svg = "".join(f'<path class="grid" d="M0 {_up(y, tick)}H1000"/>' for tick in y.ticks)
    if bound is not None:
        svg += f'<path class="line dashed k0" d="M0 {_up(y, bound)}H1000"/>'
    labels = ""
    for at, setting in enumerate(search["settings"]):
        if setting["mean"] is None:
            continue
        color = OPEN if setting["accepted"] is None else GOOD if setting["accepted"] else BAD
        left = 1000 * x.fraction(setting["share"])
        dots = "".join(f"M{left:.1f} {_up(y, value)}h0" for value in setting["accuracies"] if value is not None)
        bar = f"M{left - HALF_MARK:.1f} {_up(y, setting['mean'])}h{2 * HALF_MARK}"
        svg += f'<path class="line dots k{color}" d="{dots}"/><path class="line solid k{color}" d="{bar}"/>'
        side = "last" if left > 960 else "first" if left < 40 else ""
        labels += f'<span class="tick {side}" style="left:{left / 10:.2f}%;top:-2px">{at + 1}</span>'
    said = "; ".join(f"{each['plan']}: {_figure(each['mean'])}, {each['verdict']}" for each in settings)
    return (
        '<figure class="chart"><figcaption>Accuracy by share of BSP, logarithmic</figcaption>'
        '<ul class="legend">'
        f'<li><i class="key k{GOOD}"></i>good enough</li><li><i class="key k{BAD}"></i>rejected</li>'
        f'<li><i class="key k{OPEN}"></i>gives the target, or under way</li>'
        '<li><i class="key dashed k0"></i>to be reached</li></ul>'
        f'<div class="xs path">{labels}</div><div class="plot"><div class="ys">{tick_labels(y, "bottom", _tick)}</div>'
        f'<div class="area" role="img" aria-label="{escape(said)}">'
        f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">{svg}</svg></div>'
        f'<div class="xs">{tick_labels(x, "left", _percent)}</div></div></figure>'
    )


def _shares(settings: Sequence[Mapping[str, Any]]) -> Axis:
    """Return an axis on which halving is a step, with a tick at each share that was tried."""
    shares = sorted({each["share"] for each in settings})
    return Axis(shares[0] / 1.3, shares[-1] * 1.3, tuple(shares), is_log=True)


def _up(y: Axis, value: float) -> str:
    return f"{1000 * (1 - y.fraction(value)):.1f}"


def _tick(value: float) -> str:
    return f"{value:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"
