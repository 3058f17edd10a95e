"""What transfers beside the computation save PS+ over its own blocking twin, simulated and by arithmetic.

    python -m benchmarks.overlap

Eight workers that are alike, a unit of T seconds, and a full-duplex link for each, which a push or a pull passes in
r * T seconds; network and servers take no time beside that. A unit then takes a worker, by arithmetic, in units of T:

    psplus(overlap=false)    1 + 2 r          computes, pushes, pulls
    psplus                   max(1, r)        a push and a pull go on beside the computation, and beside each other

Each row is a ratio r; the last line is JSON. Nothing is measured here: virtual time has no load.
"""

from __future__ import annotations

import json

from benchmarks.virtual import quiet, simulated
from configs import tally
from hybridsync.config import RunConfig
from hybridsync.lab.simulator.arithmetic import Sizes, Weightless
from hybridsync.lab.simulator.cluster import Cluster, Costs, Device, Link, Scenario
from hybridsync.training.run import Run

NUM_WORKERS = 8
RATIOS = 0.25, 0.5, 1.0, 2.0
COMPUTE_SECS = 0.1
NUM_BYTES = 1_000_000
UNITS_EACH = 400
AT_ONCE = 1e-9
"""Seconds of what is to take none."""
BLOCKING = "psplus(overlap=false)"


def expected(spec: str, ratio: float) -> float:
    """Return how long a unit takes a worker by arithmetic, in units of its computation."""
    return 1 + 2 * ratio if spec == BLOCKING else max(1.0, ratio)


def unit_secs(spec: str, ratio: float) -> float:
    """Return how long a unit of a simulated run takes a worker, in units of its computation."""
    config = quiet(RunConfig(workload=NUM_WORKERS * UNITS_EACH, unit_size=1, workers=NUM_WORKERS, plan=spec))
    costs = Costs(*[AT_ONCE] * 5, reserve_secs=AT_ONCE, commit_secs=AT_ONCE)
    link = Link(AT_ONCE, NUM_BYTES / (ratio * COMPUTE_SECS))
    cluster = Cluster((Device(COMPUTE_SECS),), link, Link(AT_ONCE, 1e15), costs)
    run = Run(config, tally.task(config), tally.optimizer(config), None)  # neither is looked at
    sizes = Sizes(gradient=NUM_BYTES, parameters=NUM_BYTES, state=NUM_BYTES)
    return simulated(run, Scenario(cluster), Weightless(sizes)).seconds / UNITS_EACH / COMPUTE_SECS


def main() -> None:
    """Print the table."""
    found = []
    print(f"{'r':>5} {'blocking / T':>13} {'arithmetic':>10} {'psplus / T':>11} {'arithmetic':>10} {'of blocking':>12}")
    for ratio in RATIOS:
        blocking, own = unit_secs(BLOCKING, ratio), unit_secs("psplus", ratio)
        told = expected(BLOCKING, ratio), expected("psplus", ratio)
        found.append({"ratio": ratio, "blocking": blocking, "psplus": own, "by_arithmetic": told[1] / told[0]})
        print(f"{ratio:>5} {blocking:>13.3f} {told[0]:>10.3f} {own:>11.3f} {told[1]:>10.3f} {own / blocking:>12.2f}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
