"""Results of experiments as CSV files, a row a cell: read, written, and held against the definitions."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.jobs import ROOT
from benchmarks.reproduction.definition import Cell, Experiment, Row, Value
from hybridsync.core.errors import ConfigError
from hybridsync.storage.durable import write_durable

FOLDER = ROOT / "docs" / "reproduction"
DIGEST = "digest"


def path_of(experiment: Experiment, folder: Path = FOLDER) -> Path:
    """Return where an experiment's results are kept."""
    return folder / f"{experiment.name}.csv"


def read(experiment: Experiment, folder: Path = FOLDER) -> dict[str, Row]:
    """Return the rows whose cells are defined as they were when they were measured, by their digest.

    Raises:
      ConfigError: the file is no table of results.
    """
    path = path_of(experiment, folder)
    if not path.exists():
        return {}
    known = {cell.digest for cell in experiment.cells}
    found = {}
    for number, line in enumerate(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))), 2):
        digest = line.pop(DIGEST, None)
        if digest is None:
            raise ConfigError(f"line {number} of {path} has no column {DIGEST!r}; restore the file, or remove it")
        if digest in known:
            found[digest] = {name: _value(text) for name, text in line.items()}
    return found


def rows(experiment: Experiment, folder: Path = FOLDER) -> list[Row]:
    """Return the results in the order of the cells, as far as they are there."""
    found = read(experiment, folder)
    return [found[cell.digest] for cell in experiment.cells if cell.digest in found]


def missing(experiment: Experiment, folder: Path = FOLDER) -> list[Cell]:
    """Return the cells that are still to be measured."""
    found = read(experiment, folder)
    return [cell for cell in experiment.cells if cell.digest not in found]


def add(experiment: Experiment, cell: Cell, result: Row, folder: Path = FOLDER) -> None:
    """Write a cell's result beside the others; rows of cells that are defined no more go."""
    write(experiment, read(experiment, folder) | {cell.digest: {**cell.key, **result}}, folder)


def write(experiment: Experiment, found: Mapping[str, Row], folder: Path = FOLDER) -> None:
    """Write the results, by the digests of their cells."""
    ordered = [{DIGEST: each.digest, **found[each.digest]} for each in experiment.cells if each.digest in found]
    columns = list(dict.fromkeys(name for row in ordered for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, [*columns[1:], DIGEST], lineterminator="\n")
    writer.writeheader()
    writer.writerows(ordered)
    folder.mkdir(parents=True, exist_ok=True)
    write_durable(path_of(experiment, folder), text.getvalue())


def complete(experiment: Experiment, folder: Path = FOLDER) -> Sequence[Row]:
    """Return all results, or none where a cell was not measured: no claim rests on half of an experiment."""
    found = rows(experiment, folder)
    return found if len(found) == len(experiment.cells) else []


def whole_seeds(experiment: Experiment, folder: Path = FOLDER) -> list[Value]:
    """Return the seeds of which every cell is measured."""
    open_seeds = {cell.key.get("seed") for cell in missing(experiment, folder)}
    return [seed for seed in experiment.seeds if seed not in open_seeds]


def told(experiment: Experiment, folder: Path = FOLDER) -> Sequence[Row]:
    """Return the results that the page speaks of: all or none, or by seeds those of the seeds that are whole."""
    if not experiment.by_seed:
        return complete(experiment, folder)
    whole = whole_seeds(experiment, folder)
    return [row for row in rows(experiment, folder) if row["seed"] in whole]


def _value(text: str) -> Value:
    if text == "":
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if text.lstrip("-").isdecimal() else number
