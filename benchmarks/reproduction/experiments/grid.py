"""Every protocol and two hybrids under every straggler and link of the grid of `benchmarks.protocols`."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.grid.cells import LINKS, PROTOCOLS, SEEDS, STRAGGLERS
from benchmarks.peers.figures import Spread
from benchmarks.peers.plot import Bar, Panel, draw
from benchmarks.reproduction.clusters import Gridded
from benchmarks.reproduction.definition import Cell, Experiment, Row
from benchmarks.reproduction.jobs import HURT
from benchmarks.reproduction.parameters import GRIDDED, hybrid
from benchmarks.reproduction.reporting import markdown, mean, values
from benchmarks.reproduction.training import Training

SHARE = 31.25
"""What the search of docs/tune.md found for this job."""
HYBRIDS = (hybrid(SHARE), f"bsp:{SHARE:g}%,preduce")
PLANS = (*(GRIDDED.get(name, name) for name in PROTOCOLS), *HYBRIDS)
DRAWN_LINK = "1"
TITLES = {
    "uniform": "Alike workers",
    "one2x": "One takes twice as long",
    "one5x": "One takes five times as long",
    "transient": "Each in bursts",
}


def table(rows: Sequence[Row]) -> str:
    """Return a line for each straggler and plan, with a column for each link."""
    lines = [
        (straggler, f"`{plan}`", *(_figures(rows, straggler, link, plan) for link in LINKS))
        for straggler in STRAGGLERS
        for plan in PLANS
    ]
    return markdown(("straggler", "plan", *(f"link {link}" for link in LINKS)), lines)


def table_at_one_link(rows: Sequence[Row]) -> str:
    """Return a line for each plan, with a column for each straggler, at the link that the plot shows."""
    lines = [(f"`{plan}`", *(_figures(rows, each, DRAWN_LINK, plan) for each in STRAGGLERS)) for plan in PLANS]
    return markdown(("plan", *(TITLES[each].lower() for each in STRAGGLERS)), lines)


def _figures(rows: Sequence[Row], straggler: str, link: str, plan: str) -> str:
    """Return units a second, seconds to the loss or a dash if a seed did not reach it, and accuracy."""
    where = {"straggler": straggler, "link": _kept(link), "plan": plan}
    num_seeds = len({row["seed"] for row in rows})
    found = values(rows, "secs_to_loss", **where)
    to_loss = f"{mean(rows, 'secs_to_loss', **where):.1f}" if len(found) == num_seeds else "-"
    speed, accuracy = (mean(rows, name, **where) for name in ("units_per_sec", "accuracy"))
    return f"{speed:.0f} / {to_loss} / {accuracy:.3f}"


def _kept(link: str) -> str | float:
    """Return a link as a row of results has it: a number where it is one."""
    return link if link == "free" else float(link)


def plot(rows: Sequence[Row]) -> str:
    """Return the seconds to the loss of every plan that came there in every seed, a panel a straggler."""
    num_seeds = len({row["seed"] for row in rows})
    panels = []
    for straggler in STRAGGLERS:
        bars = []
        for plan in PLANS:
            found = values(rows, "secs_to_loss", straggler=straggler, link=_kept(DRAWN_LINK), plan=plan)
            if len(found) == num_seeds:
                label = plan.replace(f":{SHARE:g}%", "")  # the share stands in the note
                bars.append(Bar(label, Spread.of(found), plan in HYBRIDS))
        panels.append(Panel(TITLES[straggler], bars))
    told = f"median and range of {num_seeds} seeds" if num_seeds > 1 else "one seed"
    note = f"seconds (virtual), {told}; link {DRAWN_LINK}; hybrids: {SHARE:g} % of lock-step first"
    if any(len(panel.bars) < len(PLANS) for panel in panels):
        note += "; left out: who was not there in a seed"
    return draw(f"To a training loss of {HURT.loss:g}", note, [panels[:2], panels[2:]])


EXPERIMENT = Experiment(
    "grid",
    "all",
    "The job that asynchrony hurts, 8 workers whose units take 50 ms and vary by a fifth. A link is what all gradients "
    "take through the servers' port over a unit's compute time; rings do not pass it. A straggler takes two or five "
    "times as long, or each of them five times as long in a tenth of the time.",
    [
        Cell(
            {"straggler": straggler, "link": link, "plan": plan, "seed": seed},
            Training(HURT, plan, Gridded(straggler, link, seed), seed, evaluations=0),
        )
        for seed in SEEDS
        for straggler in STRAGGLERS
        for link in LINKS
        for plan in PLANS
    ],
    lambda rows: [],
    table,
    plot,
    by_seed=True,
)
