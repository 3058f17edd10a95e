"""Measures each part of the group generator, simulated: naive, buffer, division, filter, static, two phases.

    python -m benchmarks.group_generators

Eight workers in two nodes of four, 100 ms a unit (a tenth of it drawn), a link of 1.25 GB/s, and a model of 0 or 10 MB.
Once they are alike, and once one of them takes five times as long. A row is a plan, with its units a second; the last
line is JSON. Nothing is measured here: virtual time has no load.
"""

from __future__ import annotations

import argparse
import json

from benchmarks.virtual import seconds_of
from hybridsync.config import RunConfig
from hybridsync.lab.simulator.arithmetic import Sizes
from hybridsync.lab.simulator.cluster import Cluster, Device, Link, Scenario, Slow

NUM_WORKERS, WORKLOAD = 8, 4000
FACTOR = 5.0
"""Of the slow worker."""
PLANS = {
    "naive": "preduce(buffer=false,division=false,slowdown=0)",
    "and the buffer": "preduce(division=false,slowdown=0)",
    "and division": "preduce(slowdown=0)",
    "and the filter": "preduce",
    "the filter alone": "preduce(buffer=false,division=false)",
    "a measured size": "preduce(size=auto)",
    "static": "preduce(groups=static)",
    "inter without the filter": "preduce(groups=inter,slowdown=0)",
    "inter": "preduce(groups=inter)",
    "arrival": "preduce(groups=arrival)",
    "AD-PSGD": "adpsgd",
    "AD-PSGD with one thread": "adpsgd(overlap=false)",
    "lock-step": "bsp",
}
"""Plans by their titles."""


def units_per_sec(plan: str, *slow: Slow, num_bytes: int = 1, workload: int = WORKLOAD) -> float:
    """Return the units a second of a simulated run."""
    cluster = Cluster((Device(0.1, spread=0.1),), node_size=4, worker_link=Link(1e-4, 1.25e9))
    config = RunConfig(workload=workload, unit_size=1, workers=NUM_WORKERS, plan=plan)
    return workload / seconds_of(config, Scenario(cluster, slow=slow), Sizes(num_bytes, num_bytes, num_bytes))


def main() -> None:
    """Print the table."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--megabytes", type=int, default=0, help="of the model; 0 is next to nothing")
    num_bytes = max(1, flags.parse_args().megabytes * 10**6)
    found: list[dict[str, float | str]] = []
    print(f"{'':<25} {'plan':<50} {'alike':>7} {'one slow':>9}")
    for what, plan in PLANS.items():
        alike = units_per_sec(plan, num_bytes=num_bytes)
        uneven = units_per_sec(plan, Slow(0, factor=FACTOR), num_bytes=num_bytes)
        print(f"{what:<25} {plan:<50} {alike:>7.1f} {uneven:>9.1f}", flush=True)
        found.append({"what": what, "plan": plan, "alike": alike, "one_slow": uneven})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
