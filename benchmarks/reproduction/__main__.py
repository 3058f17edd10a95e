"""Claims of the four papers: `python -m benchmarks.reproduction run [--only=NAME,...]`, `list`, `show`, or `page`.

`run` measures the cells of the experiments that have no result yet, one after another, and keeps each as a row of
`docs/reproduction/NAME.csv` when it is done: the same command goes on where it was broken off. A cell whose definition
has changed is measured again. `list` says what is there, and `show` prints claims and tables in full. `page` writes
the made parts of `docs/reproduction.md` and its plots.

Cells that need CIFAR-10 want `--cifar=FOLDER` with its binary version. Cells on published runs want
`--published=FILE.csv` (see `benchmarks/published_runs.py`). They are left out without it, and so are shares that the
table has no times of. What is there is not measured again: for other published runs give `--folder=NEW`, too. `page`
with that folder writes what was measured to `NEW/reproduction.md`.

Exit codes: 0 everything asked for is there, 1 a cell failed or was left out, or the input was refused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.published_runs import read_runs
from benchmarks.reproduction import page
from benchmarks.reproduction.definition import Cell, Experiment, Given
from benchmarks.reproduction.experiments import EXPERIMENTS
from benchmarks.reproduction.record import FOLDER, add, missing, path_of
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import ConfigError, HybridSyncError


def main(arguments: Sequence[str]) -> int:
    """Carry out what is asked for, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "list", "show", "page"))
    parser.add_argument("--only", default="", help="experiments, separated by commas; all of them without it")
    parser.add_argument("--most", type=int, default=0, help="cells to measure at most; 0 for all")
    parser.add_argument("--cifar", type=Path, help="folder of CIFAR-10's binary version")
    parser.add_argument("--published", type=Path, help="table of Sync-Switch's published runs")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the results")
    options = parser.parse_args(arguments)
    try:
        chosen = _chosen(options.only)
        if options.what == "page":
            print(page.write(options.folder))
            return 0
        if options.what == "show":
            print(page.blocks(options.folder, chosen), end="")
            return 0
        if options.what == "list":
            for experiment in chosen:
                left = len(missing(experiment, options.folder))
                print(f"{experiment.name:<32} {len(experiment.cells) - left:>4} of {len(experiment.cells):>4}")
            return 0
        return run(chosen, Given(options.cifar, options.published, options.folder), options.most)
    except HybridSyncError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _chosen(names: str) -> list[Experiment]:
    asked = names.split(",") if names else list(EXPERIMENTS)
    if unknown := [name for name in asked if name not in EXPERIMENTS]:
        raise ConfigError(f"--only names {unknown[0]!r}, which is no experiment; known: {', '.join(EXPERIMENTS)}")
    return [EXPERIMENTS[name] for name in asked]


def run(experiments: Sequence[Experiment], given: Given, most: int = 0) -> int:
    """Measure what is missing, and return the exit code.

    Args:
      experiments: whose cells.
      given: what is outside the repository.
      most: cells to measure; 0 for all.

    Raises:
      ConfigError: the table of published runs cannot be read.
    """
    if given.published is not None:
        read_runs(given.published)  # so that a table that cannot be read is refused once, not by each cell
    faults, measured, said = 0, 0, set[str]()
    for experiment in experiments:
        cells = missing(experiment, given.folder)
        if not cells:
            where = path_of(experiment, given.folder)
            print(f"{experiment.name}: nothing is missing in {where}; other runs want another folder, --folder=NEW")
        left_out = [(cell, needed) for cell in cells if (needed := cell.measure.needs(given))]
        for needed in dict.fromkeys(needed for _, needed in left_out):
            without = [cell for cell, needs in left_out if needs == needed]
            which = "" if len(without) == len(cells) else f" {'; '.join(map(_named, without))}"
            print(f"{experiment.name}:{which} left out, it needs {needed}")
            faults += 1
        for cell in cells:
            name = f"{experiment.name}: {_named(cell)}"
            if cell.measure.needs(given):
                continue
            if most and measured == most:
                return 1
            measured += 1
            began = SYSTEM_CLOCK.monotonic()
            try:
                result = cell.measure.measure(given)
            except HybridSyncError as error:
                print(f"{name}: FAILED" + (", likewise" if str(error) in said else f": {error}"), flush=True)
                said.add(str(error))
                faults += 1
                continue
            add(experiment, cell, result, given.folder)
            print(f"{name}: {SYSTEM_CLOCK.monotonic() - began:.1f} s", flush=True)
    return 1 if faults else 0


def _named(cell: Cell) -> str:
    return ", ".join(f"{held}" for held in cell.key.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
