"""Writes the made parts of `docs/reproduction.md` and its plots from the results; a test holds both against them.

The page is written by hand, but for the blocks between `<!-- made: NAME -->` and `<!-- end -->`. Results in another
folder leave it alone: they get a page of their own, of made blocks.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from benchmarks.protocol_page import BLOCK, DOCS
from benchmarks.reproduction import lengths
from benchmarks.reproduction.definition import NOT_RUN, Experiment
from benchmarks.reproduction.experiments import EXPERIMENTS
from benchmarks.reproduction.record import FOLDER, rows, told, whole_seeds
from benchmarks.reproduction.reporting import markdown
from hybridsync.core.errors import ConfigError

PAGE = DOCS / "reproduction.md"
PAPERS = {"syncswitch": "Sync-Switch", "hsp": "HSP", "ripples": "Ripples", "psplus": "PS+"}
WIDTH = 120
HEAD = ("claim", "paper", "here", "", "conditions", "experiment")


def write(folder: Path = FOLDER) -> Path:
    """Write the plots, and the page beside them or its made blocks; returns the page's path.

    Raises:
      ConfigError: the folder has no results.
    """
    is_own = folder.resolve() == FOLDER
    page = PAGE if is_own else folder / PAGE.name
    text = refreshed(page.read_text(encoding="utf-8"), folder) if is_own else blocks(folder)
    for name, svg in plots(folder).items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    page.write_text(text, encoding="utf-8")
    return page


def blocks(folder: Path) -> str:
    """Return the made blocks of the experiments that have results in a folder, as a page in that folder.

    Raises:
      ConfigError: it has none.
    """
    found = [each for each in EXPERIMENTS.values() if rows(each, folder)]
    if not found:
        raise ConfigError(f"{folder} has no results; `run --folder={folder}` measures some")
    parts: list[str] = []
    for each in found:
        parts.append(f"## {each.name}")
        if claims := _claims_of([each], folder):
            parts.append(claims)
        parts.append(_experiment(each, folder))
    return "\n\n".join(parts).replace(f"({FOLDER.name}/", "(") + "\n"


def refreshed(text: str, folder: Path = FOLDER) -> str:
    """Return the page's text with its made blocks as the results are.

    Raises:
      KeyError: the page has a block that is not made here.
    """
    return BLOCK.sub(lambda block: f"{block[1]}{made(block[2], folder)}\n{block[3]}", text)


def made(name: str, folder: Path = FOLDER) -> str:
    """Return one block: `claims_PAPER`, `lengths`, or an experiment's own."""
    if name == "lengths":
        return lengths.table(folder)
    if name.startswith("claims_"):
        paper = PAPERS[name.removeprefix("claims_")]
        return _claims_of([each for each in EXPERIMENTS.values() if each.paper == paper], folder)
    return _experiment(EXPERIMENTS[name], folder)


def plots(folder: Path = FOLDER) -> dict[str, str]:
    """Return the SVGs of the experiments that are measured, by their names."""
    return {
        each.name: each.plot(found)
        for each in EXPERIMENTS.values()
        if each.plot is not None and (found := told(each, folder))
    }


def _claims_of(experiments: Iterable[Experiment], folder: Path) -> str:
    lines = [
        (claim.text, claim.published, claim.ours, claim.verdict, claim.conditions, f"`{each.name}`")
        for each in experiments
        for claim in each.claims(told(each, folder))
    ]
    return markdown(HEAD, lines) if lines else ""


def _experiment(experiment: Experiment, folder: Path) -> str:
    found = told(experiment, folder)
    done = f"{len(rows(experiment, folder))} of {len(experiment.cells)} cells"
    if not found:
        reason = textwrap.fill(experiment.reason, WIDTH)
        return f"{reason}\n\n{NOT_RUN[0].upper()}{NOT_RUN[1:]}: {done} are measured."
    # A page has dozens of experiments: what measures each is said once, and its results are linked behind its reason.
    results = f"[`{experiment.name}`](reproduction/{experiment.name}.csv), {done}."
    parts = [textwrap.fill(f"{experiment.reason} {results}", WIDTH)]
    if experiment.plot is not None:
        parts.append(f"![{experiment.name}](reproduction/{experiment.name}.svg)")
    if len(rows(experiment, folder)) < len(experiment.cells):
        parts.append(
            f"{len(whole_seeds(experiment, folder))} of {len(experiment.seeds)} seeds are measured whole; what stands "
            "here is of those alone."
        )
    return "\n\n".join([*parts, experiment.table(found)])
