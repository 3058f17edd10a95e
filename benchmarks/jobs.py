"""What the benchmarks share: whole jobs as subprocesses, the rates of their phases, and one way to report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hybridsync.lab.report.stalls import UPDATES
from hybridsync.telemetry.events import read_events
from hybridsync.telemetry.summary import read_summary
from hybridsync.telemetry.timeline import TIMELINE_FILE

ROOT = Path(__file__).resolve().parent.parent
DIGITS = "configs/digits_mlp.py"
JOB_SECS = 900.0
SKIPPED_SHARE = 0.1


@dataclass(frozen=True)
class PhaseRate:
    """How fast one phase was, in units a second.

    Args:
      phase: its number.
      protocol: as the plan spells it.
      units: applied in it.
      steady: without the first and last tenth of its updates (fewer where the timeline keeps fewer).
      whole: from the phase's entry to its end.
    """

    phase: int
    protocol: str
    units: int
    steady: float
    whole: float


@dataclass(frozen=True)
class Row:
    """One measured figure beside its target.

    Args:
      name: what was measured.
      figure: its value; `unit` is what it is in.
      bound: "<=", ">=", or "" where there is no target.
      target: what the figure is held against.
      load: the machine's load average of the last minute, when it was measured.
    """

    name: str
    figure: float
    unit: str
    bound: str = ""
    target: float = 0.0
    load: float = 0.0

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if not self.bound:
            return None
        return self.figure <= self.target if self.bound == "<=" else self.figure >= self.target


def train(workdir: Path, *flags: str, config: str = DIGITS) -> dict[str, Any]:
    """Run `hybridsync train` as a job of its own, and return what summary.json holds.

    Raises:
      RuntimeError: the job did not complete; holds the end of what it printed.
      TimeoutExpired: it took longer than JOB_SECS.
    """
    command = [sys.executable, "-m", "hybridsync.cli.train", f"--config={config}", f"--workdir={workdir}", *flags]
    job = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=JOB_SECS, check=False)
    summary = read_summary(workdir) if job.returncode == 0 else None
    if summary is None:
        printed = (job.stdout + job.stderr)[-3000:]
        raise RuntimeError(f"{' '.join(command)} ended with {job.returncode}:\n{printed}")
    return summary


def phase_rates(workdir: Path) -> list[PhaseRate]:
    """Return the rate of every phase of a finished run, from its events and timeline."""
    ends: dict[int, dict[int, list[float]]] = {}
    for span in json.loads((workdir / TIMELINE_FILE).read_bytes())["traceEvents"]:
        if span["ph"] == "X" and (span["name"], span["cat"]) in UPDATES:
            rows = ends.setdefault(span["args"]["phase"], {})
            rows.setdefault(span["pid"], []).append((span["ts"] + span["dur"]) / 1e6)
    ended = {event["phase"]: event for event in read_events(workdir, "phase_ended")}
    rates = []
    for entered in read_events(workdir, "phase_entered"):
        end = ended[entered["phase"]]
        units = end["units"] - entered["units"]
        per_update = entered["units_per_update"]
        rows = ends[entered["phase"]]
        kept = rows[min(rows)]  # the server's, or one worker's: all make the same steps
        steady = steady_rate(kept, -(-units // per_update)) * per_update
        rates.append(PhaseRate(entered["phase"], entered["protocol"], units, steady, units / (end["t"] - entered["t"])))
    return rates


def steady_rate(ends: Sequence[float], num_updates: int) -> float:
    """Return updates a second without the first and last tenth of them.

    Args:
      ends: when updates ended, seconds; the timeline may have kept the first and last ones only.
      num_updates: all there were.

    >>> steady_rate([0.0, 1.0, 2.0, 3.0, 97.0, 98.0, 99.0, 100.0], 101)
    1.0
    """
    ends = sorted(ends)
    skipped = min(round(num_updates * SKIPPED_SHARE), len(ends) // 4)
    return (num_updates - 1 - 2 * skipped) / (ends[-1 - skipped] - ends[skipped])


def load() -> float:
    """Return the machine's load average of the last minute; above its cores, figures are not its own."""
    return os.getloadavg()[0]


def report(title: str, rows: Sequence[Row], **more: Any) -> None:
    """Print the rows as a table, and everything as one JSON object on the last line."""
    print(f"{title}\n  ({os.cpu_count()} cores; load: average of the minute before)")
    width = max(len(row.name) for row in rows)
    for row in rows:
        target = f"{row.bound} {row.target:g}" if row.bound else ""
        met = {None: "", True: "met", False: "NOT MET"}[row.met]
        figure = f"{row.figure:>10.4g} {row.unit:<11}"
        print(f"  {row.name:<{width}} {figure} {target:<9} {met:<8} load {row.load:.1f}")
    found = [{**asdict(row), "met": row.met} for row in rows]
    print(json.dumps({"title": title, "cores": os.cpu_count(), "rows": found, **more}))
