"""Every protocol beside every other, simulated with real gradients: `python -m benchmarks.protocols --workdir=DIR`.

13 protocols with their default settings x 4 kinds of stragglers x 4 links x 5 seeds, 8 workers whose units take 50 ms
with a spread of a fifth, on the job that asynchrony hurts (`configs/digits_async_hurts.py`). What stragglers and links
are stands in `benchmarks/grid/cells.py`. Of each run: throughput, the virtual time to a fixed training loss, final
accuracy, and the staleness beside the protocol's bound, which no run may exceed. Beside them stands what each
protocol's paper claims.

Every finished run is a line of DIR/runs.jsonl, so the same command goes on where it was broken off. At the end the
tables are printed, and DIR/protocols.json and DIR/protocols.html are written; `--report-only` does that with what is
there. A run takes about 1.3 s of one core, the whole grid some 25 minutes; `--jobs` shares them among processes.

`--cells=all` makes the runs of real processes too, each beside its simulated twin (`benchmarks/protocol_cells.py`, a
quarter of an hour on a quiet machine); they are kept in DIR/cells.jsonl and told with the rest from then on.

    python -m benchmarks.protocols --workdir=runs/grid --protocols=bsp,preduce --stragglers=uniform,one5x --links=free

Exit codes: 0 all runs are done, 1 one of them failed or exceeded its bound, or the input was refused.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.grid import page as grid_page
from benchmarks.grid.aggregate import LOSS, claims, figures, to_json
from benchmarks.grid.cells import LINKS, PROTOCOLS, SEEDS, STRAGGLERS, WORKERS, Cell, Outcome, grid
from benchmarks.grid.table import NOTE, table
from benchmarks.jobs import ROOT, report
from benchmarks.protocol_cells import CELLS, CellResult, measure
from benchmarks.protocol_cells import rows as cell_rows
from configs import digits_async_hurts as job
from hybridsync.core.errors import ConfigError, HybridSyncError, RoleLost
from hybridsync.storage.durable import make_directory, write_durable
from hybridsync.storage.jsonl import LineFile, encode, read_lines

RECORD, CELLS_RECORD, FIGURES, PAGE = "runs.jsonl", "cells.jsonl", "protocols.json", "protocols.html"
WORKLOAD = job.UNITS_PER_WORKER * WORKERS
PLAIN_WIDTH = 180
"""Columns of the tables where nobody says how wide the terminal is."""


def main(arguments: Sequence[str]) -> int:
    """Carry out what is missing of the grid's part that was asked for, and tell what all runs came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, required=True, help="gets the record, the figures and the page")
    parser.add_argument("--jobs", type=int, default=1, help="processes that simulate")
    parser.add_argument("--protocols", default=",".join(PROTOCOLS))
    parser.add_argument("--stragglers", default=",".join(STRAGGLERS))
    parser.add_argument("--links", default=",".join(LINKS))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--workload", type=int, default=WORKLOAD, help="units of each run")
    parser.add_argument("--loss", type=float, default=LOSS, help="training loss to which times are measured")
    parser.add_argument("--cells", default="none", help="real runs to make: all that are missing, none, or their names")
    parser.add_argument("--report-only", action="store_true", help="simulate nothing, tell what is there")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except HybridSyncError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _run(options: argparse.Namespace) -> int:
    try:
        seeds = [int(seed) for seed in options.seeds.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds must be numbers with commas between them, got {options.seeds!r}") from None
    if options.jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, got {options.jobs}; raise it")
    asked = grid(options.protocols.split(","), options.stragglers.split(","), options.links.split(","), seeds)
    if options.cells not in ("all", "none") and (unknown := [n for n in options.cells.split(",") if n not in CELLS]):
        raise ConfigError(f"--cells names {unknown[0]!r}, which is no cell; give all, none, or of {', '.join(CELLS)}")
    make_directory(options.workdir)
    record = options.workdir / RECORD
    known = read_record(record, options.workload)
    if not options.report_only:
        carry_out(missing(asked, known), record, options.jobs, options.workload)
        known = read_record(record, options.workload)
    outcomes = [known[cell] for cell in asked if cell in known]
    if not options.report_only:
        measure_cells(options.cells, options.workdir / CELLS_RECORD)
    real = read_cells(options.workdir / CELLS_RECORD)
    faults = tell(outcomes, real, options.workdir, options.loss)
    return 1 if faults else 0


def measure_cells(asked: str, path: Path) -> None:
    """Make runs of real processes, and append what each and its simulated twin came to.

    Args:
      asked: names of cells with commas between them, which are measured again, "all" that are not in the record, or
        "none".
      path: of the record.
    """
    names = [] if asked == "none" else asked.split(",")
    if asked == "all":
        names = [name for name in CELLS if name not in read_cells(path)]
    for name in names:
        record = LineFile(path)
        record.append(measure(CELLS[name]).to_json())
        record.close()


def read_cells(path: Path) -> dict[str, CellResult]:
    """Return the real runs that are done, in the order of the cells; of one that was done again, the last.

    Raises:
      ConfigError: a line is no result of a cell.
      WorkdirError: the file is damaged.
    """
    found = {}
    for line in read_lines(path):
        try:
            found[line["name"]] = CellResult.from_json(line)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{path} has a line that is no cell's ({error!r}); name another workdir") from error
    return {name: found[name] for name in CELLS if name in found}


def read_record(path: Path, workload: int) -> dict[Cell, Outcome]:
    """Return the runs that are done; of one that was done again, the last.

    Raises:
      ConfigError: a line is no run of the grid, or of another workload.
      WorkdirError: the file is damaged.
    """
    known = {}
    for line in read_lines(path):
        outcome = Outcome.from_json(line)
        if outcome.workload != workload:
            raise ConfigError(
                f"{path} has runs of {outcome.workload:,} units, but --workload is {workload:,}; name another workdir"
            )
        known[outcome.cell] = outcome
    return known


def missing(asked: Sequence[Cell], known: dict[Cell, Outcome]) -> list[Cell]:
    """Return the cells that are still to be simulated: those that failed once more, too."""
    return [cell for cell in asked if cell not in known or known[cell].fault]


def carry_out(cells: Sequence[Cell], record: Path, jobs: int, workload: int) -> None:
    """Simulate some cells, and append each to the record as it is done.

    Raises:
      RoleLost: a process that simulates ended.
    """
    if not cells:
        return
    idle: queue.SimpleQueue[_Simulator] = queue.SimpleQueue()
    lines = LineFile(record)

    def measure(cell: Cell) -> Outcome:
        simulator = idle.get()
        try:
            return simulator.measure(cell)
        finally:
            idle.put(simulator)

    with ExitStack() as stack:
        stack.callback(lines.close)
        for _ in range(min(jobs, len(cells))):
            simulator = _Simulator(workload)
            stack.callback(simulator.end)
            idle.put(simulator)
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        futures = [pool.submit(measure, cell) for cell in cells]
        for done in _shown((future.result() for future in as_completed(futures)), len(cells)):
            lines.append(done.to_json())


class _Simulator:
    """A process that simulates one cell after another (see `benchmarks.grid.runs`).

    Another takes the place of one that a cell has ended, so that the grid goes on.

    Args:
      workload: units of each run.
    """

    def __init__(self, workload: int) -> None:
        self._workload, self._answered = workload, False
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "benchmarks.grid.runs", str(self._workload)]
        return subprocess.Popen(command, cwd=ROOT, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def measure(self, cell: Cell) -> Outcome:
        """Return what came of a cell.

        Raises:
          RoleLost: the process ended before its first answer.
        """
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None and answers is not None
        try:
            asked.write(json.dumps(asdict(cell)) + "\n")
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        if line:
            self._answered = True
            return Outcome.from_json(json.loads(line))
        said = f"the process that simulated it ended with {self._process.wait()}; see what it printed"
        self.end()
        if not self._answered:
            raise RoleLost(f"{cell}: {said}")
        self._process = self._start()
        return Outcome.failed(cell, self._workload, said)

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def _shown(outcomes: Iterator[Outcome], total: int) -> Iterator[Outcome]:
    """Yield outcomes under a bar that shows how many are there."""
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("runs"), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(TextColumn("{task.description}", markup=False), *columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("simulating", total=total)
        for outcome in outcomes:
            yield outcome
            progress.update(task, description=_named(outcome), advance=1)
            if outcome.fault:
                progress.console.print(f"{_named(outcome)}: {outcome.fault}", markup=False)


def _named(outcome: Outcome) -> str:
    cell = outcome.cell
    return f"{cell.protocol}, {cell.straggler}, link {cell.link}, seed {cell.seed}"


def tell(outcomes: Sequence[Outcome], real: Mapping[str, CellResult], workdir: Path, loss: float) -> list[Outcome]:
    """Print the tables, write figures and page, and return the runs that failed or exceeded their bound."""
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    for block, rows in figures(outcomes, loss).items():
        console.print(table(block, rows))
        console.print()
    console.print(f"{NOTE} Time to the loss: to {loss:g}.", markup=False, highlight=False)
    for row in claims(outcomes, loss):
        met = "met" if row.met else "NOT MET"
        print(f"{row.name}: {row.figure:.3g} {row.unit} ({row.bound} {row.target:g}) {met}")
    if real:
        report(f"{WORKERS} worker processes on emulated accelerators, and their simulated twins", cell_rows(real))
    faults = [outcome for outcome in outcomes if outcome.fault]
    for outcome in faults:
        print(f"FAILED {_named(outcome)}: {outcome.fault}")
    cells = [result.to_json() for result in real.values()]
    write_durable(workdir / FIGURES, encode({**to_json(outcomes, loss), "cells": cells}) + "\n")
    write_durable(workdir / PAGE, grid_page.page(outcomes, loss, real))
    print(f"{len(outcomes)} runs, {len(faults)} failed; written: {workdir / FIGURES}, {workdir / PAGE}")
    return faults


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
