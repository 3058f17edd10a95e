"""Draws figures of several systems as bars with their spread, an SVG; readable in light and in dark; pure.

The colours are those of `hybridsync report`'s page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.peers.figures import Spread, short
from benchmarks.protocol_figure import palette

WIDTH, TOP, LABEL, VALUE, GAP = 940.0, 40.0, 118.0, 58.0, 22.0
ROW, BAR, HEAD, FOOT = 23.0, 13.0, 28.0, 14.0
OURS_COLOR, PEERS_COLOR = "c0", "c7"


@dataclass(frozen=True)
class Bar:
    """One system's figure.

    Args:
      label: its name.
      spread: over the rounds.
      is_ours: whether it is one of ours, in a colour of its own.
    """

    label: str
    spread: Spread
    is_ours: bool


@dataclass(frozen=True)
class Panel:
    """Bars that are compared with each other.

    Args:
      title: above them.
      bars: from top to bottom.
      ideal: what cannot be surpassed, a dashed line; None for none.
    """

    title: str
    bars: Sequence[Bar]
    ideal: float | None = None

    @property
    def high(self) -> float:
        """The largest value that is drawn."""
        return max([bar.spread.high for bar in self.bars] + [self.ideal or 0.0])


def draw(title: str, note: str, rows: Sequence[Sequence[Panel]]) -> str:
    """Return the SVG of a grid of panels.

    Args:
      title: of the whole figure, also for who cannot see it.
      note: beside the title: the unit, and which direction is better.
      rows: panels side by side; all rows have as many columns as the longest.
    """
    columns = max(len(row) for row in rows)
    width = (WIDTH - (columns + 1) * GAP) / columns
    parts: list[str] = []
    top = TOP
    for row in rows:
        for column, panel in enumerate(row):
            left = GAP + column * (width + GAP)
            parts.append(_panel(panel, left, top, width))
        top += HEAD + ROW * max(len(panel.bars) for panel in row) + FOOT
    said = f"{title}; {note}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {top:g}" role="img" '
            f'aria-label="{escape(said)}">',
            f"<style>{_style()}</style>",
            f'<rect class="ground" width="{WIDTH:g}" height="{top:g}" rx="8"/>',
            f'<text class="title" x="{GAP:g}" y="25">{escape(title)}</text>',
            f'<text class="soft end" x="{WIDTH - GAP:g}" y="25">{escape(note)}</text>',
            *parts,
            "</svg>\n",
        ]
    )


def _panel(panel: Panel, left: float, top: float, width: float) -> str:
    zero, scale = left + LABEL, (width - LABEL - VALUE) / (panel.high or 1.0)
    found = [f'<text class="head" x="{left:g}" y="{top + 16:g}">{escape(panel.title)}</text>']
    first = top + HEAD
    last = first + ROW * len(panel.bars)
    found.append(f'<path class="axis" d="M{zero:g} {first - 2:.1f}V{last - 4:.1f}"/>')
    if panel.ideal is not None:
        at = zero + panel.ideal * scale
        found.append(f'<path class="ideal" d="M{at:.1f} {first - 4:.1f}V{last - 4:.1f}"/>')
        found.append(f'<text class="soft end" x="{at:.1f}" y="{last + 8:.1f}">ideal {short(panel.ideal)}</text>')
    found += [_bar(bar, left, first + index * ROW, width, scale) for index, bar in enumerate(panel.bars)]
    return "".join(found)


def _bar(bar: Bar, left: float, top: float, width: float, scale: float) -> str:
    spread, zero, middle = bar.spread, left + LABEL, top + BAR / 2
    low, high, length = (value * scale for value in (spread.low, spread.high, spread.median))
    kind = "ours" if bar.is_ours else "peer"
    whisker = f"M{zero + low:.1f} {middle:g}H{zero + high:.1f}"
    whisker += "".join(f"M{zero + end:.1f} {middle - 3:g}v6" for end in (low, high))
    return (
        f'<text class="{kind}-name" x="{left:g}" y="{top + 11:g}">{escape(bar.label)}</text>'
        f'<rect class="{kind}" x="{zero:g}" y="{top:g}" width="{max(length, 1.0):.1f}" height="{BAR:g}"/>'
        + (f'<path class="whisker" d="{whisker}"/>' if spread.count > 1 else "")
        + f'<text class="soft end" x="{left + width:.1f}" y="{top + 11:g}">{short(spread.median)}</text>'
    )


def _style() -> str:
    used = ["ground", "edge", "text", "soft", OURS_COLOR, PEERS_COLOR]
    light, dark = (";".join(f"--{name}:{palette()[name][mode]}" for name in used) for mode in (0, 1))
    return (
        f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
        "text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:var(--text)}"
        ".title{font-size:15px;font-weight:600}.head{font-weight:600}.soft{fill:var(--soft)}.end{text-anchor:end}"
        ".ours-name{font-weight:600}.ground{fill:var(--ground)}"
        f".ours{{fill:var(--{OURS_COLOR})}}.peer{{fill:var(--{PEERS_COLOR});opacity:.55}}"
        ".axis{stroke:var(--edge);fill:none}.whisker{stroke:var(--text);fill:none;stroke-width:1.2}"
        ".ideal{stroke:var(--soft);fill:none;stroke-dasharray:4 3}"
    )
