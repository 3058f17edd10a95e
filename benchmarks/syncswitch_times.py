"""Times of published runs, predicted: `python -m benchmarks.syncswitch_times --runs=FILE.csv --workers=8`.

The file has one run a row, with the columns `bsp_share`, `seconds_without_switch_gap` and `excluded_by_authors`; rows
with a 1 in the last one are left out, as the published means leave them out. Two costs of the cluster model are fitted
to the rows of pure BSP and pure ASP alone: the compute time of a unit, and the time of a lock-step step beside it. With
them the plan `bsp:S%,asp` of every other share up to a half is simulated over the whole workload, without gradients,
and its total time is held against the published mean.

What this tests is the work accounting: that a plan's share is of the units, that one lock-step step is as many units as
there are workers, and that nobody idles or repeats work at the switch. That a step or a unit takes the same time
wherever it stands in a run is what the fit supposes; the published times leave out the gap of the switch itself, so
switches cost next to nothing here. The controller looks around once in a second of virtual time, which changes nothing
but how long the simulation takes.

Source: runs of Li et al., Sync-Switch, ICDCS 2021 (raw results in github.com/cake-lab/Sync-Switch).
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from fractions import Fraction
from math import fsum
from pathlib import Path

from benchmarks.virtual import seconds_of
from hybridsync.config import RunConfig
from hybridsync.core.errors import ConfigError, HybridSyncError
from hybridsync.simulator.cluster import Cluster, Costs, Device, Link, Scenario

WORKLOAD = 64_000
UNIT_SIZE = 128
FIT_STEPS = 200
"""Lock-step steps, or units of each worker, in the runs that the model is fitted with."""
LARGEST = Fraction(1, 2)
COLUMNS = ("bsp_share", "seconds_without_switch_gap", "excluded_by_authors")


def main(arguments: Sequence[str]) -> int:
    """Fit, predict, and print; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="table of published runs")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--workload", type=int, default=WORKLOAD, help="units of every run in the table")
    options = parser.parse_args(arguments)
    try:
        predict(options.runs, options.workers, options.workload)
    except HybridSyncError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def predict(path: Path, workers: int, workload: int) -> dict[str, dict[str, float]]:
    """Print the table and its JSON form; returns the latter's shares."""
    published = read_means(path)
    bsp, asp = published.pop(Fraction(1)), published.pop(Fraction(0))
    cluster = fitted(bsp / workload * workers, asp / workload * workers, workers)
    print(f"{workers} workers, {workload} units; this tests the work accounting, not the speed of anything")
    print(
        f"  fitted to {bsp:.1f} s of pure BSP and {asp:.1f} s of pure ASP: {cluster.devices[0].secs:.4f} s a unit, "
        f"{cluster.costs.step_secs:.4f} s a lock-step step beside it"
    )
    print(f"  {'plan':<16} {'published':>12} {'predicted':>12} {'error':>8}")
    shares: dict[str, dict[str, float]] = {}
    for share, seconds in sorted(published.items()):
        if share > LARGEST:
            continue
        plan = f"bsp:{float(share * 100):.12g}%,asp"
        predicted = simulated(cluster, plan, workers, workload)
        shares[f"{float(share):g}"] = {"published": round(seconds, 3), "predicted": round(predicted, 3)}
        print(f"  {plan:<16} {seconds:>10.1f} s {predicted:>10.1f} s {predicted / seconds - 1:>+8.2%}")
    worst = max(abs(row["predicted"] / row["published"] - 1) for row in shares.values())
    print(f"  worst error {worst:.2%}")
    print(json.dumps({"shares": shares, "worst_error": round(worst, 6)}))
    return shares


def read_means(path: Path) -> dict[Fraction, float]:
    """Return the mean seconds of each BSP share, without the rows that the authors left out.

    Raises:
      ConfigError: there is no such file, it is not such a table, or it lacks pure BSP, pure ASP or all other shares.
    """
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise ConfigError(f"the table of runs {path} cannot be read: {error.strerror}; name it with --runs") from error
    seconds: dict[Fraction, list[float]] = {}
    for number, row in enumerate(rows, 2):
        try:
            share, secs, excluded = (row[column] for column in COLUMNS)
            if int(excluded):
                continue
            seconds.setdefault(Fraction(share), []).append(float(secs))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"line {number} of {path} does not give {', '.join(COLUMNS)}: {error!r}; correct it"
            ) from error
    means = {share: fsum(some) / len(some) for share, some in seconds.items()}
    if Fraction(0) not in means or Fraction(1) not in means or not any(0 < share <= LARGEST for share in means):
        raise ConfigError(
            f"{path} has the BSP shares {[float(share) for share in sorted(means)]}; it needs 0 and 1 to fit the "
            f"model to, and one up to {float(LARGEST)} to predict"
        )
    return means


def fitted(step_secs: float, unit_secs: float, workers: int) -> Cluster:
    """Return a cluster whose lock-step step, and whose worker's asynchronous unit, take so long.

    What the model adds to a unit and a step (calls, updates, the server's port) is found by simulation and taken off.

    Raises:
      ConfigError: a step is faster than a unit.
    """
    if step_secs <= unit_secs:
        raise ConfigError(
            f"a lock-step step takes {step_secs:.4f} s and a worker's asynchronous unit {unit_secs:.4f} s; the model "
            "has no step that is faster than its units"
        )
    secs, beside = unit_secs, step_secs - unit_secs
    units = FIT_STEPS * workers
    for _ in range(2):
        cluster = free_switches(Device(secs), beside)
        secs += unit_secs - simulated(cluster, "asp", workers, units) / FIT_STEPS
        cluster = free_switches(Device(secs), beside)
        beside += step_secs - simulated(cluster, "bsp", workers, units) / FIT_STEPS
    return free_switches(Device(secs), beside)


def free_switches(device: Device, step_secs: float) -> Cluster:
    """Return a cluster in which a switch costs next to nothing."""
    costs = Costs(step_secs=step_secs, call_secs=0.0, capture_secs=0.0, reserve_secs=0.0, commit_secs=0.0)
    link = Link(latency_secs=0.0)
    return Cluster((device,), worker_link=link, server_link=link, costs=costs)


def simulated(cluster: Cluster, plan: str, workers: int, workload: int) -> float:
    """Return the seconds of a run of the plan."""
    config = RunConfig(workload=workload, unit_size=UNIT_SIZE, workers=workers, plan=plan)
    return seconds_of(config, Scenario(cluster=cluster))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
