"""Real against simulated on emulated links, servers and rings alike: `python -m benchmarks.emulated_links`.

Each case is a whole `hybridsync train` job of digits on processes, whose accelerators and links are emulated, and a
simulation of the same configuration on a cluster that is the same for all of them: nothing is fitted to the cases. The
links are so slow that transfers take tens of milliseconds. What is compared is the rate between the first and the last
quarter of the updates. Rings (`bsp`, `preduce`, `adpsgd`) go over each member's own link, the others through the
server's shared port. The last line is JSON.

Two things that the emulated times leave out decide how close the two come. A call takes the machine a while, and HSP's
grants are calls: without it `hsp` was simulated 11 % too fast. And devices that take exactly as long as each
other stay in step, so that `asp` has all its transfers at the port at once: 30 units a second, against 34 to 47 by seed
with spreads of .5 to 10 %. Other work on the cores decides how much emulated devices vary: .1 to .2 % where they
have nothing else to do, .7 % on a busy machine. So the simulated devices have the spread that `hybridsync simulate
--calibrate` finds in the real run of the case, and the simulated rate is a mean of seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.jobs import DIGITS, Row, load, report, train
from hybridsync.config import apply_overrides, load_config
from hybridsync.lab.report.stalls import UPDATES
from hybridsync.lab.simulator.calibration import fit, read_measured
from hybridsync.lab.simulator.cluster import Cluster, Costs, Device, Link, Scenario
from hybridsync.lab.simulator.simulation import simulate, sizes_of
from hybridsync.protocols import parse
from hybridsync.telemetry.events import read_events
from hybridsync.telemetry.timeline import TIMELINE_FILE
from hybridsync.training.run import Run

CALL = Link(latency_secs=0.55e-3)
"""Half of what a message on an open stream and its answer take."""
COSTS = Costs(call_secs=0.85e-3)
"""A unary call of the chief takes twice this and the links' latency."""
SEEDS = range(5)
MOST = 0.1
"""Share by which a simulation may miss the real rate."""


@dataclass(frozen=True)
class Case:
    """A run to make both ways.

    Args:
      plan: as in `--plan`.
      links: overrides that emulate links.
      workers: of the run.
    """

    plan: str
    links: tuple[str, ...]
    workers: int = 4

    @property
    def name(self) -> str:
        """For its rows."""
        return f"{self.plan}, {self.workers} workers"


RING = ("emulation.link_bytes_per_sec=1.5e6",)
PORT = ("emulation.port_bytes_per_sec=5e6",)
CASES = (
    Case("bsp", RING),
    Case("preduce", RING, workers=2),
    Case("preduce", RING),
    Case("adpsgd", RING),
    Case("bsp_server", PORT),
    Case("hsp", PORT),
    Case("hsp(stale=1)", PORT),
    Case("asp", PORT),
)


def overrides(case: Case, options: argparse.Namespace) -> list[str]:
    """Return what a case changes of the configuration."""
    return [
        f"plan={case.plan}",
        f"workers={case.workers}",
        f"workload={options.units}",
        f"emulation.compute_secs={options.compute_secs}",
        *case.links,
    ]


def rates(case: Case, folder: Path, options: argparse.Namespace) -> tuple[float, float, float]:
    """Return the units a second of the real run and of its simulation, and the spread of the run's devices."""
    given = overrides(case, options)
    train(folder / "real", *(f"--set={each}" for each in given))
    loaded = load_config(DIGITS)
    config = apply_overrides(loaded.config, given)
    run = Run(config, loaded.module.task(config), loaded.module.optimizer(config), None, Path(DIGITS))
    spread = fit(read_measured(folder / "real"), sizes_of(run)).cluster.devices[0].spread
    cluster = Cluster((Device(options.compute_secs, spread),), server_link=CALL, costs=COSTS)
    for seed in SEEDS:
        simulate(run, Scenario(cluster), seed=seed, workdir=folder / f"simulated{seed}")
    simulated = statistics.fmean(middle_rate(folder / f"simulated{seed}") for seed in SEEDS)
    return middle_rate(folder / "real"), simulated, spread


def middle_rate(workdir: Path) -> float:
    """Return the units a second between the first and the last quarter of the updates of a run of one phase."""
    rows: dict[int, list[float]] = {}
    for span in json.loads((workdir / TIMELINE_FILE).read_bytes())["traceEvents"]:
        if span["ph"] == "X" and (span["name"], span["cat"]) in UPDATES:
            rows.setdefault(span["pid"], []).append((span["ts"] + span["dur"]) / 1e6)
    (entered,) = read_events(workdir, "phase_entered")
    in_groups = parse(entered["protocol"]).mode.has_group_rounds
    ends = sorted(itertools.chain.from_iterable(rows.values()) if in_groups else rows[min(rows)])
    quarter = len(ends) // 4
    units = 1 if in_groups else entered["units_per_update"]
    return units * (len(ends) - 1 - 2 * quarter) / (ends[-1 - quarter] - ends[quarter])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=600)
    parser.add_argument("--compute_secs", type=float, default=0.05)
    parser.add_argument("--only", default="", help="the cases whose plan begins so")
    options = parser.parse_args(arguments)
    rows = []
    for case in (each for each in CASES if each.plan.startswith(options.only)):
        with tempfile.TemporaryDirectory() as folder:
            real, simulated, spread = rates(case, Path(folder), options)
        now = load()
        rows += [
            Row(f"{case.name}: real", real, "units/s", load=now),
            Row(f"{case.name}: simulated", simulated, "units/s", load=now),
            Row(f"{case.name}: spread of the devices", spread, "", load=now),
            Row(f"{case.name}: apart", abs(simulated / real - 1), "", "<=", MOST, now),
        ]
        figures = f"real {real:8.2f}  simulated {simulated:8.2f}  {simulated / real - 1:+.1%}  spread {spread:.2%}"
        print(f"  {case.name:<28} {figures}", flush=True)
    report("Emulated links, real against simulated, processes", rows)


if __name__ == "__main__":
    main()
