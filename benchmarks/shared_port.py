"""The time that transfers one by one save at a fairly shared port, simulated and by arithmetic.

    python -m benchmarks.shared_port

Eight workers that are alike, a unit of T seconds, and one server port through which the gradients of all pass in r * T
seconds, and the parameters as long, in each direction at once. The network and the server take no time beside that. A
round of the three is then, by arithmetic, in units of T:

    bsp_server         1 + 2 r            all pull together, and all push together: each has 1/n of the port
    hsp                1 + r + r / n      one at a time in both directions: the first worker computes while the second
                                          one pulls, and pushes while the others compute
    hsp(stale=1)       no more than that  while a worker waits for the next update it computes a stale unit

Each row is a ratio r; the last line is JSON. Nothing is measured here: virtual time has no load.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from benchmarks.virtual import quiet, simulated
from configs import tally
from hybridsync.config import RunConfig
from hybridsync.lab.simulator.arithmetic import Sizes, Weightless
from hybridsync.lab.simulator.cluster import Cluster, Costs, Device, Link, Scenario
from hybridsync.training.run import Run

NUM_WORKERS = 8
RATIOS = 0.25, 1.0, 4.0
COMPUTE_SECS = 0.1
NUM_BYTES = 1_000_000
ROUNDS = 100
AT_ONCE = 1e-9
"""Seconds of what is to take none."""


def expected(spec: str, ratio: float) -> float:
    """Return how long a round takes by arithmetic, in units of a unit's computation."""
    return 1 + 2 * ratio if spec == "bsp_server" else 1 + ratio + ratio / NUM_WORKERS


def round_secs(spec: str, ratio: float) -> float:
    """Return how long a round of a simulated run takes, in units of a unit's computation."""
    config = quiet(RunConfig(workload=NUM_WORKERS * ROUNDS, unit_size=1, workers=NUM_WORKERS, plan=spec))
    port = NUM_WORKERS * NUM_BYTES / (ratio * COMPUTE_SECS)
    costs = Costs(*[AT_ONCE] * 5, reserve_secs=AT_ONCE, commit_secs=AT_ONCE)
    cluster = Cluster((Device(COMPUTE_SECS),), Link(AT_ONCE, 1e15), Link(AT_ONCE, port), costs)
    run = Run(config, tally.task(config), tally.optimizer(config), None)  # neither is looked at
    sizes = Sizes(gradient=NUM_BYTES, parameters=NUM_BYTES, state=1)
    seconds = simulated(run, Scenario(cluster), Weightless(sizes)).seconds
    return seconds / ROUNDS / COMPUTE_SECS


def rows(specs: Sequence[str]) -> list[dict[str, float | str]]:
    """Return the figures of each ratio and protocol."""
    found: list[dict[str, float | str]] = []
    for ratio in RATIOS:
        barrier = round_secs("bsp_server", ratio)
        for spec in specs:
            took, by_arithmetic = round_secs(spec, ratio), expected(spec, ratio)
            over = expected("bsp_server", ratio) / by_arithmetic
            row = {"ratio": ratio, "protocol": spec, "round": took, "by_arithmetic": by_arithmetic}
            found.append(row | {"over_bsp_server": barrier / took, "over_bsp_server_by_arithmetic": over})
    return found


def main() -> None:
    """Print the table."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--protocols", default="bsp_server;hsp;hsp(stale=1)", help="separated by semicolons")
    found = rows(flags.parse_args().protocols.split(";"))
    print(f"{'r':>5} {'protocol':<24} {'round / T':>10} {'arithmetic':>10} {'bsp_server / it':>16} {'arithmetic':>10}")
    for row in found:
        print(
            f"{row['ratio']:>5} {row['protocol']:<24} {row['round']:>10.3f} {row['by_arithmetic']:>10.3f} "
            f"{row['over_bsp_server']:>15.2f}x {row['over_bsp_server_by_arithmetic']:>9.2f}x"
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
