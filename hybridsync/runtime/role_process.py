"""One role's process, seen from the supervisor: its life, its reports, its log."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hybridsync.clock import SYSTEM_CLOCK
from hybridsync.durable import private
from hybridsync.runtime import child
from hybridsync.runtime.nursery import Nursery, log_tail


class RoleProcess:
    """Start a role and keep hold of its process.

    It gets a session of its own, so that Ctrl-C reaches the supervisor alone. The chief keeps stdout (its
    progress line); all else goes to the log. It dies with this process.

    Args:
      nursery: starts it.
      role: "chief", "server" or "worker".
      role_id: its number among its kind.
      life: how many processes had this place before.
      log_path: appended to.

    Attributes:
      role: as given.
      role_id: as given.
      life: as given.
      pid: process id.
      pidfd: readable once the process has ended.
      report_fd: readable when it has reported.
      reports_ended: it has closed its end, so that `report_fd` stays readable.
      error: (message, exit code) that it reported, None if it did not.
      unit: that a worker was computing when it ended; -1 for none, and before it is reaped.

    Raises:
      RoleLost, WaitTimeout: it cannot be started.
      OSError: its log cannot be opened.
    """

    def __init__(self, nursery: Nursery, role: str, role_id: int, life: int, log_path: Path) -> None:
        self.role = role
        self.role_id = role_id
        self.life = life
        self.error: tuple[str, int] | None = None
        self.reports_ended = False
        self._log_path = log_path
        self._partial = b""
        self._reaped = False
        self.unit = -1
        self._unit_fd = os.memfd_create(f"{role}-{role_id}-unit")
        os.truncate(self._unit_fd, child.UNIT_FORMAT.size)
        self.report_fd, report_end = os.pipe()
        os.set_blocking(self.report_fd, False)
        spec_end, self._spec_fd = os.pipe()
        environment = {child.ROLE: role, child.ROLE_ID: str(role_id)}
        if role != "worker":
            environment["JAX_PLATFORMS"] = "cpu"
        try:
            with open(log_path, "ab", opener=private) as log:
                with contextlib.suppress(OSError):  # a full disk ends no run
                    os.write(log.fileno(), f"--- {self.name}, life {life}\n".encode())
                stdout = 1 if role == "chief" else log.fileno()
                self.pid = nursery.start(
                    environment, (spec_end, stdout, log.fileno(), report_end, self._unit_fd)
                )
            self.pidfd = os.pidfd_open(self.pid)
        except BaseException:
            for descriptor in (self.report_fd, self._unit_fd, self._spec_fd):
                os.close(descriptor)
            raise
        finally:
            os.close(report_end)
            os.close(spec_end)

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.role if self.role == "chief" else f"{self.role} {self.role_id}"

    def send_spec(self, spec: child.RoleSpec) -> None:
        """Tell the role what to do; if it is dead already, its pidfd says so."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._spec_fd, json.dumps(asdict(spec)).encode() + b"\n")

    def read_reports(self) -> list[dict[str, Any]]:
        """Return the whole lines that have come since the last call."""
        while True:
            try:
                chunk = os.read(self.report_fd, 1 << 16)
            except BlockingIOError:
                break
            if not chunk:
                self.reports_ended = True
                break
            self._partial += chunk
        *lines, self._partial = self._partial.split(b"\n")
        return [json.loads(line) for line in lines]

    def wait_ended(self, timeout_secs: float) -> bool:
        """Wait for the process to end, and return whether it has."""
        return bool(select.select([self.pidfd], [], [], max(0.0, timeout_secs))[0])

    def kill(self) -> None:
        """Kill the process and whatever it started, now."""
        if not self._reaped:  # the number still is its own
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    def reap(self) -> int:
        """Collect an ended process and what it left running; returns its code, negative for a signal."""
        self.kill()
        _, status = os.waitpid(self.pid, 0)
        self._reaped = True
        self.unit = child.UNIT_FORMAT.unpack(os.pread(self._unit_fd, child.UNIT_FORMAT.size, 0))[0] - 1
        for descriptor in (self.pidfd, self.report_fd, self._unit_fd, self._spec_fd):
            os.close(descriptor)
        return os.waitstatus_to_exitcode(status)

    def log_tail(self) -> str:
        """Return where the log is and its last lines."""
        return log_tail(self._log_path)


def describe_exit(code: int) -> str:
    """Put an exit code into words.

    >>> describe_exit(-9), describe_exit(3)
    ('signal SIGKILL', 'exit 3')
    """
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit {code}"


class CrashLoop:
    """Tell a role that fails again and again by itself from one that is killed from outside.

    >>> loop = CrashLoop(limit=1, window_secs=30.0)
    >>> loop.add("worker 3", now=0.0), loop.add("worker 3", now=40.0), loop.add("worker 3", now=41.0)
    (False, False, True)

    Args:
      limit: failures of one role that are borne within the window.
      window_secs: length of the window.
    """

    def __init__(self, limit: int = 3, window_secs: float = 30.0) -> None:
        self._limit = limit
        self._window_secs = window_secs
        self._failures: dict[str, list[float]] = {}

    def add(self, name: str, now: float | None = None) -> bool:
        """Count a failure, and return whether that was one too many."""
        now = SYSTEM_CLOCK.monotonic() if now is None else now
        recent = [then for then in self._failures.get(name, []) if now - then < self._window_secs]
        self._failures[name] = [*recent, now]
        return len(recent) >= self._limit
