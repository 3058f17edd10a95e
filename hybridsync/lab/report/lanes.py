"""Lanes over time (phases, who was there, what went wrong) and bars of stalls and of workers' time."""

from collections.abc import Mapping, Sequence
from html import escape

from hybridsync.core.counted import duration
from hybridsync.lab.report.charts import tick_labels
from hybridsync.lab.report.incidents import Incident, Sort
from hybridsync.lab.report.model import RunModel, Stall
from hybridsync.lab.report.scales import Axis, ids, millis, number, time_axis

GLYPHS: dict[Sort, tuple[str, str]] = {
    "lost": ("✕", "lost or left"),
    "back": ("▲", "joined, resumed or fast again"),
    "slow": ("◆", "marked as a straggler, or suspected to hang"),
    "decided": ("■", "decided by a policy"),
    "rollback": ("◀", "rolled back"),
    "other": ("●", "other"),
}
"""The mark of each sort of incident and what the legend says of it."""

MOST_BARS = 20
"""Stalls that are drawn; the table names all."""

STAGE_COLORS = {"drain": 0, "capture": 1, "reserve": 2, "enter": 3, "rest": 7}


def draw_lanes(runs: Sequence[RunModel], colors: Mapping[str, int], *, brief: bool = False) -> str:
    """Return the lanes of all runs on one time axis.

    Args:
        runs: runs in the order of the page.
        colors: protocol to index into the page's colours.
        brief: whether a run has one lane alone, with its phases and all of its incidents.
    """
    x = time_axis(max(run.secs for run in runs), 8)
    sorts = {incident.sort for run in runs for incident in run.incidents}
    legend = "".join(f'<li><i class="swatch q{color}"></i>{escape(name)}</li>' for name, color in colors.items())
    legend += "".join(
        f'<li><i class="mark {sort}">{glyph}</i>{escape(said)}</li>'
        for sort, (glyph, said) in GLYPHS.items()
        if sort in sorts
    )
    if any(run.slow for run in runs):
        legend += '<li><i class="swatch slow"></i>as long as the mark stands</li>'
    if brief:
        lanes = "".join(_brief_lane(index, run, x, colors) for index, run in enumerate(runs))
    else:
        lanes = "".join(_run_lanes(index, run, x, colors, len(runs) > 1) for index, run in enumerate(runs))
    lanes += f'<div class="xs">{tick_labels(x, "left", duration)}</div>'
    longest = max(len(run.name) for run in runs)  # names that end in "..." would be without what they differ in
    kind = f'lanes brief" style="--name:min(45%,{longest}ch)' if brief else "lanes"
    return f'<ul class="legend">{legend}</ul><div class="{kind}">{lanes}</div>'


def _brief_lane(index: int, run: RunModel, x: Axis, colors: Mapping[str, int]) -> str:
    name = f'<b class="k{run.color}" title="{escape(run.name)}">{escape(run.name)}</b>'
    marks = _marks(x, run.incidents)
    track = f'<div class="track tall">{_phase_bars(run, x, colors)}{marks}</div>'
    return f'<section data-run="{index}"><div class="lane">{name}{track}</div></section>'


def _phase_bars(run: RunModel, x: Axis, colors: Mapping[str, int]) -> str:
    return "".join(
        f'<div class="bar q{colors[bar.protocol]}" style="{_extent(x, bar.begin, bar.end)}" title="{escape(tip)}">'
        f"<span>{bar.phase} {escape(bar.protocol)}</span></div>"
        for bar in run.phases
        for tip in [
            f"phase {bar.phase}: {bar.protocol} ({bar.reason}), workers {ids(bar.members)}, "
            f"unit {bar.units:,} to {bar.end_units:,}, {duration(bar.end - bar.begin)}"
        ]
    )


def _run_lanes(index: int, run: RunModel, x: Axis, colors: Mapping[str, int], named: bool) -> str:
    whole = [incident for incident in run.incidents if incident.worker is None]
    name = f'<h3 class="k{run.color}">{escape(run.name)}</h3>' if named else ""
    rows = f'<div class="lane"><b>phase</b><div class="track tall">{_phase_bars(run, x, colors)}</div></div>'
    if whole:
        rows += f'<div class="lane"><b>run</b><div class="track tall">{_marks(x, whole)}</div></div>'
    for worker in run.workers:
        bars = ""
        for there in (stretch for stretch in run.present if stretch.worker == worker):
            bars += f'<div class="bar there" style="{_extent(x, there.begin, there.end)}"></div>'
            for phase in run.phases:
                begin, end = max(there.begin, phase.begin), min(there.end, phase.end)
                if worker in phase.members and begin < end:
                    bars += f'<div class="bar q{colors[phase.protocol]}" style="{_extent(x, begin, end)}"></div>'
        bars += "".join(
            f'<div class="bar slow" style="{_extent(x, slow.begin, slow.end)}"></div>'
            for slow in run.slow
            if slow.worker == worker
        )
        own = [incident for incident in run.incidents if incident.worker == worker]
        rows += f'<div class="lane"><b>worker {worker}</b><div class="track">{bars}{_marks(x, own)}</div></div>'
    return f'<section data-run="{index}">{name}{rows}</section>'


def _extent(x: Axis, begin: float, end: float) -> str:
    left = 100 * x.fraction(begin)
    return f"left:{left:.3f}%;width:{max(100 * x.fraction(end) - left, 0.0):.3f}%"


def _marks(x: Axis, incidents: Sequence[Incident]) -> str:
    return "".join(
        f'<i class="mark {incident.sort}" style="left:{100 * x.fraction(incident.t):.3f}%" '
        f'title="{escape(f"{duration(incident.t)}: {incident.text}")}">{GLYPHS[incident.sort][0]}</i>'
        for incident in incidents
    )


def draw_stalls(runs: Sequence[RunModel]) -> str:
    """Return a stacked bar for each switch whose stages are known, its compiling apart; of many the longest."""
    told = [(index, run, stall) for index, run in enumerate(runs) for stall in run.stalls if stall.stages]
    if not told:
        return ""
    num_told = len(told)
    if num_told > MOST_BARS:
        floor = sorted((stall.secs or 0.0 for _, _, stall in told), reverse=True)[MOST_BARS - 1]
        told = [entry for entry in told if (entry[2].secs or 0.0) >= floor][:MOST_BARS]
    high = max(max(sum(stall.stages.values()), stall.compile_secs or 0.0) for _, _, stall in told) or 1.0
    rows = ""
    for index, run, stall in told:
        label = f"phase {stall.phase}: {stall.before} to {stall.after}"
        label = f"{run.name}, {label}" if len(runs) > 1 else label
        parts = "".join(
            f'<div class="part k{STAGE_COLORS[stage]}" style="width:{100 * secs / high:.3f}%" '
            f'title="{stage} {millis(secs)}"></div>'
            for stage, secs in stall.stages.items()
        )
        compiling = ""
        if stall.compile_secs:
            compiling = (
                f'<div class="stack"><div class="part compile" style="width:{100 * stall.compile_secs / high:.3f}%" '
                f'title="compile {millis(stall.compile_secs)}"></div></div>'
            )
        rows += (
            f'<div class="row" data-run="{index}"><p><b>{escape(label)}</b> '
            f'{_stall_said(stall)}</p><div class="stack">{parts}</div>{compiling}</div>'
        )
    legend = "".join(f'<li><i class="swatch k{color}"></i>{stage}</li>' for stage, color in STAGE_COLORS.items())
    if any(stall.compile_secs for _, _, stall in told):
        legend += '<li><i class="swatch compile"></i>compile, counted apart</li>'
    left_out = f'<p class="note">The {len(told)} longest of {num_told}.</p>' if len(told) < num_told else ""
    return f'{left_out}<ul class="legend">{legend}</ul><div class="rows">{rows}</div>'


def _stall_said(stall: Stall) -> str:
    """Return a stall's figures; its stages, of which the bar below it is, may lie within the one unit's time."""
    said = "stall " + (millis(stall.secs) if stall.secs is not None else "unknown")
    stages = sum(stall.stages.values())
    if stall.secs is not None and stages > 1.05 * stall.secs + 1e-3:
        said += f" beyond one unit's time, its stages took {millis(stages)}"
    return said + (f", compile {millis(stall.compile_secs)}" if stall.compile_secs else "")


def draw_busy(runs: Sequence[RunModel]) -> str:
    """Return how each worker's time divides; empty without a timeline."""
    kinds = list(dict.fromkeys(kind for run in runs for secs in run.busy.values() for kind in secs))
    rows = ""
    for index, run in enumerate(runs):
        for role, secs in run.busy.items():
            total = sum(secs.values()) or 1.0
            parts = "".join(
                f'<div class="part k{kinds.index(kind) % 8}" style="width:{100 * secs[kind] / total:.3f}%" '
                f'title="{escape(kind)} {number(100 * secs[kind] / total)} %"></div>'
                for kind in kinds
                if kind in secs
            )
            said = ", ".join(f"{kind} {100 * secs[kind] / total:.0f} %" for kind in kinds if kind in secs)
            label = f"{run.name}, {role}" if len(runs) > 1 else role
            rows += (
                f'<div class="row" data-run="{index}"><p><b>{escape(label)}</b> {escape(said)}</p>'
                f'<div class="stack">{parts}</div></div>'
            )
    if not rows:
        return ""
    legend = "".join(f'<li><i class="swatch k{at % 8}"></i>{escape(kind)}</li>' for at, kind in enumerate(kinds))
    return f'<ul class="legend">{legend}</ul><div class="rows">{rows}</div>'
