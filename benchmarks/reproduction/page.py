"""Writes the made parts of `docs/reproduction.md` and its plots from the results; a test holds both against them.

The page is written by hand, but for the blocks between `<!-- made: NAME -->` and `<!-- end -->`. It has each claim in
short; an experiment's table in full is what `show` prints. Results in another folder leave the page alone: they get a
page of their own, of claims and tables in full.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from benchmarks.protocol_page import BLOCK, DOCS
from benchmarks.reproduction import lengths
from benchmarks.reproduction.definition import NOT_RUN, Claim, Experiment
from benchmarks.reproduction.experiments import EXPERIMENTS, grid
from benchmarks.reproduction.record import FOLDER, rows, told, whole_seeds
from benchmarks.reproduction.reporting import markdown
from hybridsync.core.errors import ConfigError

PAGE = DOCS / "reproduction.md"
PAPERS = {"syncswitch": "Sync-Switch", "hsp": "HSP", "ripples": "Ripples", "psplus": "PS+"}
WIDTH = 120
HEAD = ("claim", "paper", "", "here", "measured on", "results")
MANY_JOBS = 8
"""So many measurements of one claim are told in a table by jobs."""


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


def blocks(folder: Path, experiments: Iterable[Experiment] = tuple(EXPERIMENTS.values())) -> str:
    """Return claims and tables in full of the experiments that have results in a folder, as a page in that folder.

    Raises:
      ConfigError: none of them has results there.
    """
    found = [each for each in experiments if rows(each, folder)]
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
    """Return one block: `verdicts`, `claims_PAPER`, `lengths`, `grid_at_one_link`, or an experiment in full."""
    if name == "verdicts":
        return _verdicts(folder)
    if name == "lengths":
        return lengths.table(folder)
    if name == "grid_at_one_link":
        return grid.table_at_one_link(told(grid.EXPERIMENT, folder))
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


def _verdicts(folder: Path) -> str:
    """Return how many measurements of each paper's claims have each verdict."""
    verdicts = Counter(
        (each.paper, claim.verdict) for each in EXPERIMENTS.values() for claim in each.claims(told(each, folder))
    )
    names = list(dict.fromkeys(verdict for _, verdict in verdicts))
    lines = [(paper, *(str(verdicts[paper, name]) for name in names)) for paper in PAPERS.values()]
    return markdown(("paper", *names), lines)


def _claims_of(experiments: Iterable[Experiment], folder: Path) -> str:
    """Return a row for each measurement of a claim, and a table by jobs of the claims that many jobs measure."""
    claims: dict[tuple[str, str], list[tuple[Claim, Experiment]]] = {}
    for each in experiments:
        for claim in each.claims(told(each, folder)):
            claims.setdefault((claim.text, claim.published), []).append((claim, each))
    by_job = {title: measured for title, measured in claims.items() if len(measured) >= MANY_JOBS}
    tables = [_by_job(by_job)] if by_job else []
    lines: list[tuple[str, ...]] = []
    for title, measured in claims.items():
        if title not in by_job:
            rest = [(claim.verdict, claim.ours, _conditions(claim), _results(each)) for claim, each in measured]
            lines += [(*title, *rest[0]), *(("", "", *row) for row in rest[1:])]
    return "\n\n".join([*tables, markdown(HEAD, lines)] if lines else tables)


def _by_job(claims: dict[tuple[str, str], list[tuple[Claim, Experiment]]]) -> str:
    """Return a table with a row for each job and a column for each claim."""
    jobs: dict[tuple[str, str], dict[str, str]] = {}
    for (text, _), measured in claims.items():
        for claim, each in measured:
            row = jobs.setdefault((_conditions(claim), _results(each)), {})
            row[text] = f"{claim.verdict}: {claim.ours}"
    head = ("measured on", *(f"{text}; paper: {published}" for text, published in claims), "results")
    lines = [(job, *(row.get(text, "") for text, _ in claims), results) for (job, results), row in jobs.items()]
    return markdown(head, lines)


def _conditions(claim: Claim) -> str:
    found = f"{claim.case}: {claim.conditions}" if claim.case else claim.conditions
    return f"{found[0].upper()}{found[1:]}"


def _results(experiment: Experiment) -> str:
    """Return links to an experiment's results and to its plot."""
    table = f"[`{experiment.name}`]({FOLDER.name}/{experiment.name}.csv)"
    return table if experiment.plot is None else f"{table}, [plot]({FOLDER.name}/{experiment.name}.svg)"


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _experiment(experiment: Experiment, folder: Path) -> str:
    found = told(experiment, folder)
    done = f"{len(rows(experiment, folder))} of {len(experiment.cells)} cells"
    if not found:
        return f"{_filled(experiment.reason)}\n\n{NOT_RUN[0].upper()}{NOT_RUN[1:]}: {done} are measured."
    parts = [_filled(f"{experiment.reason} {_results(experiment)}: {done}.")]
    if len(rows(experiment, folder)) < len(experiment.cells):
        parts.append(
            f"{len(whole_seeds(experiment, folder))} of {len(experiment.seeds)} seeds are measured whole; what stands "
            "here is of those alone."
        )
    return "\n\n".join([*parts, experiment.table(found)])
