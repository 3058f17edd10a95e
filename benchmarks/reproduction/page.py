"""Writes the made parts of `docs/reproduction.md` and its plots from the results; a test holds both against them.

The page is written by hand, but for the blocks between `<!-- made: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from benchmarks.protocol_page import BLOCK, DOCS
from benchmarks.reproduction.definition import NOT_RUN, Experiment
from benchmarks.reproduction.experiments import EXPERIMENTS
from benchmarks.reproduction.record import FOLDER, rows, told, whole_seeds
from benchmarks.reproduction.reporting import markdown

PAGE = DOCS / "reproduction.md"
PAPERS = {"syncswitch": "Sync-Switch", "hsp": "HSP", "ripples": "Ripples", "psplus": "PS+"}
WIDTH = 120
HEAD = ("claim", "paper", "here", "", "conditions", "experiment")


def write(folder: Path = FOLDER, page: Path = PAGE) -> None:
    """Write the plots, and the made blocks of the page."""
    for name, svg in plots(folder).items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    page.write_text(refreshed(page.read_text(encoding="utf-8"), folder), encoding="utf-8")


def refreshed(text: str, folder: Path = FOLDER) -> str:
    """Return the page's text with its made blocks as the results are.

    Raises:
      KeyError: the page has a block that is not made here.
    """
    return BLOCK.sub(lambda block: f"{block[1]}{made(block[2], folder)}\n{block[3]}", text)


def made(name: str, folder: Path = FOLDER) -> str:
    """Return one block: `claims_PAPER`, `state`, or an experiment's own."""
    if name == "state":
        return _state(folder)
    if name.startswith("claims_"):
        return _claims(PAPERS[name.removeprefix("claims_")], folder)
    return _experiment(EXPERIMENTS[name], folder)


def plots(folder: Path = FOLDER) -> dict[str, str]:
    """Return the SVGs of the experiments that are measured, by their names."""
    return {
        each.name: each.plot(found)
        for each in EXPERIMENTS.values()
        if each.plot is not None and (found := told(each, folder))
    }


def _claims(paper: str, folder: Path) -> str:
    lines = []
    for each in EXPERIMENTS.values():
        if each.paper == paper:
            for claim in each.claims(told(each, folder)):
                lines.append(
                    (claim.text, claim.published, claim.ours, claim.verdict, claim.conditions, f"`{each.name}`")
                )
    return markdown(HEAD, lines)


def _experiment(experiment: Experiment, folder: Path) -> str:
    found = told(experiment, folder)
    parts = [textwrap.fill(experiment.reason, WIDTH), f"    {experiment.command}"]
    if not found:
        done = len(rows(experiment, folder))
        parts.append(f"{NOT_RUN[0].upper()}{NOT_RUN[1:]}: {done} of {len(experiment.cells)} cells are measured.")
        return "\n\n".join(parts)
    if experiment.plot is not None:
        parts.append(f"![{experiment.name}](reproduction/{experiment.name}.svg)")
    if len(rows(experiment, folder)) < len(experiment.cells):
        parts.append(
            f"{len(whole_seeds(experiment, folder))} of {len(experiment.seeds)} seeds are measured whole; what stands "
            "here is of those alone."
        )
    return "\n\n".join([*parts, experiment.table(found)])


def _state(folder: Path) -> str:
    lines = []
    for each in EXPERIMENTS.values():
        done = len(rows(each, folder))
        link = f"[{each.name}.csv](reproduction/{each.name}.csv)" if done else "-"
        lines.append((f"`{each.name}`", each.paper, f"{done} of {len(each.cells)}", link))
    return markdown(("experiment", "paper", "cells measured", "results"), lines)
