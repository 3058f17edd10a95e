"""How much sooner compiled blocks compute a simulation's gradients than one by one, and how close both end.

    python -m benchmarks.compiled_gradients --job=NORMED --cifar=FOLDER --plans="bsp:6.25%,asp; bsp" --units=600

Both simulate a job of `benchmarks.reproduction.jobs` on the published times, in turn; the first round compiles and is
left out. Seconds are this process's of the processor: on a shared machine the wall clock says how busy others are.

Medians of three rounds on two cores at a load of 13: `bsp:6.25%,asp` 2.81 ms a unit where one by one took 5.52, `bsp`
2.73 and 5.46; the states were apart by 1.4e-7 at most, relative to a leaf's norm. Without the random bits written out
(`unrolled_random`) the blocks took 4.6 and 4.5: the noise is half of this job's unit. Digits (`--job=HURT`,
1,200 units, a load of 11): `asp` .55 where one by one took 1.64, `bsp` .76 and 1.48; the final states were equal.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.reproduction import jobs
from benchmarks.reproduction.clusters import Fitted
from benchmarks.reproduction.definition import Given
from hybridsync.lab.simulator.deferred import DeferredArithmetic
from hybridsync.lab.simulator.event_loop import Loop, VirtualClock
from hybridsync.lab.simulator.gradients import RealArithmetic
from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster
from hybridsync.telemetry.recorder import Recorder
from hybridsync.training.run import Run


def final_state(run: Run, arithmetic: Any) -> tuple[Any, float]:
    """Return the state that a run ends with, and the milliseconds of the processor for each unit."""
    began, loop = time.process_time(), Loop()
    scenario, recorder = Fitted().scenario(run.config.workers, arithmetic.sizes), Recorder.null(VirtualClock(loop))
    simulated = SimulatedCluster(run, scenario, arithmetic, recorder, loop, seed=run.config.seed, tick_secs=1.0)
    simulated.run()
    final = jax.device_get(simulated.final)
    return final, 1e3 * (time.process_time() - began) / run.config.workload


def distance(found: Any, expected: Any) -> float:
    """Return the largest relative norm of a floating-point leaf's difference.

    >>> distance({"a": np.float32([3.0, 4.0])}, {"a": np.float32([3.0, 5.0])}) < 0.2
    True
    """
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    pairs = [(np.float64(a), np.float64(b)) for a, b in pairs if np.issubdtype(b.dtype, np.floating)]
    return float(np.max([np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30) for a, b in pairs]))


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", default="NORMED", help="name in benchmarks.reproduction.jobs")
    parser.add_argument("--cifar", type=Path, help="folder of CIFAR-10's binary version")
    parser.add_argument("--plans", default="bsp:6.25%,asp; bsp")
    parser.add_argument("--units", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    job = getattr(jobs, asked.job)
    run = job.run(job.config(8, (f"workload={asked.units}",)), Given(cifar=asked.cifar))
    kinds = {"one by one": RealArithmetic(run), "compiled": DeferredArithmetic(run)}
    for plan in asked.plans.split(";"):
        planned = dataclasses.replace(run, config=dataclasses.replace(run.config, plan=plan.strip(), seed=1))
        finals, spent = {}, {kind: [] for kind in kinds}
        for _ in range(asked.rounds + 1):
            for kind, arithmetic in kinds.items():
                finals[kind], millis = final_state(planned, arithmetic.of_seed(planned))
                spent[kind].append(millis)
        medians = {kind: statistics.median(millis[1:]) for kind, millis in spent.items()}
        told = ", ".join(f"{kind} {millis:.2f}" for kind, millis in medians.items())
        apart = distance(finals["compiled"], finals["one by one"])
        print(f"{asked.job} {plan.strip()}, {asked.units} units: ms a unit {told}; apart {apart:.1e}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
