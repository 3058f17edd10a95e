"""Whether a role's memory grows with time, and its peak by the size of a model: `python -m benchmarks.role_memory`.

Jobs over many switches. Each role's memory (resident, and what no other process shares, from /proc/PID/smaps_rollup)
is sampled every second. The mean of the first third of the samples stands beside that of the last third. What a role
takes to get going, in the first `--skipped_secs` of its phases, is left out.

The second job has a large model. The peak of each of its roles (VmHWM of /proc/PID/status, pages that it shares
counted in full), less that of the same role in the first job, is a multiple of the bytes of the model's parameters.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.jobs import DIGITS, ROOT, Row, load, report
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.telemetry.events import read_events

EVERY_SECS = 1.0
PLAN = "bsp:12%,asp:18%,bsp:10%,asp:15%,bsp:10%,asp:15%,bsp:10%,asp"
KINDS = {"Rss:": "resident", "Pss_Anon:": "own"}
PEAK = "peak"
SYNTHETIC = "configs/synthetic.py"
LARGE_PLAN = "bsp:25%,asp:25%,bsp:25%,asp"
LARGE_SIZES = (3072, 4096, 1024, 10)
"""Features of the large model's layers."""
Samples = dict[str, list[tuple[float, dict[str, float]]]]


def memory(pid: int) -> dict[str, float] | None:
    """Return the megabytes of a process, by kind; None where it has ended."""
    names = {**KINDS, "VmHWM:": PEAK}
    try:
        found = [Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8") for name in ("smaps_rollup", "status")]
    except OSError:
        return None
    fields = [line.split() for line in "".join(found).splitlines()]
    return {names[name]: float(value[0]) / 1024 for name, *value in fields if name in names} or None


def num_parameters(sizes: Sequence[int]) -> int:
    """Return the parameters of an MLP with layers of so many features.

    >>> num_parameters([2, 3, 1])
    13
    """
    return sum((before + 1) * after for before, after in itertools.pairwise(sizes))


def watched(workdir: Path, config: str, *flags: str) -> Samples:
    """Run a job and return the samples of each role.

    Raises:
      RuntimeError: the job did not complete.
    """
    command = [sys.executable, "-m", "hybridsync", "train", f"--config={config}", f"--workdir={workdir}", *flags]
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


def measured(skipped_secs: float, config: str, *flags: str) -> tuple[Samples, list[Row]]:
    """Run a job, and return its samples and whether its roles grow."""
    with tempfile.TemporaryDirectory() as folder:
        samples = watched(Path(folder) / "run", config, *flags)
    rows = []
    for name, found in samples.items():
        kept = [each for at, each in found if at > found[0][0] + skipped_secs]
        for kind in KINDS.values():
            first, last = thirds([each[kind] for each in kept])
            rows += [
                Row(f"{name}, {kind}: first third", first, "MB", load=load()),
                Row(f"{name}, {kind}: last third", last, "MB", load=load()),
            ]
    return samples, rows


def most(samples: Samples, name: str) -> float:
    """Return the most that a role has had at a time."""
    return max(each[PEAK] for _, each in samples[name])


def secs_of(samples: Samples) -> float:
    """Return for how long a job was sampled."""
    return max(found[-1][0] - found[0][0] for found in samples.values())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=200_000)
    parser.add_argument("--large_units", type=int, default=2_000, help="of the large model")
    parser.add_argument("--large_workers", type=int, default=2)
    parser.add_argument("--skipped_secs", type=float, default=20.0)
    options = parser.parse_args()
    flags = [f"--plan={PLAN}", "--workers=4", f"--set=workload={options.units}", "--set=model.hidden=(256, 256)"]
    small, rows = measured(options.skipped_secs, DIGITS, *flags)
    report(f"Memory of each role over {secs_of(small):.0f} s, 85,002 parameters", rows, units=options.units)
    flags = [f"--plan={LARGE_PLAN}", f"--workers={options.large_workers}", f"--set=workload={options.large_units}"]
    flags += [f"--set=model.hidden={LARGE_SIZES[1:-1]}", "--set=unit_size=4"]
    large, rows = measured(options.skipped_secs, SYNTHETIC, *flags)
    parameters = num_parameters(LARGE_SIZES)
    of_parameters = 4 * parameters / 2**20
    for name in [name for name in large if name in small]:
        more = most(large, name) - most(small, name)
        rows += [
            Row(f"{name}, peak", most(large, name), "MB", load=load()),
            Row(f"{name}, peak in the first job", most(small, name), "MB", load=load()),
            Row(f"{name}, difference by the parameters", more / of_parameters, "x", load=load()),
        ]
    title = f"Memory of each role over {secs_of(large):.0f} s, {parameters:,} parameters of {of_parameters:.0f} MB"
    report(title, rows, units=options.large_units)


if __name__ == "__main__":
    main()
