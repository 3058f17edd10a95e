"""A run of worker processes while it goes: its processes, their memory on the GPU, and its progress."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.jobs import ROOT
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.telemetry.events import read_events
from hybridsync.telemetry.metrics import read_metrics

RECIPE = "benchmarks/gpu/recipe.py"
WAIT_SECS = 150.0
END_SECS = 60.0
LOOK_SECS = 0.02
ENDLESS = 10_000_000


class Running:
    """One run of `hybridsync train`, which this ends.

    Args:
      workdir: where it writes.
      flags: of the command.
    """

    def __init__(self, workdir: Path, *flags: str) -> None:
        self.workdir = workdir
        self._output = workdir.with_suffix(".out")
        command = [sys.executable, "-m", "hybridsync.cli.train", f"--config={RECIPE}", f"--workdir={workdir}", *flags]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Return what a condition says once it is true.

        Raises:
          RuntimeError: it does not come true in time, or the run has ended before.
        """
        deadline = SYSTEM_CLOCK.monotonic() + WAIT_SECS
        while not (found := condition()):
            if self.process.poll() is not None or SYSTEM_CLOCK.monotonic() > deadline:
                raise RuntimeError(
                    f"{what}: not within {WAIT_SECS:g} s, or the run ended (exit {self.process.poll()}): "
                    f"{self._output.read_text(errors='replace')[-1500:]}"
                )
            threading.Event().wait(LOOK_SECS)
        return found

    def pids(self) -> dict[str, int]:
        """Return the newest process of each role, as "worker 0"."""
        started = read_events(self.workdir, "role_started") if self.workdir.exists() else []
        return {f"{event['role']} {event['id']}": event["pid"] for event in started}

    def units(self) -> int:
        """Return the units applied, by the newest line of metrics.jsonl."""
        lines = read_metrics(self.workdir) if (self.workdir / "metrics.jsonl").exists() else []
        return lines[-1]["units"] if lines else 0

    def progress_after(self, units: int) -> float:
        """Return the seconds until more than so many units have been applied."""
        started = SYSTEM_CLOCK.monotonic()
        self.until(lambda: self.units() > units, f"progress beyond unit {units}")
        return SYSTEM_CLOCK.monotonic() - started

    def fork_server(self) -> int:
        """Return the process of the supervisor's fork server: its one child that has no role."""
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        roles = {*self.pids().values()}
        (pid,) = {int(pid) for pid in Path(children).read_text().split()} - roles
        return pid


@contextmanager
def running(*flags: str) -> Iterator[Running]:
    """Yield a run with these flags, and end it with its processes."""
    with tempfile.TemporaryDirectory() as folder:
        run = Running(Path(folder) / "run", f"--set=workload={ENDLESS}", "--set=telemetry.log_secs=0.1", *flags)
        try:
            yield run
        finally:
            run.process.terminate()
            try:
                run.process.wait(END_SECS)
            except subprocess.TimeoutExpired:
                run.process.kill()  # its roles die with it
                run.process.wait()


def memory_of_processes() -> dict[int, int] | None:
    """Return process id -> MiB on the GPUs; None where nvidia-smi is not there."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    told = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    rows = [line.split(",") for line in told.splitlines() if line.strip()]
    return {int(pid): int(used) for pid, used in rows if used.strip().isdigit()}


def environment_of(pid: int) -> dict[str, str]:
    """Return what a process was told of its devices; a forked one tells it by its own variables alone."""
    text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def has_cuda(pid: int) -> bool:
    """Return whether a process has loaded CUDA."""
    return "libcuda" in Path(f"/proc/{pid}/maps").read_text()


def is_alive(pid: int) -> bool:
    """Return whether a process is there."""
    return os.path.exists(f"/proc/{pid}")
