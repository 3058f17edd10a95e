"""Line charts as HTML around an SVG that stretches: lines scale with the page, text keeps its size."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from hybridsync.core.counted import duration
from hybridsync.lab.report.scales import Axis, Point, linear, logarithmic, number, short, thin, time_axis

Style = Literal["solid", "dashed", "dotted", "dots", "marked"]
Over = Literal["time", "units", "examples"]

NUM_COLORS = 8
STYLES: tuple[Style, ...] = ("solid", "dashed", "dotted")
"""Lines beyond the colours are told apart by their style."""

LOG_FROM = 20.0
"""An axis is logarithmic when its highest value is so many times its lowest."""


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Args:
        label: text for the legend.
        run: index of its run, so that the page can hide it.
        color: index into the page's colours.
        style: how the line is drawn; "dots" joins nothing, "marked" is a line with its points.
        points: points of the line, in order.
        edges: place, lowest and highest value of a band around the line; empty without one.
    """

    label: str
    run: int
    color: int
    style: Style
    points: Sequence[Point]
    edges: Sequence[tuple[float, float, float]] = ()


@dataclass(frozen=True)
class Band:
    """A stretch of the x axis that is coloured behind the lines: a phase."""

    begin: float
    end: float
    color: int


@dataclass(frozen=True)
class Chart:
    """Describes a chart of lines over time, units or examples.

    Args:
        title: title of the chart, with its unit.
        x: "time" in seconds, "units" or "examples".
        lines: lines to draw; lines without points are left out.
        bands: phases drawn in the background of the lines.
        note: help for the reader, one line; may be empty.
        x_high: end of the x axis; 0 for the last point.
        may_be_log: whether values far apart get a logarithmic axis.
        from_zero: whether the y axis begins at 0 otherwise.
        settled: whether the y axis begins at the lowest value of the last three quarters of each line.
        switched: whether the page has the same chart over time, units and examples, and shows one of them.
    """

    title: str
    x: Over
    lines: Sequence[Line]
    bands: Sequence[Band] = ()
    note: str = ""
    x_high: float = 0.0
    may_be_log: bool = False
    from_zero: bool = True
    settled: bool = False
    switched: bool = False


def draw(chart: Chart) -> str:
    """Return the chart as one HTML figure; one that has no point says so."""
    lines = [line for line in chart.lines if line.points]
    if not lines:
        caption = f"<figcaption>{escape(_title(chart))}</figcaption>"
        return f'<figure class="{_class(chart)}">{caption}<p class="none">nothing yet</p></figure>'
    x, y = _axes(chart, lines)
    title = f"{_title(chart)}, logarithmic" if y.is_log else _title(chart)
    svg = "".join(
        f'<rect class="band q{band.color}" x="{1000 * x.fraction(band.begin):.1f}" y="0" height="1000" '
        f'width="{1000 * (x.fraction(band.end) - x.fraction(band.begin)):.1f}"/>'
        for band in chart.bands
    )
    svg += "".join(f'<path class="grid" d="M0 {_up(y, tick)}H1000"/>' for tick in y.ticks)
    svg += "".join(_path(line, x, y) for line in lines)
    data = {
        "x": [x.low, x.high],
        "y": [y.low, y.high],
        "log": y.is_log,
        "over": chart.x,
        "lines": [
            [
                line.label,
                line.run,
                f"{line.style} k{line.color}",
                [[round(at, 3), float(f"{value:.5g}")] for at, value in thin(line.points)],
            ]
            for line in lines
        ],
    }
    embedded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<figure class="{_class(chart)}"><figcaption>{escape(title)}</figcaption>{_legend(lines)}'
        f'<div class="plot"><div class="ys">{tick_labels(y, "bottom", short)}</div>'
        f'<div class="area" tabindex="0" aria-label="{escape(_said(title, lines))}" role="img">'
        f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">{svg}</svg></div>'
        f'<div class="xs">{tick_labels(x, "left", _written(chart.x))}</div></div>'
        f'<p class="note">{escape(chart.note)}</p>'
        f'<script type="application/json">{embedded}</script></figure>'
    )


def _class(chart: Chart) -> str:
    return f"chart over-{chart.x}" if chart.switched else "chart"


def _axes(chart: Chart, lines: Sequence[Line]) -> tuple[Axis, Axis]:
    high = chart.x_high or max(point[0] for line in lines for point in line.points)
    x = time_axis(high) if chart.x == "time" else linear(0.0, high)
    values = [point[1] for line in lines for point in line.points]
    is_share = chart.settled and min(values) >= 0 and max(values) <= 1
    values += [edge for line in lines for _, *edges in line.edges for edge in edges]
    low, top = min(values), max(values)
    if chart.settled:
        since = [0.75 * line.points[0][0] + 0.25 * line.points[-1][0] for line in lines]
        low = min(value for line, begin in zip(lines, since, strict=True) for at, value in line.points if at >= begin)
    if chart.may_be_log and low > 0 and top / low >= LOG_FROM:
        return x, logarithmic(low / 1.15, top * 1.15)
    pad = (top - low or abs(top) or 1.0) * 0.06
    end = min(top + pad, 1.0) if is_share else top + pad  # the band of a share's spread may reach beyond 1
    return x, linear(0.0 if chart.from_zero and low >= 0 else low - pad, end)


def _written(over: Over) -> Callable[[float], str]:
    return duration if over == "time" else short


def _up(y: Axis, value: float) -> str:
    return f"{1000 * (1 - y.fraction(value)):.1f}"


def _path(line: Line, x: Axis, y: Axis) -> str:
    """Return a line, and its band below it, in a square of 1,000 that stretches."""
    band = _band(line, x, y, (1000, 1000))
    svg = f'<path class="spread q{line.color}" data-run="{line.run}" d="{band}"/>' if band else ""
    return svg + "".join(
        f'<path class="line {style} k{line.color}" data-run="{line.run}" d="{path}"/>'
        for style, path in _drawn(line, x, y, (1000, 1000))
    )


def _drawn(line: Line, x: Axis, y: Axis, size: tuple[float, float]) -> list[tuple[str, str]]:
    """Return what a line consists of: a style, and a path in an area of this width and height."""
    points = thin(line.points)
    drawn = {"dots": ("dots",), "marked": ("solid", "dots")}.get(line.style, (line.style,))
    paths = []
    for style in drawn if len(points) > 1 else ("dots",):
        is_dots = style == "dots"
        parts = [[point] for point in points if point[1] >= y.low] if is_dots else above(points, y.low)
        at = ["L".join(_place(x, y, size, left, value) for left, value in part) for part in parts]
        paths.append((style, "".join(f"M{part}{'h0' if is_dots else ''}" for part in at)))
    return paths


def above(points: Sequence[Point], low: float) -> list[list[Point]]:
    """Return the parts of a line at `low` or above, each from and to where it crosses it.

    >>> above([(0, 1), (2, 3), (4, 1)], 2)
    [[(1.0, 2), (2, 3), (3.0, 2)]]
    """
    crossed = list(points[:1])
    for (x, y), (end, value) in itertools.pairwise(points):
        if (y < low) != (value < low):
            crossed.append((x + (end - x) * (low - y) / (value - y), low))
        crossed.append((end, value))
    return [list(part) for is_above, part in itertools.groupby(crossed, lambda point: point[1] >= low) if is_above]


def _band(line: Line, x: Axis, y: Axis, size: tuple[float, float]) -> str:
    if len(line.edges) < 2:
        return ""
    upper = [_place(x, y, size, left, high) for left, _, high in line.edges]
    lower = [_place(x, y, size, left, low) for left, low, _ in reversed(line.edges)]
    return f"M{'L'.join([*upper, *lower])}Z"


def _place(x: Axis, y: Axis, size: tuple[float, float], left: float, value: float) -> str:
    return f"{size[0] * x.fraction(left):.1f} {size[1] * (1 - y.fraction(value)):.1f}"


def tick_labels(axis: Axis, side: str, written: Callable[[float], str]) -> str:
    """Return an axis' labels; those at its two ends stay inside the chart's width."""
    labels = []
    for tick in axis.ticks:
        share = axis.fraction(tick)
        edge = " first" if share < 0.04 else " last" if share > 0.94 else ""
        labels.append(f'<span class="tick{edge}" style="{side}:{100 * share:.2f}%">{escape(written(tick))}</span>')
    return "".join(labels)


def _legend(lines: Sequence[Line]) -> str:
    if len({line.run for line in lines}) == len(lines):  # the boxes of the page name them
        return ""
    entries = "".join(
        f'<li data-run="{line.run}"><i class="key {line.style} k{line.color}"></i>{escape(line.label)}</li>'
        for line in lines
    )
    return f'<ul class="legend">{entries}</ul>'


def _title(chart: Chart) -> str:
    return f"{chart.title} over {chart.x}"


def _said(title: str, lines: Sequence[Line]) -> str:
    """Return what a screen reader says of the chart."""
    ends = "; ".join(
        f"{line.label}: {number(line.points[0][1])} to {number(line.points[-1][1])}" for line in lines[:12]
    )
    return f"{title}. {ends}"


WIDTH, HEIGHT = 640, 420
LEFT, RIGHT, TOP, FOOT, ROW = 62, 18, 40, 52, 20
"""Of a file of its own, in pixels: the whole; room around the area, and for each line of the legend."""
COLORS = ("#1f6fb4", "#c2500f", "#15805a", "#8347bd", "#bd2f74", "#7a5a1f", "#0c7f8a", "#5d6875")
DASHES = {"dashed": ' stroke-dasharray="7 5"', "dotted": ' stroke-dasharray="1.5 5" stroke-linecap="round"'}
WORDS: dict[Over, str] = {"time": "time from the first unit", "units": "units applied", "examples": "examples applied"}


def draw_svg(chart: Chart) -> str:
    """Return the chart as an SVG file that needs no style sheet: for a paper, a slide, a notebook."""
    lines = [line for line in chart.lines if line.points]
    rows = 0 if [line.label for line in lines] == [chart.title.lower()] else (len(lines) + 1) // 2
    height = HEIGHT + ROW * rows
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13" fill="#1b2027">'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    )
    if not lines:
        return f"{head}{_text(LEFT, 24, f'{_title(chart)}: nothing yet', 'start')}</svg>\n"
    x, y = _axes(chart, lines)
    size = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - FOOT)
    base = TOP + size[1]
    title = f"{chart.title}, logarithmic" if y.is_log else chart.title
    svg = _text(LEFT, 24, title, "start", ' font-weight="bold"')
    for tick in y.ticks:
        level = base - size[1] * y.fraction(tick)
        svg += f'<path d="M{LEFT} {level:.1f}h{size[0]}" stroke="#d5dbe1"/>'
        svg += _text(LEFT - 8, level + 4, short(tick), "end")
    for tick in x.ticks:
        svg += _text(LEFT + size[0] * x.fraction(tick), base + 18, _written(chart.x)(tick), "middle")
    svg += f'<path d="M{LEFT} {TOP}V{base}H{WIDTH - RIGHT}" fill="none" stroke="#515c69"/>'
    svg += _text(LEFT + size[0] / 2, base + 38, WORDS[chart.x], "middle")
    drawn = "".join(
        f'<path d="{band}" fill="{COLORS[line.color]}" opacity="{0.18 if len(lines) <= NUM_COLORS else 0.06}"/>'
        for line in lines
        if (band := _band(line, x, y, size))
    )
    for line in lines:
        for style, path in _drawn(line, x, y, size):
            width = ' stroke-width="7" stroke-linecap="round"' if style == "dots" else ' stroke-width="2"'
            drawn += f'<path d="{path}" fill="none" stroke="{COLORS[line.color]}"{width}{DASHES.get(style, "")}/>'
    svg += f'<g transform="translate({LEFT} {TOP})">{drawn}</g>'
    for at, line in enumerate(lines if rows else ()):
        left, level = LEFT + at % 2 * size[0] / 2, HEIGHT + 4 + ROW * (at // 2)
        stroke = f'stroke="{COLORS[line.color]}" stroke-width="3"{DASHES.get(line.style, "")}'
        svg += f'<path d="M{left:.1f} {level}h24" {stroke}/>'
        svg += _text(left + 32, level + 4, line.label, "start")
    return f"{head}{svg}</svg>\n"


def _text(left: float, level: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{left:.1f}" y="{level:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'
