"""ASP with real processes against the ideal of its emulated compute: `python -m benchmarks.asp_processes`.

Whole `hybridsync train` jobs with plan `asp` on digits, their workers *emulating* an accelerator that is busy a
fixed time a unit (--compute_secs; the gradient is really computed, the rest is slept). The ideal is workers
/ compute_secs units a second, all that the workers could compute if the server cost nothing. 8 workers of
50 ms, and 4 workers of 20 ms with units of 32. Targets are for the steady rate; the rate over the whole
phase stands beside it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.jobs import Row, load, phase_rates, report, train

UNIT_SIZE = 32


def measure(workers: int, compute_secs: float, secs: float, repeats: int) -> tuple[float, float, float]:
    """Return units a second of jobs of about `secs` seconds: steady, over the whole phase; and the load."""
    workload = round(secs * workers / compute_secs)
    steady, whole, loads = [], [], [load()]
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            workdir = Path(folder) / "run"
            flags = [f"--workers={workers}", "--plan=asp", f"--compute_secs={compute_secs}"]
            train(workdir, *flags, "--set", f"workload={workload}", "--set", f"unit_size={UNIT_SIZE}")
            (phase,) = phase_rates(workdir)
        steady.append(phase.steady)
        whole.append(phase.whole)
        loads.append(load())
    return statistics.median(steady), statistics.median(whole), max(loads)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--secs", type=float, default=15.0, help="about how long each phase lasts")
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    steady, whole, at = measure(8, 0.05, options.secs, options.repeats)
    name = "8 workers, emulated 50 ms (ideal 160 units/s)"
    rows = [
        Row(f"{name}: steady", steady, "units/s", ">=", 144.0, load=at),
        Row(f"{name}: whole phase", whole, "units/s", load=at),
    ]
    steady, whole, at = measure(4, 0.02, options.secs, options.repeats)
    name = "4 workers, emulated 20 ms (ideal 6,400 examples/s)"
    ideal = 4 / 0.02
    rows += [
        Row(f"{name}: steady", steady * UNIT_SIZE, "examples/s", load=at),
        Row(f"{name}: steady / ideal", steady / ideal, "x", ">=", 0.95, load=at),
        Row(f"{name}: whole phase / ideal", whole / ideal, "x", load=at),
    ]
    report("ASP, processes, emulated compute", rows, secs=options.secs)


if __name__ == "__main__":
    main()
