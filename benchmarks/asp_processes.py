"""ASP with real processes against the ideal of its emulated compute: `python -m benchmarks.asp_processes`.

Whole `hybridsync train` jobs with plan `asp` on digits, their workers *emulating* an accelerator that is busy a
fixed time a unit (--compute_secs; the gradient is really computed, the rest is slept). The ideal is what all workers
could compute if the server cost nothing: 8 workers of 50 ms, 4 workers of 20 ms with units of 32, and the same with one
of the four five times slower. Figures are medians of the jobs; the lowest and the highest stand beside them. Targets
are for the steady rate; the rate over the whole phase stands beside it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.jobs import Row, load, phase_rates, report, train

UNIT_SIZE = 32


@dataclass(frozen=True)
class Case:
    """One emulated set of workers.

    Args:
      name: its name for --only.
      workers: number of workers.
      compute_secs: seconds that a device is busy with a unit.
      slower: factor by which worker 0 is slower; 1 where it is like the others.
      aim: share of the ideal that is asked for.
    """

    name: str
    workers: int
    compute_secs: float
    slower: float
    aim: float

    @property
    def ideal(self) -> float:
        """Units a second of all workers, if nothing but their devices took time."""
        return (self.workers - 1 + 1 / self.slower) / self.compute_secs

    @property
    def title(self) -> str:
        """The case for people."""
        slow = f", one {self.slower:g} x slower" if self.slower > 1 else ""
        ideal = f"{self.ideal * UNIT_SIZE:,.0f} examples/s"
        return f"{self.workers} workers, emulated {self.compute_secs * 1e3:g} ms{slow} (ideal {ideal})"


CASES = (
    Case("50ms", workers=8, compute_secs=0.05, slower=1.0, aim=0.9),
    Case("20ms", workers=4, compute_secs=0.02, slower=1.0, aim=0.95),
    Case("slower", workers=4, compute_secs=0.02, slower=5.0, aim=0.95),
)


def measure(case: Case, secs: float, repeats: int) -> list[Row]:
    """Return the rates of jobs of about `secs` seconds."""
    flags = [f"--workers={case.workers}", "--plan=asp", f"--compute_secs={case.compute_secs}"]
    flags += [f"--stragglers=worker=0,factor={case.slower:g}"] if case.slower > 1 else []
    sizes = ["--set", f"workload={round(secs * case.ideal)}", "--set", f"unit_size={UNIT_SIZE}"]
    steady, whole, loads = [], [], [load()]
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            workdir = Path(folder) / "run"
            train(workdir, *flags, *sizes)
            (phase,) = phase_rates(workdir)
        steady.append(phase.steady)
        whole.append(phase.whole)
        loads.append(load())
    at, shares = max(loads), [rate / case.ideal for rate in steady]
    return [
        Row(f"{case.title}: steady", statistics.median(steady) * UNIT_SIZE, "examples/s", load=at),
        Row("  of the ideal, median", statistics.median(shares), "x", ">=", case.aim, load=at),
        Row("  lowest", min(shares), "x", load=at),
        Row("  highest", max(shares), "x", load=at),
        Row("  whole phase, of the ideal", statistics.median(whole) / case.ideal, "x", load=at),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--secs", type=float, default=15.0, help="about how long each phase lasts")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help=f"one of {', '.join(case.name for case in CASES)}")
    options = parser.parse_args()
    rows = [
        row for case in CASES if options.only in ("", case.name) for row in measure(case, options.secs, options.repeats)
    ]
    report("ASP, processes, emulated compute", rows, secs=options.secs, repeats=options.repeats)


if __name__ == "__main__":
    main()
