"""A supervised run of fake roles, and what it has told the chief."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUN = Path(__file__).with_name("supervised_run.py")
ROOT = Path(__file__).parents[2]
WAIT_SECS = 90.0
CHIEF = "127.0.0.1:4711"
NUM_PROCESSES = 5  # supervisor, chief, server, two workers


class Run:
    """One supervised run and what it has told the chief."""

    def __init__(self, workdir: Path, actions: dict[str, Any], options: dict[str, Any]) -> None:
        self.workdir = workdir
        under = [sys.executable, "-c", options.pop("under")] if "under" in options else []  # program of the parent
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        for name in ("JAX_PLATFORMS", "TF_CPP_MIN_LOG_LEVEL"):  # jax sets the second where it is imported
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [*under, sys.executable, str(RUN), str(workdir), json.dumps(actions), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # so that a line of stderr which has arrived is seen where one is waited for
            cwd=ROOT,
            env=environment,
        )
        self.calls: list[dict[str, Any]] = []
        self._buffer = b""

    def next_call(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        deadline = time.monotonic() + WAIT_SECS
        while b"\n" not in self._buffer:
            ready = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, f"nothing more is told after {self.calls}"
            chunk = os.read(self.process.stdout.fileno(), 65536)
            assert chunk, f"the supervisor ended after {self.calls}"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        self.calls.append(json.loads(line))
        return self.calls[-1]

    def wait_call(self, **fields: Any) -> dict[str, Any]:
        while True:
            call = self.next_call()
            if fields.items() <= call.items():
                return call

    def silent(self, secs: float) -> bool:
        """Return whether nothing is told for so long."""
        assert self.process.stdout is not None and not self._buffer
        return not select.select([self.process.stdout], [], [], secs)[0]

    def agent(self, host: int, **said: Any) -> None:
        """Have the agent of a host say something (see supervised_run.py)."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"host": host, **said}).encode() + b"\n")
        self.process.stdin.flush()

    def started(self) -> dict[tuple[str, int], int]:
        """Wait until every role has been told of; returns their pids."""
        pids = {}
        while len(pids) < NUM_PROCESSES:
            call = self.wait_call(call="role_started")
            pids[call["role"], call["id"]] = call["pid"]
        return pids

    def children(self) -> set[int]:
        """Return the pids of the supervisor's children."""
        return {
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        }

    def spec_of(self, pid: int) -> dict[str, Any]:
        """Wait until the role has its spec."""
        return self.wait_spec(pid=pid)

    def wait_spec(self, **fields: Any) -> dict[str, Any]:
        deadline = time.monotonic() + WAIT_SECS
        specs = self.workdir / "specs.jsonl"
        while time.monotonic() < deadline:
            for line in specs.read_text().split("\n")[:-1] if specs.exists() else ():  # a last one may be half written
                if fields.items() <= (record := json.loads(line)).items():
                    return record
            select.select([], [], [], 0.01)
        raise AssertionError(f"no role ever had a spec with {fields}")

    def stderr_line(self) -> str:
        """Wait for the next line that the supervisor says to its user."""
        assert self.process.stderr is not None
        ready = select.select([self.process.stderr], [], [], WAIT_SECS)[0]
        assert ready, "nothing is said"
        return self.process.stderr.readline().decode()

    def end(self) -> tuple[int, str]:
        """Wait for the supervisor's end; returns its code and what it wrote to stderr."""
        _, written = self.process.communicate(timeout=WAIT_SECS)
        return self.process.returncode, written.decode()


Begin = Callable[..., Run]


def seed_of(run: Run, roles: dict[tuple[str, int], int], former: int = 0) -> int:
    """Wait for the supervisor's child that is no role; returns its pid."""
    deadline = time.monotonic() + WAIT_SECS
    while time.monotonic() < deadline:
        if found := run.children() - {*roles.values(), former}:
            return found.pop()
        select.select([], [], [], 0.01)
    raise AssertionError("no fork server was ever started")


def gone(pid: int) -> bool:
    """Wait for the end of a process that may not be our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], WAIT_SECS)[0])
    finally:
        os.close(descriptor)
