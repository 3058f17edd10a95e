"""Draws what workers do under a protocol as an SVG, a lane a worker; readable in light and in dark.

The colours are those of `hybridsync report`'s page.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from html import escape
from importlib.resources import files

from benchmarks.protocol_timeline import FAST_SECS, NUM_WORKERS, SLOW_SECS, Stretch, Timeline
from hybridsync.core.counted import duration
from hybridsync.lab.report.scales import Axis, time_axis

LEFT, WIDTH, RIGHT = 106.0, 940.0, 12.0
TOP, LANE, COMPUTE, TRANSFER = 52.0, 38.0, 17.0, 8.0
LEAST_SECS = 1e-3
"""What takes less is not drawn."""
COLORS = {"compute": "c0", "push": "c1", "pull": "c2", "held": "c7", "average": "c3", "x": "bad"}
SAID = {
    "compute": "computes a unit",
    "waits": "waits",
    "push": "push under way",
    "held": "the server holds the push",
    "pull": "pull under way",
    "average": "average under way",
    "x": "dropped",
}


def draw(timeline: Timeline, secs: float) -> str:
    """Return the figure of the first `secs` seconds."""
    x = time_axis(secs, 8)
    lanes = TOP + NUM_WORKERS * LANE
    height = lanes + (30.0 if timeline.updates else 0.0) + 24.0
    slow = f"{SLOW_SECS / FAST_SECS:.2g} times as long for a unit"
    said = f"{timeline.spec}: {NUM_WORKERS} simulated workers, the last of which takes {slow}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" role="img" '
        f'aria-label="{escape(said)}">',
        f"<style>{_style()}</style>",
        f'<rect class="ground" width="{WIDTH:g}" height="{height:g}" rx="8"/>',
        f'<text class="title" x="12" y="21">{escape(timeline.spec)}</text>',
        _legend(timeline),
        _grid(x, lanes + (24.0 if timeline.updates else 0.0)),
    ]
    parts += [_device_choice(timeline, worker, x) for worker in range(NUM_WORKERS)]
    parts.append(_averages(timeline, x))
    if timeline.updates:
        parts.append(_updates(timeline, x, lanes))
    return "\n".join(filter(None, parts)) + "\n</svg>\n"


@cache
def palette() -> dict[str, tuple[str, str]]:
    """Return the colours of the report's page by their names, in light and in dark."""
    text = files("hybridsync.lab.report").joinpath("page.css").read_text(encoding="utf-8")
    found = re.findall(r"--(\w+): light-dark\((#\w+), (#\w+)\);", text)
    return {name: (light, dark) for name, light, dark in found}


def _style() -> str:
    used = ["ground", "panel", "edge", "text", "soft", *COLORS.values()]
    light, dark = (";".join(f"--{name}:{palette()[name][mode]}" for name in used) for mode in (0, 1))
    fills = "".join(f".{kind}{{fill:var(--{color})}}" for kind, color in COLORS.items())
    return (
        f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
        "text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:var(--text)}"
        ".title{font-size:15px;font-weight:600}.soft{fill:var(--soft)}"
        ".note text{font-size:11px;fill:var(--ground);text-anchor:middle}"
        ".tick text{fill:var(--soft);text-anchor:middle}"
        ".ground{fill:var(--ground)}.grid{stroke:var(--edge);fill:none}"
        f".waits{{fill:var(--edge);opacity:.55}}{fills}.held{{opacity:.55}}"
        ".joint{stroke:var(--c3);stroke-width:1.5;fill:none}.dot{fill:var(--c3)}"
        ".update{stroke:var(--text);stroke-width:2;fill:none}"
    )


def _legend(timeline: Timeline) -> str:
    kinds = {stretch.kind for stretch in timeline.stretches if _shows(stretch)} | {"waits"}
    kinds |= {"x"} if any(stretch.note == "x" for stretch in timeline.stretches) else set()
    at, found = LEFT, ""
    for kind, said in SAID.items():
        if kind in kinds:
            found += f'<rect class="{kind}" x="{at:g}" y="33" width="11" height="11" rx="2"/>'
            found += f'<text x="{at + 16:g}" y="43">{said}</text>'
            at += 34 + 6.4 * len(said)
    if any(stretch.note.isdigit() for stretch in timeline.stretches):
        found += f'<text class="soft" x="{at:g}" y="43">0 1 2: staleness</text>'
    return found


def _grid(x: Axis, bottom: float) -> str:
    lines = "".join(f"M{_at(x, tick)} {TOP - 4:g}V{bottom:g}" for tick in x.ticks)
    labels = "".join(f'<text x="{_at(x, tick)}" y="{bottom + 16:g}">{duration(tick)}</text>' for tick in x.ticks[:-1])
    last = f'<text x="{WIDTH - RIGHT:g}" y="{bottom + 16:g}" style="text-anchor:end">{duration(x.ticks[-1])}</text>'
    return f'<path class="grid" d="{lines}"/><g class="tick">{labels}{last}</g>'


def _device_choice(timeline: Timeline, worker: int, x: Axis) -> str:
    top = TOP + worker * LANE
    own = [stretch for stretch in timeline.stretches if stretch.worker == worker]
    shapes: dict[str, str] = defaultdict(str)
    notes = ""
    for stretch in own:
        if not _shows(stretch):
            continue
        if stretch.kind == "compute":
            shapes["x" if stretch.note == "x" else "compute"] += _bar(x, stretch, top, COMPUTE)
            middle = (stretch.begin + min(stretch.end, x.high)) / 2
            if stretch.note and stretch.end <= x.high:
                mark = "✕" if stretch.note == "x" else stretch.note
                notes += f'<text x="{_at(x, middle)}" y="{top + 12.5:g}">{mark}</text>'
        else:
            shapes[stretch.kind] += _bar(x, stretch, top + COMPUTE + 1, TRANSFER)
    name = f"worker {worker}" + (", slow" if worker == NUM_WORKERS - 1 else "")
    lane = f'<rect class="waits" x="{LEFT:g}" y="{top:g}" width="{WIDTH - LEFT - RIGHT:g}" height="{COMPUTE:g}"/>'
    bars = "".join(f'<path class="{kind}" d="{shapes[kind]}"/>' for kind in COLORS if kind in shapes)
    label = f'<text x="12" y="{top + 12.5:g}">{name}</text>'
    return f'{lane}{label}{bars}<g class="note">{notes}</g>'


def _averages(timeline: Timeline, x: Axis) -> str:
    lines = dots = ""
    for at, members in timeline.averages:
        if at <= x.high:
            first, last = (TOP + worker * LANE + COMPUTE + 1 + TRANSFER / 2 for worker in (min(members), max(members)))
            lines += f"M{_at(x, at)} {first:g}V{last:g}"
            dots += "".join(
                f'<circle cx="{_at(x, at)}" cy="{TOP + worker * LANE + COMPUTE + 1 + TRANSFER / 2:g}" r="3"/>'
                for worker in members
            )
    return f'<path class="joint" d="{lines}"/><g class="dot">{dots}</g>' if lines else ""


def _updates(timeline: Timeline, x: Axis, top: float) -> str:
    ticks = "".join(
        f"M{_at(x, update.at)} {top + 20:g}v-{min(4 + 3 * update.num_units, 19)}"
        for update in timeline.updates
        if update.at <= x.high
    )
    return f'<text x="12" y="{top + 17:g}">updates</text><path class="update" d="{ticks}"/>'


def _shows(stretch: Stretch) -> bool:
    return stretch.end - stretch.begin >= LEAST_SECS


def _bar(x: Axis, stretch: Stretch, top: float, height: float) -> str:
    left, right = float(_at(x, stretch.begin)), float(_at(x, stretch.end))
    return f"M{left:g} {top:g}h{max(right - left - 0.6, 0.4):.1f}v{height:g}H{left:g}z"


def _at(x: Axis, value: float) -> str:
    return f"{LEFT + (WIDTH - LEFT - RIGHT) * x.fraction(value):.1f}"
