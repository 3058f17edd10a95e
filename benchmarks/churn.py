"""Whether membership changes leak: `python -m benchmarks.churn [--kills=50]`.

A `hybridsync train` job in lock-step loses a worker again and again, and takes its successor in: two membership changes
each. Resident memory, descriptors and threads of those that stay (supervisor, chief, server, worker 0) are read after
every pair; the slope by change is told, after a warm-up of a fifth of them.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from benchmarks.faults import newest, until
from benchmarks.jobs import DIGITS, JOB_SECS, ROOT, Row, load, report
from hybridsync.telemetry.events import read_events

WORKERS = 4
WARM_SHARE = 0.2

Sample = tuple[float, int, int]
"""Resident MB, open descriptors, threads."""


def sample(pid: int) -> Sample:
    """Return what a process holds now."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) / 1024, len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"])


def slope(values: list[float], changes_each: int) -> float:
    """Return the growth by membership change, by least squares."""
    kept = values[round(len(values) * WARM_SHARE) :]
    return statistics.linear_regression(range(len(kept)), kept).slope / changes_each


def measure(workdir: Path, kills: int) -> dict[str, list[Sample]]:
    """Run the job; returns the samples of each role that stays."""
    command = [sys.executable, "-m", "hybridsync.cli.train", f"--config={DIGITS}", f"--workdir={workdir}", "--plan=bsp"]
    command += [f"--workers={WORKERS}", "--compute_secs=0.02", "--set", "workload=10000000"]
    job = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    never = threading.Event()

    def whole() -> bool:
        entered = read_events(workdir, "phase_entered")
        return bool(entered) and len(entered[-1]["members"]) == WORKERS

    try:
        until(whole, "the first phase", job)
        pids = {f"{e['role']} {e['id']}": e["pid"] for e in read_events(workdir, "role_started")}
        pids = {role: pid for role, pid in pids.items() if role not in {f"worker {w}" for w in range(1, WORKERS)}}
        found: dict[str, list[Sample]] = {role: [] for role in pids}
        for index in range(kills):
            worker = 1 + index % (WORKERS - 1)
            pid = newest(workdir, worker)["pid"]
            os.kill(pid, signal.SIGKILL)
            until(lambda w=worker, p=pid: newest(workdir, w)["pid"] != p, f"worker {worker}", job)
            until(whole, "a phase with everybody", job)
            never.wait(0.5)
            for role, pid in pids.items():
                found[role].append(sample(pid))
        job.send_signal(signal.SIGTERM)
        job.wait(timeout=JOB_SECS)
    finally:
        job.kill()
        job.wait()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder) / "run", options.kills)
    rows, at = [], load()
    for role, samples in found.items():
        kinds = [("memory", "MB/change"), ("descriptors", "/change"), ("threads", "/change")]
        for index, (what, unit) in enumerate(kinds):
            values = [float(each[index]) for each in samples]
            rows.append(Row(f"{role}: {what} (last {values[-1]:.0f})", slope(values, 2), unit, load=at))
    report(f"{2 * options.kills} membership changes", rows, kills=options.kills)


if __name__ == "__main__":
    main()
