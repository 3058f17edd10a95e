"""Processor time of a unit: `python -m benchmarks.unit_cost`, of all roles of a job on the digits.

Each plan runs as two whole jobs, a long and a short one. The difference of their processor times, over that of
their units, leaves out start, compilation and the end. The model is that of `benchmarks.peers` (64-256-256-10,
85,002 parameters), with units of 32 and four workers.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
from pathlib import Path

from benchmarks.jobs import Row, load, report, train

SHORT_UNITS = 1_000
SETTINGS = ("--workers=4", "--set", "model.hidden=(256, 256)", "--set", "unit_size=32")


def processor_secs(plan: str, units: int, link: str) -> float:
    """Return the processor time of a job, with its supervisor and all roles."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder) / "run", *SETTINGS, f"--plan={plan}", f"--link={link}", "--set", f"workload={units}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=11_000, help="of the long job")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for plan, link, bound, target in (("asp", "shm", "<=", 1.3), ("bsp", "shm", "", 0.0), ("asp", "grpc", "", 0.0)):
        found = []
        for _ in range(options.repeats):
            short, long = (processor_secs(plan, units, link) for units in (SHORT_UNITS, options.units))
            found.append(1e3 * (long - short) / (options.units - SHORT_UNITS))
        name = f"{plan} over {link}"
        rows.append(Row(f"{name}: a unit", statistics.median(found), "core-ms", bound, target, load()))
        rows += [
            Row(f"{name}: least", min(found), "core-ms", load=load()),
            Row(f"{name}: most", max(found), "core-ms", load=load()),
        ]
    report("Processor time of a unit, all roles", rows, units=options.units, repeats=options.repeats)


if __name__ == "__main__":
    main()
