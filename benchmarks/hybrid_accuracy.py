"""Accuracy of lock-step, asynchrony and hybrids: `python -m benchmarks.hybrid_accuracy`.

Trains `configs/digits_async_hurts.py` in virtual time, with real gradients: each on the version of the model that its
worker would have held, on workers whose units take 50 ms with a spread of a fifth. Accuracy is that of the held-out set
at the end; a seed decides about the model's start, the order of examples and the workers' speeds. A run whose
gradients are no numbers any more has the accuracy of guessing.

The order experiment (`--order`) has equal shares of lock-step before and behind asynchrony: `bsp:S%,asp` beside
`asp:(100-S)%,bsp`.

Won back is the share of what pure asynchrony loses against lock-step, of the means.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence

from benchmarks.virtual import quiet, simulated
from configs import digits_async_hurts as job
from hybridsync.config import apply_overrides
from hybridsync.core.errors import Diverged, HybridSyncError
from hybridsync.lab.simulator.cluster import Cluster, Device, Scenario
from hybridsync.lab.simulator.gradients import RealArithmetic, evaluator
from hybridsync.training.run import Run

PLANS = ("bsp", "asp", "bsp:12.5%,asp", "asp:12.5%,bsp")
ORDER_SHARES = (12.5, 25.0, 31.25, 50.0)
"""Percents of lock-step in the order experiment."""
GUESSING = 0.1
SCENARIO = Scenario(cluster=Cluster(devices=(Device(0.05, spread=0.2),)))


def order_plans(shares: Sequence[float] = ORDER_SHARES) -> tuple[str, ...]:
    """Return the plans of the order experiment: of each share of lock-step, in percent, first and then last.

    >>> order_plans((12.5, 50.0))
    ('bsp:12.5%,asp', 'asp:87.5%,bsp', 'bsp:50%,asp', 'asp:50%,bsp')
    """
    return tuple(plan for share in shares for plan in (f"bsp:{share:g}%,asp", f"asp:{100 - share:g}%,bsp"))


def main(arguments: Sequence[str]) -> int:
    """Simulate every plan from every seed, and print; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--seed", type=int, default=200, help="the first one; the job was chosen on 0 to 9")
    parser.add_argument("--plans", nargs="+", default=PLANS)
    parser.add_argument("--order", action="store_true", help="plans of the order experiment beside pure ones")
    parser.add_argument("--set", action="append", default=[], help="another value of the configuration, path=value")
    options = parser.parse_args(arguments)
    plans = ("bsp", "asp", *order_plans()) if options.order else options.plans
    try:
        seeds = range(options.seed, options.seed + options.seeds)
        found = {str(workers): table(workers, seeds, plans, options.set) for workers in options.workers}
    except HybridSyncError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps({"workers": found}))
    return 0


def table(
    workers: int, seeds: Sequence[int], plans: Sequence[str], values: Sequence[str]
) -> dict[str, dict[str, object]]:
    """Print what each plan comes to with so many workers, and return it."""
    base = apply_overrides(job.config(workers), values)
    run = Run(quiet(base), job.task(base), job.optimizer(base), None)
    arithmetic, evaluate = RealArithmetic(run), evaluator(run)
    print(f"{workers} workers, {base.workload} units of {base.unit_size}, rate {base.optimizer.learning_rate:g} a unit")
    print(f"  {'plan':<16} {'mean':>7} {'sd':>7} {'staleness':>10} {'secs':>7}   each seed", flush=True)
    found: dict[str, dict[str, object]] = {}
    means: dict[str, float] = {}
    for plan in plans:
        accuracies: list[float] = []
        staleness, seconds = 0.0, 0.0
        for seed in seeds:
            seeded = dataclasses.replace(run, config=dataclasses.replace(run.config, plan=plan, seed=seed))
            try:
                summary = simulated(seeded, SCENARIO, arithmetic.of_seed(seeded), evaluate)
            except Diverged:
                accuracies.append(GUESSING)
                continue
            accuracies.append(summary.final["accuracy"])
            staleness, seconds = summary.staleness["mean"], summary.seconds
        mean = means[plan] = statistics.fmean(accuracies)
        spread = statistics.stdev(accuracies) if len(seeds) > 1 else 0.0
        each = " ".join(f"{accuracy:.3f}" for accuracy in accuracies)
        print(f"  {plan:<16} {mean:>7.4f} {spread:>7.4f} {staleness:>10.1f} {seconds:>7.1f}   {each}", flush=True)
        found[plan] = {"mean": round(mean, 4), "sd": round(spread, 4), "accuracies": accuracies}
    _print_won_back(means)
    return found


def _print_won_back(means: dict[str, float]) -> None:
    if "bsp" not in means or "asp" not in means:
        return
    lost = means["bsp"] - means["asp"]
    print(f"  asp loses {100 * lost:.1f} points against bsp")
    for plan, mean in means.items():
        if plan not in ("bsp", "asp") and lost > 0:
            print(f"  {plan} wins {(mean - means['asp']) / lost:.0%} of them back")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
