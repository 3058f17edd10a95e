"""Draws lines and marks with their spread as an SVG, panels side by side; readable in light and in dark. Pure.

The colours are those of `hybridsync report`'s page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape

from benchmarks.protocol_figure import palette
from hybridsync.lab.report.scales import Axis, linear, logarithmic, short

WIDTH, HEIGHT, GAP = 940.0, 330.0, 20.0
LEFT, TOP, BOTTOM, RIGHT = 52.0, 76.0, 46.0, 14.0
NUM_COLORS = 8
CHAR = 6.9
"""About the width of a character of the text."""

Place = Callable[[float, float], tuple[float, float]]
"""A point's values -> where it is drawn."""


@dataclass(frozen=True)
class Point:
    """A point of a line.

    Args:
      x, y: where it is.
      low, high: of its spread; None for none.
      label: beside its mark; may be empty.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclass(frozen=True)
class Line:
    """A line.

    Args:
      label: in the legend; empty for none.
      color: which of the palette's.
      points: ascending in x.
      marks: whether each point has one.
      joined: whether points are joined.
      faint: whether it is drawn in the background, without a legend.
    """

    label: str
    color: int
    points: Sequence[Point]
    marks: bool = False
    joined: bool = True
    faint: bool = False


@dataclass(frozen=True)
class Panel:
    """A chart.

    Args:
      title: above it, before what is on the y axis; may be empty.
      x, y: what is on the axes.
      lines: what is drawn.
      lowest: of the y axis; None for what is needed.
      is_log: whether equal steps along x are equal ratios.
      events: x -> what happened then, a dashed line.
      ticks: values that are written below; () for round ones.
    """

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    lowest: float | None = None
    is_log: bool = False
    events: Sequence[tuple[float, str]] = ()
    ticks: Sequence[float] = ()


def draw(title: str, note: str, panels: Sequence[Panel]) -> str:
    """Return the SVG.

    Args:
      title: of the figure, also for who cannot see it.
      note: how to read it.
      panels: from left to right.
    """
    width = (WIDTH - GAP * (len(panels) + 1)) / len(panels)
    parts = [_panel(panel, GAP + at * (width + GAP), width) for at, panel in enumerate(panels)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
            f'aria-label="{escape(f"{title}; {note}")}">',
            f"<style>{_style()}</style>",
            f'<rect class="ground" width="{WIDTH:g}" height="{HEIGHT:g}" rx="8"/>',
            f'<text class="title" x="{GAP:g}" y="25">{escape(title)}</text>',
            f'<text class="soft end" x="{WIDTH - GAP:g}" y="25">{escape(note)}</text>',
            *parts,
            "</svg>\n",
        ]
    )


def _panel(panel: Panel, left: float, width: float) -> str:
    area = left + LEFT, TOP, left + width - RIGHT, HEIGHT - BOTTOM
    x, y = _axes(panel)

    def at(value_x: float, value_y: float) -> tuple[float, float]:
        along, up = x.fraction(value_x), (value_y - y.low) / (y.high - y.low)
        return area[0] + (area[2] - area[0]) * along, area[3] - (area[3] - area[1]) * up

    if panel.title:
        head = f"{panel.title}: {panel.y}"
        found = [f'<text class="head" x="{left:g}" y="48">{escape(head)}</text>']
    else:
        found = [f'<text class="soft" x="{left:g}" y="{TOP - 12:g}">{escape(panel.y)}</text>']
    middle = (area[0] + area[2]) / 2
    found.append(f'<text class="soft middle" x="{middle:.1f}" y="{HEIGHT - 10:g}">{escape(panel.x)}</text>')
    for tick in y.ticks:
        _, up = at(x.low, tick)
        found.append(f'<path class="grid" d="M{area[0]:.1f} {up:.1f}H{area[2]:.1f}"/>')
        found.append(f'<text class="soft end" x="{area[0] - 6:.1f}" y="{up + 4:.1f}">{short(tick)}</text>')
    for tick in x.ticks:
        along, _ = at(tick, y.low)
        found.append(f'<text class="soft middle" x="{along:.1f}" y="{area[3] + 17:.1f}">{short(tick)}</text>')
    for when, what in panel.events:
        along, _ = at(when, y.low)
        found.append(f'<path class="event" d="M{along:.1f} {area[1]:.1f}V{area[3]:.1f}"/>')
        found.append(f'<text class="soft" x="{along + 4:.1f}" y="{area[3] - 6:.1f}">{escape(what)}</text>')
    clip = f"area{left:.0f}"
    found.append(
        f'<clipPath id="{clip}"><rect x="{area[0]:.1f}" y="{area[1]:.1f}" width="{area[2] - area[0]:.1f}" '
        f'height="{area[3] - area[1]:.1f}"/></clipPath>'
    )
    found.append(f'<g clip-path="url(#{clip})">{"".join(_line(line, at) for line in panel.lines)}</g>')
    found += [_marks(line, at, area[2]) for line in panel.lines]
    found.append(_legend(panel.lines, area[2]))
    return "".join(found)


def _axes(panel: Panel) -> tuple[Axis, Axis]:
    points = [point for line in panel.lines for point in line.points]
    across = [point.x for point in points]
    up = [value for p in points for value in (p.y, p.low, p.high) if value is not None]
    low = min(up) if panel.lowest is None else panel.lowest
    pad_x, pad_y = 0.03 * (max(across) - min(across) or 1.0), 0.05 * (max(up) - low or 1.0)
    upwards = linear(low - (pad_y if panel.lowest is None else 0), max(up) + pad_y)
    first = 0.0 if min(across) <= 0.2 * max(across) else min(across) - pad_x
    if panel.is_log:
        along = logarithmic(min(across) / 1.06, max(across) * 1.06)
    else:
        along = linear(first, max(across) + pad_x, 6)
    return replace(along, ticks=tuple(panel.ticks)) if panel.ticks else along, upwards


def _line(line: Line, at: Place) -> str:
    if not line.joined or len(line.points) < 2:
        return ""
    where = (at(point.x, point.y) for point in line.points)
    return f'<path class="line {_kind(line)}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in where)}"/>'


def _marks(line: Line, at: Place, right: float) -> str:
    found = ""
    for point in line.points:
        x, y = at(point.x, point.y)
        if point.low is not None and point.high is not None:
            (_, bottom), (_, top) = at(point.x, point.low), at(point.x, point.high)
            found += f'<path class="whisker {_kind(line)}" d="M{x:.1f} {bottom:.1f}V{top:.1f}"/>'
        if line.marks or point.label:
            found += f'<circle class="mark {_kind(line)}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
        if point.label:
            is_right = x + 10 + CHAR * len(point.label) > right
            kind = ' class="end"' if is_right else ""
            found += f'<text{kind} x="{x - 8 if is_right else x + 7:.1f}" y="{y + 17:.1f}">{escape(point.label)}</text>'
    return found


def _kind(line: Line) -> str:
    return f"k{line.color % NUM_COLORS}" + (" faint" if line.faint else "")


def _legend(lines: Sequence[Line], right: float) -> str:
    named = [line for line in lines if line.label and not line.faint]
    if not named:
        return ""
    at = right - sum(30 + CHAR * len(line.label) for line in named)
    found = ""
    for line in named:
        found += f'<path class="line k{line.color % NUM_COLORS}" d="M{at:.1f} {TOP - 16:g}h16"/>'
        found += f'<text x="{at + 21:.1f}" y="{TOP - 12:g}">{escape(line.label)}</text>'
        at += 30 + CHAR * len(line.label)
    return found


def _style() -> str:
    colors = [f"c{number}" for number in range(NUM_COLORS)]
    used = ["ground", "edge", "text", "soft", *colors]
    light, dark = (";".join(f"--{name}:{palette()[name][mode]}" for name in used) for mode in (0, 1))
    kinds = "".join(
        f".k{at}{{stroke:var(--{name})}}.mark.k{at}{{fill:var(--{name})}}" for at, name in enumerate(colors)
    )
    return (
        f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
        "text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:var(--text)}"
        ".title{font-size:15px;font-weight:600}.head{font-weight:600}.soft{fill:var(--soft)}.end{text-anchor:end}"
        ".middle{text-anchor:middle}.ground{fill:var(--ground)}.grid{stroke:var(--edge);fill:none}"
        ".event{stroke:var(--soft);fill:none;stroke-dasharray:4 3}"
        f".line{{fill:none;stroke-width:2;stroke-linejoin:round}}.whisker{{stroke-width:1.5}}{kinds}"
        ".faint{opacity:.22;stroke-width:1}"
    )
