"""A training job in processes of its own, started as a user would, watched through what it leaves, and hurt by pid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybridsync.clock import SYSTEM_CLOCK
from hybridsync.telemetry.events import read_events
from hybridsync.telemetry.lines import read_lines

ROOT = Path(__file__).resolve().parents[2]
POLL_SECS = 0.02


class Job:
    """`python -m launch.train` with some flags.

    Args:
      workdir: of the run.
      config: name of a file in configs/.
      flags: more flags.
      environment: more environment variables.
    """

    def __init__(
        self, workdir: Path, config: str, *flags: str, environment: dict[str, str] | None = None
    ) -> None:
        self.workdir = workdir
        self._waiter = threading.Event()
        command = [sys.executable, "-m", "launch.train", f"--config=configs/{config}.py", f"--workdir={workdir}"]
        self.process = subprocess.Popen(
            [*command, *flags],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    def wait(self, secs: float = 180.0) -> int:
        """Return the exit code; what it printed is in `output`."""
        try:
            self.output, _ = self.process.communicate(timeout=secs)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.output, _ = self.process.communicate(timeout=30)
            raise AssertionError(f"the job did not end within {secs:g} s:\n{self.output}\n{self.logs()}") from None
        return self.process.returncode

    def until(self, condition: Callable[[], Any], secs: float = 120.0, what: str = "a condition") -> Any:
        """Wait until `condition()` is true and return it; fails when the job ends first or the time is up."""
        deadline = SYSTEM_CLOCK.monotonic() + secs
        while not (found := condition()):
            ended = self.process.poll() is not None
            if ended or SYSTEM_CLOCK.monotonic() > deadline:
                if ended:
                    self.wait()
                reason = f"the job ended ({self.process.returncode})" if ended else f"{secs:g} s passed"
                raise AssertionError(f"{reason} before {what}:\n{self.logs()}")
            self._waiter.wait(POLL_SECS)
        return found

    def pause(self, secs: float) -> None:
        """Let the job run on for a while: the gap between two faults."""
        self._waiter.wait(secs)

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the events so far."""
        return read_events(self.workdir, kind) if (self.workdir / "events.jsonl").exists() else []

    def units(self) -> int:
        """Return the units applied by the last line of metrics.jsonl."""
        path = self.workdir / "metrics.jsonl"
        return max((line["units"] for line in read_lines(path)), default=0) if path.exists() else 0

    def live_workers(self) -> dict[int, int]:
        """Return id -> pid of the workers that have joined and are not known to be lost."""
        alive: dict[int, int] = {}
        for event in self.events():
            if event["kind"] == "run_started":
                alive.clear()
            if event["kind"] == "role_started" and event["role"] == "worker":
                alive[event["id"]] = event["pid"]
            if event["kind"] == "role_lost" and event["role"] == "worker":
                alive.pop(event["id"], None)
        return alive

    def kill(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one of the job's processes."""
        os.kill(pid, number)

    def kill_everything(self) -> None:
        """Kill the supervisor; its children die with it."""
        self.process.kill()
        self.output, _ = self.process.communicate(timeout=30)

    def summary(self) -> dict[str, Any]:
        """Return summary.json."""
        return json.loads((self.workdir / "summary.json").read_text())

    def logs(self) -> str:
        """Return the end of every role's log."""
        return "\n".join(
            f"== {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:])
            for path in sorted((self.workdir / "logs").glob("*.log"))
        )
