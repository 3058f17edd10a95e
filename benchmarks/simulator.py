"""How many units a second the simulator gets through, beside a bare loop of generators and a heap in the same run.

    python -m benchmarks.simulator --workers=1024 --units=1000000

Asynchronous, no gradients, no timeline, one core; seconds of this process's CPU, best of `--rounds`, the two in turn.
The bare loop keeps nothing but time: each worker is a generator whose every unit is three calls off a heap (computed,
pushed, answered) and one lognormal draw. The last line is JSON.

On two cores that others used as well (a load of 3 to 7), three runs of a million units each, in turn with the version
before this one: 43,000 to 46,000 units a second, where that did 35,000 to 37,000, and the bare loop 257,000 to 328,000
in the same runs. At a load of 9 to 13, with 400,000 units, 35,000 and 37,000 where that did 29,000 and 31,000. On a
nearly quiet machine that version did 38,000 to 43,000; this one was not measured there. The goal of 65,000 is not
reached.

Counted on Python 3.11 with 128 workers and 40,000 units, start and end included, a unit takes 1,404 bytecodes in 44
Python calls, where it took 1,664 in 58: the loop 120, the worker 460, both ways through the network 160, the server 130
and the sequencer 140; the rest are leases, reports and heartbeats, which belong to no unit. That was before the engines
and the server core of real runs ran here: they add about 20 and 9 percent to the bytecodes. Bytecodes are not all: with
64 workers instead of 512 a unit took about a third less time in one run of each, supposedly as what each worker has of
its own is then in a nearer cache.

A link's rates are looked up since, and a wait is copied only where it is cut short: with 256 workers and 100,000 units,
28,600 to 30,700 units a second in turn with 26,100 to 27,200 before (three runs of each, load 12).

In turn with the last version that had engines of its own (4df9957), with 256 workers and 40,000 units, three runs of
each at a load of 14 to 17: 24,500 to 26,100 units a second, where that did 44,200 to 49,900. So half the speed was
gone, more than the third that shared engines were allowed. docs/design/simulator.md has what it is since, and what
helped.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Iterator
from heapq import heappop, heappush
from random import Random

from configs import tally
from hybridsync.lab.simulator.arithmetic import Sizes, Weightless
from hybridsync.lab.simulator.cluster import Cluster, Costs, Device, Link, Scenario
from hybridsync.lab.simulator.event_loop import Loop, VirtualClock
from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster
from hybridsync.telemetry.recorder import Recorder
from hybridsync.training.run import Run

SECS, SPREAD = 0.05, 0.1
"""Of a unit's computation."""


def simulated(num_workers: int, num_units: int) -> float:
    """Return the units a second of a simulated run."""
    config = tally.config()
    telemetry = dataclasses.replace(config.telemetry, timeline=False, log_secs=1e9)
    config = dataclasses.replace(config, workload=num_units, workers=num_workers, plan="asp", telemetry=telemetry)
    scenario = Scenario(
        Cluster((Device(SECS, SPREAD),), server_link=Link(bytes_per_sec=1e12), costs=Costs(apply_secs=1e-6))
    )
    small = dataclasses.replace(config, workload=1)  # the task is not used, and makes arrays of its workload
    run = Run(config, tally.task(small), tally.optimizer(small), None)
    loop = Loop()
    recorder = Recorder.null(VirtualClock(loop))
    simulated = SimulatedCluster(run, scenario, Weightless(Sizes(1000, 1000, 2000)), recorder, loop)
    started = time.process_time()
    summary = simulated.run()
    secs = time.process_time() - started
    assert summary.units.applied == num_units, summary
    return num_units / secs


def bare(num_workers: int, num_units: int) -> float:
    """Return the units a second of generators on a heap."""
    random = Random(0)
    variance = math.log1p(SPREAD * SPREAD)
    mean, deviation = math.log(SECS) - variance / 2, math.sqrt(variance)

    def worker() -> Iterator[float]:
        while True:
            yield math.exp(random.gauss(mean, deviation))
            yield 1e-4
            yield 1e-4

    heap: list[tuple[float, int, Iterator[float]]] = []
    order = 0
    for _ in range(num_workers):
        order += 1
        heappush(heap, (0.0, order, worker()))
    started = time.process_time()
    for _ in range(3 * num_units):
        now, _, program = heappop(heap)
        order += 1
        heappush(heap, (now + next(program), order, program))
    return num_units / (time.process_time() - started)


def main(arguments: list[str]) -> int:
    """Measure, and print the figures; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1024)
    parser.add_argument("--units", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args(arguments)
    ours, theirs = [], []
    for _ in range(options.rounds):
        theirs.append(bare(options.workers, options.units))
        ours.append(simulated(options.workers, options.units))
        print(f"simulated {ours[-1]:,.0f} units/s, bare loop {theirs[-1]:,.0f} units/s", flush=True)
    figures = {
        "workers": options.workers,
        "units": options.units,
        "simulated_units_per_sec": round(max(ours)),
        "bare_units_per_sec": round(max(theirs)),
        "ratio": round(max(ours) / max(theirs), 3),
    }
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
