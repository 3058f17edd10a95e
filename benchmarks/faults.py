"""What a fault in lock-step costs: `python -m benchmarks.faults [--workers=4] [--config=...] [--faults=10]`.

A `hybridsync train` job with plan `bsp`, whose workers *emulate* an accelerator (--compute_secs), loses one worker
after the other, by SIGKILL and by SIGSTOP in turns. From its timeline: how long it took from the signal to the first
completed step of the others; and from the start of the new process until a phase named it, and to the first step it
took part in. A stopped worker is noticed by the progress deadline, max(2 s, 10 steps); the rest is told apart from it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.jobs import DIGITS, JOB_SECS, ROOT, Row, load, report
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.telemetry.events import read_events
from hybridsync.telemetry.timeline import TIMELINE_FILE

DEADLINE_SECS = 2.0
GAP_SECS = 2.0
"""Between a whole mesh and the next fault, by default."""
WAIT_SECS = 120.0


@dataclass(frozen=True)
class Fault:
    """One signal: which, to which worker, and when by the run's clock; when its successor's process started."""

    number: signal.Signals
    worker: int
    at: float
    reborn_at: float


def newest(workdir: Path, worker: int) -> dict[str, Any]:
    """Return the last role_started event of a worker."""
    started = [e for e in read_events(workdir, "role_started") if (e["role"], e["id"]) == ("worker", worker)]
    return started[-1]


def until(ready: Any, what: str, job: subprocess.Popen) -> Any:
    """Return what `ready()` does once it is true.

    Raises:
      TimeoutError: it was not in WAIT_SECS, or the job ended first.
    """
    deadline, never = SYSTEM_CLOCK.monotonic() + WAIT_SECS, threading.Event()
    while not (found := ready()):
        if SYSTEM_CLOCK.monotonic() > deadline or job.poll() is not None:
            raise TimeoutError(f"{what} did not come within {WAIT_SECS:g} s (job: {job.poll()})")
        never.wait(0.02)
    return found


def started_at(pid: int, zero: float) -> float:
    """Return when a process started, in the run's seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    boot_secs = float(Path("/proc/uptime").read_text().split()[0])
    age = boot_secs - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return SYSTEM_CLOCK.wall() - age - zero


def hurt(workdir: Path, options: argparse.Namespace) -> list[Fault]:
    """Run the job and hurt it; returns the faults."""
    command = [sys.executable, "-m", "hybridsync.cli.train", f"--config={options.config}", f"--workdir={workdir}"]
    command += [f"--workers={options.workers}", "--plan=bsp", f"--compute_secs={options.compute_secs}"]
    limits = (f"hang.{name}_secs={DEADLINE_SECS:g}" for name in ("silent", "compute"))
    command += [
        "--set",
        "workload=10000000",
        *(part for limit in limits for part in ("--set", limit)),
        *(part for flag in options.set for part in ("--set", flag)),
    ]
    job = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    faults: list[Fault] = []
    never = threading.Event()

    def whole() -> bool:
        entered = read_events(workdir, "phase_entered")
        return bool(entered) and len(entered[-1]["members"]) == options.workers

    try:
        until(whole, "the first phase", job)
        never.wait(2 * GAP_SECS)
        for index in range(options.faults):
            number = signal.SIGSTOP if options.stop and index % 2 else signal.SIGKILL
            worker = index % options.workers
            event, started = newest(workdir, worker), read_events(workdir, "training_started")[0]
            zero = started["wall"] - started["t"]
            at = SYSTEM_CLOCK.wall() - zero
            os.kill(event["pid"], number)
            until(lambda w=worker, e=event: newest(workdir, w)["pid"] != e["pid"], f"worker {worker}", job)
            faults.append(Fault(number, worker, at, started_at(newest(workdir, worker)["pid"], zero)))
            until(whole, "a phase with everybody", job)
            never.wait(options.gap)
        job.send_signal(signal.SIGTERM)
        job.wait(timeout=JOB_SECS)
    finally:
        job.kill()
        job.wait()
    return faults


def measure(workdir: Path, options: argparse.Namespace) -> list[Row]:
    """Return the rows of one job."""
    faults = hurt(workdir, options)
    steps: list[tuple[float, int, int]] = []
    for span in json.loads((workdir / TIMELINE_FILE).read_bytes())["traceEvents"]:
        if span["ph"] == "X" and span["name"] == "step":
            steps.append(((span["ts"] + span["dur"]) / 1e6, span["args"]["phase"], span["pid"]))
    steps.sort()
    entered = {event["phase"]: event for event in read_events(workdir, "phase_entered")}
    recovered: dict[signal.Signals, list[float]] = {signal.SIGKILL: [], signal.SIGSTOP: []}
    meshed: list[float] = []
    rejoined: list[float] = []
    for fault in faults:
        before = max(phase for phase, event in entered.items() if event["t"] <= fault.at)
        recovered[fault.number].append(next(end for end, phase, _ in steps if phase > before) - fault.at)
        back = [e for e in entered.values() if e["t"] > fault.reborn_at and fault.worker in e["members"]]
        first = min(event["phase"] for event in back)
        meshed.append(entered[first]["t"] - fault.reborn_at)
        rejoined.append(next(end for end, phase, _ in steps if phase >= first) - fault.reborn_at)
    name, at = f"{Path(options.config).stem}, {options.workers} workers", load()
    rows = []
    for number, target in ((signal.SIGKILL, 1.0), (signal.SIGSTOP, DEADLINE_SECS + 1.0)):
        if times := recovered[number]:
            what = f"{name}: {number.name} to the others' next step"
            rows.append(Row(f"{what}, p50", statistics.median(times), "s", load=at))
            rows.append(Row(f"{what}, p95", p95(times), "s", "<=", target, at))
    rows.append(Row(f"{name}: new process into the mesh, p50", statistics.median(meshed), "s", load=at))
    rows.append(Row(f"{name}: new process into the mesh, max", max(meshed), "s", "<=", 5.0, at))
    rows.append(Row(f"{name}: new process to its first step, p50", statistics.median(rejoined), "s", load=at))
    rows.append(Row(f"{name}: new process to its first step, max", max(rejoined), "s", load=at))
    return rows


def p95(values: list[float]) -> float:
    """Return the 95th percentile, of few values the largest but for one in twenty."""
    return sorted(values)[max(0, -(-len(values) * 95 // 100) - 1)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--config", default=DIGITS)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--compute_secs", type=float, default=0.02)
    parser.add_argument("--gap", type=float, default=GAP_SECS, help="seconds of a whole mesh before the next fault")
    parser.add_argument("--stop", type=int, default=1, help="whether every other fault is a SIGSTOP")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder) / "run", options)
    report("Faults in lock-step", rows, workers=options.workers, faults=options.faults)


if __name__ == "__main__":
    main()
