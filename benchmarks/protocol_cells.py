"""What protocols gain and lose in real runs, beside the same runs simulated: `python -m benchmarks.protocol_cells`.

Each cell is a `hybridsync train` job of 8 worker processes with emulated accelerators of 200 ms a unit and 2 MB of
parameters, so that the processors stay idle and the loopback far from full, on emulated links where the cell says so:

    link    a link for each worker, on which a push and a pull together take as long as the computation of a unit
    duplex  the same, on which a push takes as long as the computation of a unit, and a pull as long in its direction
    port    one server port for all, on which the pushes of all workers together take as long as the computation
    free    neither
    slow    neither; worker 7 takes 5 times as long for a unit
    even    neither; for protocols that do without the server

`measure` gives units a second between 30 and 95 % of the workload, staleness, the shares of the processors and of the
loopback, where a cell asks for it the seconds to a fixed training loss, and the same of the cell's simulated twin: its
configuration, links included, with the costs of a loopback. The claims of the papers are ratios of two cells. Names
choose cells; all of them take about a quarter of an hour. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.jobs import Row, load, report, train
from benchmarks.meter import Meter, loopback_capacity
from hybridsync import protocols
from hybridsync.config import RunConfig, apply_overrides, load_config
from hybridsync.lab.report.stalls import UPDATES
from hybridsync.lab.simulator.cluster import Cluster, Costs, Device, Link, Scenario
from hybridsync.lab.simulator.simulation import simulate
from hybridsync.storage.jsonl import read_lines
from hybridsync.telemetry.events import read_events
from hybridsync.telemetry.metrics import METRICS_FILE
from hybridsync.telemetry.summary import read_summary
from hybridsync.telemetry.timeline import TIMELINE_FILE
from hybridsync.training.run import Run

CONFIG = "configs/synthetic.py"
WORKERS = 8
COMPUTE_SECS = 0.2
PUSH_BYTES, PULL_BYTES = 1_973_312, 1_973_184
"""Of a contribution, and of the parameters, of the configuration with BASE."""
BASE = (
    f"workers={WORKERS}",
    "unit_size=8",
    "model.hidden=160",
    "optimizer.learning_rate=0.0001",
    f"emulation.compute_secs={COMPUTE_SECS}",
    "checkpoint.secs=1000",
)
LINK = (PUSH_BYTES + PULL_BYTES) / COMPUTE_SECS
DUPLEX = PUSH_BYTES / COMPUTE_SECS
PORT = WORKERS * PUSH_BYTES / COMPUTE_SECS
SLOW = f"worker={WORKERS - 1},delay_ms={4 * COMPUTE_SECS * 1000:g}"
LOSS = 0.3

LOOPBACK = Scenario(
    Cluster(
        (Device(COMPUTE_SECS, spread=0.0074),),
        worker_link=Link(5e-4, 1e9),
        server_link=Link(5e-4, 1e9),
        costs=Costs(apply_secs=2e-3, step_secs=2e-2),
    )
)
"""About what gRPC and gloo take among processes of one machine: 2 ms a call, 20 ms for a collective of 2 MB.

The spread is that of emulated devices. Without any, workers stay in step: all transfers of `asp` then meet at a shared
port, where it was simulated 19 % too slow, and with the spread 4 %.
"""

STEADY = 0.3, 0.95
MOST_CPU, MOST_LOOPBACK, MOST_ERROR = 0.6, 0.25, 0.1


@dataclass(frozen=True)
class Cell:
    """A run to make, for real and simulated.

    Args:
      name: of the cell.
      plan: as `--plan`; one protocol.
      units: workload.
      link, port: emulated bytes a second; None is the machine's own.
      stragglers: as `--stragglers`.
      loss: training loss whose time is asked for; None asks for none.
    """

    name: str
    plan: str
    units: int = 480
    link: float | None = None
    port: float | None = None
    stragglers: str = ""
    loss: float | None = None

    @property
    def overrides(self) -> list[str]:
        """What the cell sets in the configuration."""
        links = {"link": self.link, "port": self.port}
        emulated = [f"emulation.{name}_bytes_per_sec={rate}" for name, rate in links.items() if rate is not None]
        own = f"plan={self.plan}", f"workload={self.units}", f"emulation.stragglers={self.stragglers}"
        return [*BASE, *own, *emulated]

    @property
    def staleness_bound(self) -> int | None:
        """The most that the protocol allows; None without a bound."""
        return protocols.parse(self.plan).staleness_bound(WORKERS)


CELLS: Mapping[str, Cell] = {
    cell.name: cell
    for cell in (
        Cell("link_psplus", "psplus", link=LINK),
        Cell("link_asp", "asp", link=LINK),
        Cell("link_bsp_server", "bsp_server", link=LINK),
        Cell("duplex_psplus", "psplus", link=DUPLEX),
        Cell("duplex_blocking", "psplus(overlap=false)", 240, link=DUPLEX),
        Cell("port_hsp", "hsp(stale=1)", port=PORT, loss=LOSS),
        Cell("port_hsp_fresh", "hsp", port=PORT, loss=LOSS),
        Cell("port_bsp_server", "bsp_server", port=PORT, loss=LOSS),
        Cell("port_asp", "asp", port=PORT, loss=LOSS),
        Cell("free_hsp", "hsp(stale=1)", loss=LOSS),
        Cell("free_bsp_server", "bsp_server", loss=LOSS),
        Cell("slow_preduce", "preduce", 800, stragglers=SLOW),
        Cell("slow_bsp", "bsp", 240, stragglers=SLOW),
        Cell("slow_backup", "backup", stragglers=SLOW),
        Cell("slow_ssp", "ssp", 240, stragglers=SLOW),
        Cell("slow_asp", "asp", stragglers=SLOW),
        Cell("even_preduce", "preduce", 800),
        Cell("even_bsp", "bsp"),
    )
}


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Args:
      units_per_sec: in its steady part.
      staleness_mean, staleness_max: of its updates.
      secs: from the first unit leased to the end.
      loss_secs: from the phase's entry to the cell's loss; None where none was asked for, or it was not reached.
      cpu_share: of all cores, in its steady part; None where it was simulated.
      loopback_share: of what one bare stream over the loopback carries before the run, in its steady part; likewise.
    """

    units_per_sec: float
    staleness_mean: float
    staleness_max: int
    secs: float
    loss_secs: float | None = None
    cpu_share: float | None = None
    loopback_share: float | None = None

    @property
    def secs_per_unit(self) -> float:
        """How long a worker takes for a unit, when each does its share."""
        return WORKERS / self.units_per_sec


@dataclass(frozen=True)
class CellResult:
    """A cell's real run and its twin.

    Args:
      cell: which one.
      real, simulated: what they came to.
      load: the machine's load average behind the real run.
    """

    cell: Cell
    real: Outcome
    simulated: Outcome
    load: float

    @property
    def ratio(self) -> float:
        """The real throughput over the simulated one."""
        return self.real.units_per_sec / self.simulated.units_per_sec

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        return {
            **asdict(self.cell),
            "staleness_bound": self.cell.staleness_bound,
            "real": asdict(self.real),
            "simulated": asdict(self.simulated),
            "ratio": self.ratio,
            "load": self.load,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CellResult:
        """Return the result that `to_json` gave.

        Raises:
          KeyError, TypeError: it is none.
        """
        cell = Cell(**{field.name: value[field.name] for field in fields(Cell)})
        return cls(cell, Outcome(**value["real"]), Outcome(**value["simulated"]), value["load"])

    def rows(self) -> list[Row]:
        """Return the cell's own figures beside what each has to keep to."""
        name, bound, real = self.cell.name, self.cell.staleness_bound, self.real
        limit = ("<=", float(bound)) if bound is not None else ("", 0.0)
        rows = [
            Row(f"{name}: real", real.units_per_sec, "units/s", load=self.load),
            Row(f"{name}: simulated", self.simulated.units_per_sec, "units/s"),
            Row(f"{name}: error of the simulation", abs(self.ratio - 1), "", "<=", MOST_ERROR, self.load),
            Row(f"{name}: staleness, mean", real.staleness_mean, "updates"),
            Row(f"{name}: staleness, max", real.staleness_max, "updates", *limit),
            Row(f"{name}: staleness, max, simulated", self.simulated.staleness_max, "updates", *limit),
        ]
        if real.cpu_share is not None:
            rows.append(Row(f"{name}: processors", real.cpu_share, "of all", "<=", MOST_CPU, self.load))
        if real.loopback_share is not None:
            rows.append(Row(f"{name}: loopback", real.loopback_share, "of one stream", "<=", MOST_LOOPBACK, self.load))
        for kind, outcome in (("real", real), ("simulated", self.simulated)):
            if outcome.loss_secs is not None:
                rows.append(Row(f"{name}: to a loss of {self.cell.loss:g}, {kind}", outcome.loss_secs, "s"))
        return rows


@dataclass(frozen=True)
class Claim:
    """A figure of one cell over another's, as a paper claims it.

    Args:
      about: what is claimed.
      above, below: cells; the figure of the first is divided by that of the second.
      figure: attribute of `Outcome`.
      bound, target: what the ratio has to keep to.
    """

    about: str
    above: str
    below: str
    figure: str
    bound: str
    target: float

    def rows(self, results: Mapping[str, CellResult]) -> list[Row]:
        """Return the ratio of the real runs, and of their twins; nothing where a cell or its figure is missing."""
        if not {self.above, self.below} <= results.keys():
            return []
        rows = []
        above, below = results[self.above], results[self.below]
        for kind, a, b in (("real", above.real, below.real), ("simulated", above.simulated, below.simulated)):
            figures = getattr(a, self.figure), getattr(b, self.figure)
            if None not in figures:
                rows.append(Row(f"{self.about}, {kind}", figures[0] / figures[1], "", self.bound, self.target))
        return rows


CLAIMS = (
    Claim("PS+: time a unit over ASP's, link", "link_psplus", "link_asp", "secs_per_unit", "<=", 0.56),
    Claim("PS+: rate over bsp_server's, link", "link_psplus", "link_bsp_server", "units_per_sec", ">=", 1.8),
    Claim("PS+: time a unit over its twin's, duplex", "duplex_psplus", "duplex_blocking", "secs_per_unit", "<=", 0.40),
    Claim("bsp_server: time to loss over hsp(stale=1)'s, port", "port_bsp_server", "port_hsp", "loss_secs", ">=", 1.3),
    Claim("hsp(stale=1): rate over bsp_server's, port", "port_hsp", "port_bsp_server", "units_per_sec", ">=", 1.3),
    Claim("hsp: rate over its, port", "port_hsp_fresh", "port_bsp_server", "units_per_sec", ">=", 1.3),
    Claim("asp: time to loss over hsp(stale=1)'s, port", "port_asp", "port_hsp", "loss_secs", "", 0.0),
    Claim("hsp(stale=1): rate over bsp_server's, free", "free_hsp", "free_bsp_server", "units_per_sec", ">=", 0.95),
    Claim("preduce: rate over bsp's, slow", "slow_preduce", "slow_bsp", "units_per_sec", ">=", 2.0),
    Claim("preduce: rate over bsp's, even", "even_preduce", "even_bsp", "units_per_sec", ">=", 0.9),
    Claim("backup: rate over bsp's, slow", "slow_backup", "slow_bsp", "units_per_sec", "", 0.0),
    Claim("ssp: rate over asp's, slow", "slow_ssp", "slow_asp", "units_per_sec", "", 0.0),
)


def measure(cell: Cell) -> CellResult:
    """Make the cell's real run and its simulated one.

    Raises:
      RuntimeError: the job did not complete, or was too short to be measured.
      HybridSyncError: it cannot be simulated.
    """
    with tempfile.TemporaryDirectory() as folder:
        workdir, twin = Path(folder) / "real", Path(folder) / "simulated"
        capacity = loopback_capacity()
        with Meter() as meter:
            train(workdir, *(f"--set={override}" for override in cell.overrides), config=CONFIG)
        busy = load()
        began, ended, _ = steady_part(workdir)
        started = read_events(workdir, "training_started")[0]
        wall = started["wall"] - started["t"]
        steady_walls = wall + began, wall + ended
        real = replace(
            outcome(cell, workdir),
            cpu_share=meter.cpu_share(*steady_walls),
            loopback_share=meter.loopback_bytes_per_sec(*steady_walls) / capacity,
        )
        simulate(run_of(cell), LOOPBACK, gradients="none" if cell.loss is None else "real", workdir=twin)
        return CellResult(cell, real, outcome(cell, twin), busy)


def run_of(cell: Cell) -> Run:
    """Return the run of a cell, to simulate."""
    loaded = load_config(CONFIG)
    config: RunConfig = apply_overrides(loaded.config, cell.overrides)
    return Run(config, loaded.module.task(config), loaded.module.optimizer(config), None, Path(CONFIG))


def outcome(cell: Cell, workdir: Path) -> Outcome:
    """Return what a finished run came to, by what it left."""
    summary = read_summary(workdir)
    assert summary is not None, f"{workdir} has no summary"
    began, ended, units = steady_part(workdir)
    return Outcome(
        units_per_sec=units / (ended - began),
        staleness_mean=summary["staleness"]["mean"],
        staleness_max=summary["staleness"]["max"],
        secs=summary["seconds"],
        loss_secs=None if cell.loss is None else loss_secs(workdir, cell.loss),
    )


def steady_part(workdir: Path) -> tuple[float, float, int]:
    """Return when a run of one phase began and ended to be steady, in its own time, and the units in between."""
    spans = json.loads((workdir / TIMELINE_FILE).read_bytes())["traceEvents"]
    found = [span for span in spans if span["ph"] == "X" and (span["name"], span["cat"]) in UPDATES]
    if not any(span["cat"] == "group" for span in found):  # all members, or servers, make the same updates
        first = min(span["pid"] for span in found)
        found = [span for span in found if span["pid"] == first]
    ends = sorted(((span["ts"] + span["dur"]) / 1e6, span["args"]["units"]) for span in found)
    return steady(ends)


def steady(ends: Sequence[tuple[float, int]]) -> tuple[float, float, int]:
    """Return when the updates reached the two shares of all units in STEADY, and the units in between.

    Args:
      ends: when each update ended, ascending, and its units.

    >>> steady([(float(second), 1) for second in range(1, 101)])
    (30.0, 95.0, 65)
    """
    done = list(itertools.accumulate(units for _, units in ends))
    first, last = (next(index for index, units in enumerate(done) if units >= share * done[-1]) for share in STEADY)
    return ends[first][0], ends[last][0], done[last] - done[first]


def loss_secs(workdir: Path, target: float) -> float | None:
    """Return the seconds from the phase's entry until the training loss was at `target`; None where it never was.

    The loss is the mean of three lines of the metrics, and a line between two of those is drawn straight.
    """
    began = read_events(workdir, "phase_entered")[0]["t"]
    lines = [(line["t"], line["loss"]) for line in read_lines(workdir / METRICS_FILE) if line["loss"] is not None]
    return crossing([(t - began, loss) for t, loss in lines], target)


def crossing(lines: Sequence[tuple[float, float]], target: float) -> float | None:
    """Return when the mean loss of three lines, at the second one's time, first came down to `target`.

    >>> crossing([(0.0, 4.0), (1.0, 4.0), (2.0, 4.0), (3.0, 1.0), (4.0, 1.0)], 2.5)
    2.5
    """
    means = [(b[0], (a[1] + b[1] + c[1]) / 3) for a, b, c in zip(lines, lines[1:], lines[2:], strict=False)]
    for (t, before), (after_t, after) in itertools.pairwise(means):
        if before > target >= after:
            return t + (after_t - t) * (before - target) / (before - after)
    return None


def rows(results: Mapping[str, CellResult]) -> list[Row]:
    """Return the figures of the cells, and then the claims that rest on two of them."""
    told = [row for result in results.values() for row in result.rows()]
    return told + [row for claim in CLAIMS for row in claim.rows(results)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the cells that are named, all of them without a name, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CELLS))
    names = parser.parse_args(arguments).names
    if unknown := sorted(set(names) - CELLS.keys()):
        parser.error(f"no cell is called {unknown[0]!r}; choose of {', '.join(CELLS)}")
    results = {name: measure(CELLS[name]) for name in names or CELLS}
    title = f"Protocols, {WORKERS} worker processes, emulated accelerators of {COMPUTE_SECS * 1000:g} ms a unit"
    report(title, rows(results), cells={name: result.to_json() for name, result in results.items()})


if __name__ == "__main__":
    main()
