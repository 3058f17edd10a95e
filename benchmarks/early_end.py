"""The end of lock-step that a run finds itself, beside the one that a search finds: `python -m benchmarks.early_end`.

Trains a job in virtual time with real gradients, on workers whose units take 50 ms with a spread of a fifth, all plans
from the same seeds: pure lock-step, pure asynchrony, the search's answer (`hybridsync tune`), and a plan that lock-step
leaves where its loss stops falling steeply (`policy.trigger=knee`). Of the last it tells at which share that was, each
seed by itself. The last line is JSON.

The knee's two numbers (a twentieth of the steepest fall, windows of a twentieth of the workload) were chosen on the
losses of seeds 2000 and 2001 of this job; other seeds are fresh to them.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.virtual import quiet, simulated
from hybridsync.config import RunConfig, apply_overrides
from hybridsync.core.errors import Diverged, HybridSyncError
from hybridsync.lab.simulator.cluster import Cluster, Device, Scenario
from hybridsync.lab.simulator.gradients import RealArithmetic, evaluator
from hybridsync.training.run import Run

SCENARIO = Scenario(cluster=Cluster(devices=(Device(0.05, spread=0.2),)))
GUESSING = 0.1
"""Accuracy of a run whose gradients are no numbers any more."""


def main(arguments: Sequence[str]) -> int:
    """Simulate each plan from every seed, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs.digits_async_hurts", help="module of the job")
    parser.add_argument("--answer", default="bsp:31.25%,asp", help="what the search found")
    parser.add_argument("--most", default="bsp:50%,asp", help="the plan that may be left early")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--seed", type=int, default=2000, help="the first one")
    parser.add_argument("--set", action="append", default=[], help="another value of the configuration, path=value")
    options = parser.parse_args(arguments)
    job = importlib.import_module(options.config)
    seeds = range(options.seed, options.seed + options.seeds)
    plans = {
        "lock-step": ("bsp", "off"),
        "asynchrony": ("asp", "off"),
        "searched": (options.answer, "off"),
        "knee": (options.most, "knee"),
    }
    try:
        base = apply_overrides(job.config(), options.set)
        print(f"{base.workers} workers, {base.workload} units of {base.unit_size}")
        print(f"  {'':<11} {'plan':<16} {'accuracy':>8} {'sd':>7} {'secs':>7}   lock-step's share of each seed")
        found = {name: _row(name, job, base, plan, seeds) for name, plan in plans.items()}
    except HybridSyncError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    knee, searched = found["knee"], found["searched"]
    difference = knee["accuracy"] - searched["accuracy"]
    ratio = searched["seconds"] / knee["seconds"]
    told = f"{100 * difference:+.2f} points beside the search's answer, {ratio:.2f}x as fast"
    print(f"  the knee, without a search: {told}")
    print(json.dumps(found))
    return 0


def _row(name: str, job: Any, base: RunConfig, how: tuple[str, str], seeds: Sequence[int]) -> dict[str, Any]:
    """Print what a plan, with its trigger, comes to, and return it."""
    plan, trigger = how
    config = apply_overrides(quiet(base), [f"plan={plan}", f"policy.trigger={trigger}"])
    run = Run(config, job.task(config), job.optimizer(config), None)
    run.check()
    arithmetic, evaluate = RealArithmetic(run), evaluator(run)
    accuracies, seconds, shares = [], [], []
    for seed in seeds:
        seeded = dataclasses.replace(run, config=dataclasses.replace(config, seed=seed))
        try:
            summary = simulated(seeded, SCENARIO, arithmetic.of_seed(seeded), evaluate)
        except Diverged:
            accuracies.append(GUESSING)
            continue
        accuracies.append(summary.final["accuracy"])
        seconds.append(summary.seconds)
        left = [switch["units"] for switch in summary.switches if switch["reason"] == "policy"]
        shares += [units / config.workload for units in left]
    mean, spread = statistics.fmean(accuracies), statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
    took = statistics.fmean(seconds) if seconds else float("nan")
    each = " ".join(f"{share:.1%}" for share in shares)
    print(f"  {name:<11} {plan:<16} {mean:>8.4f} {spread:>7.4f} {took:>7.2f}   {each}", flush=True)
    return {"plan": plan, "accuracy": mean, "sd": spread, "seconds": took, "shares": shares}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
