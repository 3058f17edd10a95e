"""Whether a simulator fitted to one real run predicts others: `python -m benchmarks.calibration`.

Three whole `hybridsync train` jobs of digits with 8 worker processes that *emulate* accelerators (--compute_secs; the
gradient is really computed, the rest is slept). The cluster is fitted to the first; of the two others, with another
plan and another straggler each, the total time is predicted from their flags alone. The last line is JSON. The
machine's load goes into every real run: repeat it where nobody else works.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.jobs import DIGITS, Row, load, report, train
from hybridsync.config import apply_overrides, load_config
from hybridsync.lab.simulator.calibration import fit, read_measured
from hybridsync.lab.simulator.cluster import Scenario
from hybridsync.lab.simulator.simulation import simulate, sizes_of
from hybridsync.training.run import Run


@dataclass(frozen=True)
class Job:
    """A run to make.

    Args:
      name: of its row.
      plan, stragglers: as the flags of hybridsync train.
    """

    name: str
    plan: str
    stragglers: str


FITTED = Job("fitted to", "bsp:40%,asp", "worker=1,delay_ms=30")
PREDICTED = (
    Job("asp, worker 5 100 ms slower", "asp", "worker=5,delay_ms=100,from=20%,to=80%"),
    Job("asp:50%,bsp, worker 3 60 ms slower", "asp:50%,bsp", "worker=3,delay_ms=60,from=30%,to=90%"),
)
MOST = 0.1


def overrides(job: Job, options: argparse.Namespace) -> list[str]:
    """Return what a job changes of the configuration."""
    return [
        f"plan={job.plan}",
        f"workers={options.workers}",
        f"workload={options.units}",
        f"emulation.compute_secs={options.compute_secs}",
        f"emulation.stragglers={job.stragglers}",
    ]


def run_of(job: Job, options: argparse.Namespace) -> Run:
    """Return the run of a job, to simulate."""
    loaded = load_config(DIGITS)
    config = apply_overrides(loaded.config, overrides(job, options))
    return Run(config, loaded.module.task(config), loaded.module.optimizer(config), None, Path(DIGITS))


def train_for_real(job: Job, workdir: Path, options: argparse.Namespace) -> float:
    """Make the real run and return its seconds, from the first unit leased."""
    flags = [f"--set={override}" for override in overrides(job, options)]
    return train(workdir, *flags)["seconds"]


def rows_of(job: Job, real_secs: float, scenario: Scenario, options: argparse.Namespace, bound: str) -> list[Row]:
    """Return a job's rows: both times and what the prediction lacks to the real one."""
    predicted = simulate(run_of(job, options), scenario).seconds
    error = abs(predicted - real_secs) / real_secs
    return [
        Row(f"{job.name}: real", real_secs, "s", load=load()),
        Row(f"{job.name}: simulated", predicted, "s"),
        Row(f"{job.name}: error", error, "", bound, MOST if bound else 0.0),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, fit, predict and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--units", type=int, default=2000)
    parser.add_argument("--compute_secs", type=float, default=0.1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "fitted"
        real_secs = train_for_real(FITTED, workdir, options)
        fitted = fit(read_measured(workdir), sizes_of(run_of(FITTED, options)))
        scenario = fitted.onto(Scenario())
        rows = rows_of(FITTED, real_secs, scenario, options, "")
        for number, job in enumerate(PREDICTED):
            real_secs = train_for_real(job, Path(folder) / f"predicted{number}", options)
            rows += rows_of(job, real_secs, scenario, options, "<=")
    values = {value.name: value.secs for value in fitted.values}
    worst = max(row.figure for row in rows if row.bound)
    title = "Calibrated on one real run, predicting two others, processes, emulated compute"
    report(title, rows, fitted=values, worst_error=worst)


if __name__ == "__main__":
    main()
