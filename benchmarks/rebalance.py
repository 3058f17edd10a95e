"""What units in proportion to speed bring, and what the larger batch costs: `python -m benchmarks.rebalance`.

Virtual time, lock-step for the whole run, 8 workers whose units take 50 ms, one of them k times as long all the time.
Rates are units a second over those of plain lock-step of the same workers, with shares that are fixed from the first
step, with those that `rebalance` finds, and under `elastic`; a switch stands still as long as on real processes. The
ideal is that of all of them busy all the time, (n - 1 + 1/k) * k / n. Accuracy is that of the held-out digits behind
the same number of units, with real gradients, for the shares of each k and beside one unit each from the same seeds.

`benchmarks.online_policies` has the same policies with a plan that goes over to asynchrony.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence

from benchmarks.online_policies import COSTS
from benchmarks.virtual import quiet, seconds_of, simulated
from configs import digits_async_hurts, digits_mlp
from hybridsync.config import PolicyConfig, RunConfig
from hybridsync.core.errors import HybridSyncError
from hybridsync.lab.simulator.cluster import Cluster, Device, Scenario, Slow
from hybridsync.lab.simulator.gradients import RealArithmetic, evaluator
from hybridsync.policies.step_shares import shares
from hybridsync.training.run import Run

WORKERS = 8
UNIT_SECS = 0.05
UNITS = 16_000
FACTORS = (1.5, 2.0, 3.0, 5.0, 8.0)
JOBS = {"digits_mlp": digits_mlp, "digits_async_hurts": digits_async_hurts}


def main(arguments: Sequence[str]) -> int:
    """Simulate, and print; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=UNITS, help="of each run for its time")
    parser.add_argument("--factors", type=float, nargs="+", default=FACTORS, help="how many times as long: k")
    parser.add_argument("--most", type=int, nargs="+", default=[4, 8], help="units of a worker in a step")
    parser.add_argument("--seeds", type=int, default=5, help="how many, for accuracy")
    parser.add_argument("--workload", type=int, default=4000, help="units of each run for its accuracy")
    options = parser.parse_args(arguments)
    if min(options.most) < 1:
        parser.error(f"--most must be at least 1, got {min(options.most)}")
    try:
        speeds = [speed(factor, most, options.units) for factor in options.factors for most in options.most]
        steps = sorted({shares_of(factor, most) for factor in options.factors for most in options.most})
        accuracies = [accuracy(name, steps, options.seeds, options.workload) for name in JOBS]
    except HybridSyncError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps({"speeds": speeds, "accuracies": accuracies}))
    return 0


def scenario_of(factor: float) -> Scenario:
    """Return the cluster with one worker that is `factor` times slow."""
    cluster = Cluster(devices=(Device(UNIT_SECS),), costs=COSTS)
    return Scenario(cluster=cluster, slow=(Slow(WORKERS - 1, factor=factor),))


def shares_of(factor: float, most: int) -> tuple[int, ...]:
    """Return what every worker takes of a step, () for one unit each."""
    return shares([1.0] * (WORKERS - 1) + [factor], most, least=1)


def speed(factor: float, most: int, units: int) -> dict[str, object]:
    """Print how much faster shares are than plain lock-step, fixed and found by the policy, and return it."""
    fit, ideal = shares_of(factor, most), (WORKERS - 1 + 1 / factor) * factor / WORKERS
    policies = {
        "plain": PolicyConfig(),
        "fixed": PolicyConfig(shares=fit),
        "rebalance": PolicyConfig(online="rebalance", most_units=most),
        "elastic": PolicyConfig(online="elastic"),
    }
    config = RunConfig(workload=units, workers=WORKERS, plan="bsp")
    secs = {
        name: seconds_of(dataclasses.replace(config, policy=policy), scenario_of(factor))
        for name, policy in policies.items()
    }
    ratios = {name: round(secs["plain"] / each, 3) for name, each in secs.items() if name != "plain"}
    told = ", ".join(f"{name} {ratio:.2f} ({ratio / ideal:.0%})" for name, ratio in ratios.items())
    steps = f"{fit[0] if fit else 1} and {fit[-1] if fit else 1} units, {sum(fit) or WORKERS} a step"
    print(f"k = {factor:<3g} at most {most}, {steps:<28} times plain, ideal {ideal:.2f}: {told}", flush=True)
    return {"k": factor, "most": most, "shares": fit, **ratios, "ideal": round(ideal, 3)}


def accuracy(name: str, steps: Sequence[tuple[int, ...]], seeds: int, workload: int) -> dict[str, object]:
    """Print what each choice of shares comes to on a job, beside one unit each, and return it."""
    job = JOBS[name]
    base = dataclasses.replace(quiet(job.config()), plan="bsp", workers=WORKERS, workload=workload)
    run = Run(base, job.task(base), job.optimizer(base), None)
    arithmetic, evaluate = RealArithmetic(run), evaluator(run)
    found: dict[tuple[int, ...], list[float]] = {}
    for fit in ((), *(step for step in steps if step)):
        for seed in range(seeds):
            config = dataclasses.replace(base, seed=seed, policy=PolicyConfig(shares=fit))
            seeded = dataclasses.replace(run, config=config)
            summary = simulated(seeded, scenario_of(5.0), arithmetic.of_seed(seeded), evaluate)
            found.setdefault(fit, []).append(summary.final["accuracy"])
    print(f"{name}, {workload} units, rate {base.optimizer.learning_rate:g} a unit, accuracy of {seeds} seeds")
    rows = []
    for fit, ours in found.items():
        differences = [our - plain for our, plain in zip(ours, found[()], strict=True)]
        mean = statistics.fmean(differences)
        each = " ".join(f"{value:.3f}" for value in ours)
        units = sum(fit) or WORKERS
        print(f"  {units:>3} units a step: {statistics.fmean(ours):.4f}, {100 * mean:+.2f} points paired   {each}")
        rows.append({"shares": fit, "units": units, "accuracies": ours, "points": round(100 * mean, 3)})
    return {"job": name, "rows": rows}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
