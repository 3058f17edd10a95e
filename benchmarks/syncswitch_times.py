"""Times of published runs, predicted: `python -m benchmarks.syncswitch_times --runs=FILE.csv --workers=8`.

`benchmarks/published_runs.py` says what the file looks like; accuracies are not needed here. Two costs of the cluster
model are fitted to the rows of pure BSP and pure ASP alone: the compute time of a unit, and the time of a lock-step
step beside it. Where the table has no times of pure ASP, the smallest share that has some takes its place. With them
the plan `bsp:S%,asp` of every other share up to a half is simulated over the whole workload, without gradients, and its
total time is held against the published mean.

What this tests is the work accounting: that a plan's share is of the units, that one lock-step step is as many units as
there are workers, and that nobody idles or repeats work at the switch. That a step or a unit takes the same time
wherever it stands in a run is what the fit supposes; the published times leave out the gap of the switch itself, so
switches cost next to nothing here. The controller looks around once in a second of virtual time, which changes nothing
but how long the simulation takes.

Source: runs of Li et al., Sync-Switch, ICDCS 2021 (raw results in github.com/cake-lab/Sync-Switch).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from benchmarks.published_runs import LOCK_STEP, Times, read_means, time_of
from benchmarks.virtual import seconds_of
from hybridsync.config import RunConfig
from hybridsync.core.errors import ConfigError, HybridSyncError
from hybridsync.lab.simulator.cluster import Cluster, Costs, Device, Link, Scenario
from hybridsync.lab.tuning.search_rules import percent, plan_of

WORKLOAD = 64_000
UNIT_SIZE = 128
FIT_STEPS = 200
"""Lock-step steps, or units of each worker, in the runs that the model is fitted with."""
LARGEST = Fraction(1, 2)


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
    cluster, least = fitted_to(published, workers, workload)
    shares = [share for share in sorted(published) if least < share <= LARGEST]
    if not shares:
        raise ConfigError(
            f"{path} has times of the BSP shares {[float(share) for share in sorted(published)]}; beside the two that "
            f"the model is fitted to it needs one up to {float(LARGEST)} to predict"
        )
    print(f"{workers} workers, {workload} units; this tests the work accounting, not the speed of anything")
    print(
        f"  fitted to {published[LOCK_STEP]:.1f} s of pure BSP and {published[least]:.1f} s of "
        f"{'pure ASP' if least == 0 else plan_of(least)}: {cluster.devices[0].secs:.4f} s a unit, "
        f"{cluster.costs.step_secs:.4f} s a lock-step step beside it"
    )
    print(f"  {'plan':<16} {'published':>12} {'predicted':>12} {'error':>8}")
    found: dict[str, dict[str, float]] = {}
    for share in shares:
        plan, seconds = plan_of(share), published[share]
        predicted = simulated(cluster, plan, workers, workload)
        found[f"{float(share):g}"] = {"published": round(seconds, 3), "predicted": round(predicted, 3)}
        print(f"  {plan:<16} {seconds:>10.1f} s {predicted:>10.1f} s {predicted / seconds - 1:>+8.2%}")
    worst = max(abs(row["predicted"] / row["published"] - 1) for row in found.values())
    print(f"  worst error {worst:.2%}")
    print(json.dumps({"shares": found, "worst_error": round(worst, 6)}))
    return found


def fitted_to(times: Times, workers: int, workload: int) -> tuple[Cluster, Fraction]:
    """Return the cluster that takes the published times of pure BSP and of the smallest share, and that share.

    Args:
      times: of each share.
      workers: of the published runs.
      workload: units of each of them.

    Raises:
      ConfigError: there are no times of pure BSP, or of no share beside it, or they fit no cluster.
    """
    if workers < 1 or workload < workers:
        raise ConfigError(f"--workers={workers} and --workload={workload} make no step; give a unit a worker at least")
    least = min(times, default=LOCK_STEP)
    if LOCK_STEP not in times or least > LARGEST:
        raise ConfigError(
            f"the table has times of the BSP shares {[float(share) for share in sorted(times)]}; the fit needs those "
            f"of 1, and of 0 or another share up to {float(LARGEST)}"
        )
    bsp = times[LOCK_STEP]
    asp = time_of({least: times[least], LOCK_STEP: bsp}, Fraction(0))
    if asp <= 0:
        raise ConfigError(
            f"a run of {percent(least)} of BSP takes {times[least]:g} s and one of pure BSP {bsp:g} s, which leaves "
            "asynchrony no time; correct the table"
        )
    return fitted(bsp / workload * workers, asp / workload * workers, workers), least


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
