"""How soon a job trains, and is done: `python -m benchmarks.start_up`, the job of `make train` in fresh workdirs.

A first job, which is not counted, fills the cache of compiled programs. Times are from the command's start: to the
first phase, to the end of the first unit that was applied, and to the command's exit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.jobs import Row, load, report, train
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.lab.report.stalls import UPDATES
from hybridsync.telemetry.events import read_events
from hybridsync.telemetry.timeline import TIMELINE_FILE


@dataclass(frozen=True)
class StartUp:
    """Holds the seconds of one job from its command's start.

    Args:
      first_phase: to the first phase, which is entered.
      first_unit: to the end of the first unit that was applied.
      done: to the command's exit.
    """

    first_phase: float
    first_unit: float
    done: float


def measure(*flags: str) -> StartUp:
    """Run one job in a fresh workdir."""
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        began = SYSTEM_CLOCK.wall()
        train(workdir, *flags)
        done = SYSTEM_CLOCK.wall() - began
        (entered, *_), (started, *_) = (read_events(workdir, kind) for kind in ("phase_entered", "training_started"))
        spans = json.loads((workdir / TIMELINE_FILE).read_bytes())["traceEvents"]
    updates = [span for span in spans if span["ph"] == "X" and (span["name"], span["cat"]) in UPDATES]
    first = min(span["ts"] + span["dur"] for span in updates) / 1e6  # seconds of the run, as `t` of the events
    return StartUp(entered["wall"] - began, started["wall"] - started["t"] + first - began, done)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    measure()
    found = [measure() for _ in range(options.repeats)]
    rows = []
    for name, values, target in (
        ("first phase", [each.first_phase for each in found], 0.0),
        ("first unit applied", [each.first_unit for each in found], 2.5),
        ("done", [each.done for each in found], 8.0),
    ):
        bound = "<=" if target else ""
        rows.append(Row(f"{name}: median", statistics.median(values), "s", bound, target, load()))
        rows += [
            Row(f"{name}: {what}", some(values), "s", load=load()) for what, some in (("least", min), ("most", max))
        ]
    report("From the command's start, programs compiled before", rows, repeats=options.repeats)


if __name__ == "__main__":
    main()
