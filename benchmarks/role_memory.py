"""Whether a role's memory grows with time: `python -m benchmarks.role_memory`, one long job over many switches.

Each role's memory (resident, and what no other process shares, from /proc/PID/smaps_rollup) is sampled every second.
The mean of the first third of the samples stands beside that of the last third. What a role takes to get going, in
the first `--skipped_secs` of its phases, is left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.jobs import DIGITS, ROOT, Row, load, report
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.telemetry.events import read_events

EVERY_SECS = 1.0
PLAN = "bsp:12%,asp:18%,bsp:10%,asp:15%,bsp:10%,asp:15%,bsp:10%,asp"
KINDS = {"Rss:": "resident", "Pss_Anon:": "own"}
Samples = dict[str, list[tuple[float, dict[str, float]]]]


def memory(pid: int) -> dict[str, float] | None:
    """Return the megabytes of a process, by kind; None where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    fields = [line.split() for line in lines]
    return {KINDS[name]: float(value[0]) / 1024 for name, *value in fields if name in KINDS} or None


def watched(workdir: Path, *flags: str) -> Samples:
    """Run a job and return the samples of each role.

    Raises:
      RuntimeError: the job did not complete.
    """
    command = [sys.executable, "-m", "hybridsync", "train", f"--config={DIGITS}", f"--workdir={workdir}", *flags]
    samples: Samples = {}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        while True:
            try:
                job.wait(EVERY_SECS)
                break
            except subprocess.TimeoutExpired:
                for name, pid in roles(workdir).items():
                    if (found := memory(pid)) is not None:
                        samples.setdefault(name, []).append((SYSTEM_CLOCK.monotonic(), found))
        if job.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {job.returncode}")
    return samples


def roles(workdir: Path) -> dict[str, int]:
    """Return the processes of a run's roles, once it has any."""
    if not workdir.exists():
        return {}
    return {f"{event['role']} {event['id']}": event["pid"] for event in read_events(workdir, "role_started")}


def thirds(values: list[float]) -> tuple[float, float]:
    """Return the means of the first and of the last third.

    >>> thirds([1.0, 3.0, 9.0, 9.0, 5.0, 5.0])
    (2.0, 5.0)
    """
    size = max(1, len(values) // 3)
    return sum(values[:size]) / size, sum(values[-size:]) / size


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=200_000)
    parser.add_argument("--skipped_secs", type=float, default=20.0)
    options = parser.parse_args()
    flags = [f"--plan={PLAN}", "--workers=4", f"--set=workload={options.units}", "--set=model.hidden=(256, 256)"]
    with tempfile.TemporaryDirectory() as folder:
        samples = watched(Path(folder) / "run", *flags)
    rows = []
    for name, found in samples.items():
        kept = [each for at, each in found if at > found[0][0] + options.skipped_secs]
        for kind in KINDS.values():
            first, last = thirds([each[kind] for each in kept])
            rows += [
                Row(f"{name}, {kind}: first third", first, "MB", load=load()),
                Row(f"{name}, {kind}: last third", last, "MB", load=load()),
            ]
    secs = max(found[-1][0] - found[0][0] for found in samples.values())
    report(f"Memory of each role over {secs:.0f} s", rows, units=options.units)


if __name__ == "__main__":
    main()
