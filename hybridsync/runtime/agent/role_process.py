"""One role's process, seen from the supervisor: its restarts, its reports, its log."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.runtime.agent.fork_server import ForkServerClient, log_tail, open_at_end
from hybridsync.runtime.role import role_pipe

_LOOK_SECS = 1.0


class RoleProcess:
    """Orders a role's process and keeps hold of it, once `has_started` says that it is there.

    It gets a session of its own, so that Ctrl-C reaches the supervisor alone. The chief keeps stdout (its
    progress line); all else goes to the log. It dies with this process.

    Args:
      fork_server_client: client of the fork server that starts the process.
      role: "chief", "server" or "worker".
      role_id: index of the role within its kind.
      restart_count: number of processes that had this place before.
      log_path: path of the log; appended to.
      open_log: opens a log at its end.
      lock_fd: file descriptor of the workdir's lock, which this role holds, too.
      environment: further variables of its environment.

    Attributes:
      role: as given.
      role_id: as given.
      restart_count: as given.
      pid: process id, once it has started.
      pidfd: readable once the process has ended.
      report_fd: readable when it has reported.
      reports_ended: it has closed its end, so that `report_fd` stays readable.
      unit: unit that a worker was computing when it ended; -1 for none, and before it is reaped.
      environment: further variables of its environment.

    Raises:
      CannotStart, ForkServerLost: the process cannot be ordered.
      OSError: its log cannot be opened.
    """

    def __init__(
        self,
        fork_server_client: ForkServerClient,
        role: str,
        role_id: int,
        restart_count: int,
        log_path: Path,
        open_log: Callable[[Path], BinaryIO] = open_at_end,
        lock_fd: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.role = role
        self.role_id = role_id
        self.restart_count = restart_count
        self._fork_server_client = fork_server_client
        self._ordered = SYSTEM_CLOCK.monotonic()
        self.reports_ended = False
        self._log_path = log_path
        self._partial = b""
        self._reaped = False
        self.pid = self.pidfd = -1
        self.unit = -1
        self._shared_fd = os.memfd_create(f"{role}-{role_id}-shared")
        os.truncate(self._shared_fd, role_pipe.SHARED_BYTES)
        self.report_fd, report_end = os.pipe()
        os.set_blocking(self.report_fd, False)
        spec_end, self._spec_fd = os.pipe()
        self.environment = {role_pipe.ROLE: role, role_pipe.ROLE_ID: str(role_id), **(environment or {})}
        try:
            with open_log(log_path) as log:
                with contextlib.suppress(OSError):  # a full disk ends no run
                    os.write(log.fileno(), f"--- {self.name}, restart count {restart_count}\n".encode())
                stdout = 1 if role == "chief" else log.fileno()
                given = (spec_end, stdout, log.fileno(), report_end, self._shared_fd)
                fork_server_client.order(self.environment, given if lock_fd is None else (*given, lock_fd))
        except BaseException:
            self.close()
            raise
        finally:
            os.close(report_end)
            os.close(spec_end)

    def has_started(self, secs: float = 0.0) -> bool:
        """Return whether the process is there, after a wait of up to `secs`; nothing else may be called before it is.

        Raises:
          CannotStart, ForkServerLost: it cannot be started, and this object is closed.
          OSError: it cannot be watched, and this object is closed.
        """
        try:
            pid = self._fork_server_client.answer(secs)
            if pid is not None:
                self.pid, self.pidfd = pid, os.pidfd_open(pid)
        except BaseException:
            self.close()
            raise
        return pid is not None

    def started(self) -> RoleProcess:
        """Wait until the process is there, and return this object.

        Raises:
          CannotStart, ForkServerLost, OSError: see `has_started`.
        """
        while not self.has_started(_LOOK_SECS):
            continue
        return self

    def close(self) -> None:
        """Let go of what this process holds of it: one that has no spec yet ends by that."""
        for descriptor in (self.pidfd, self.report_fd, self._shared_fd, self._spec_fd):
            if descriptor >= 0:
                os.close(descriptor)

    @property
    def name(self) -> str:
        """Name of the role in messages."""
        return self.role if self.role == "chief" else f"{self.role} {self.role_id}"

    def lived_secs(self) -> float:
        """Return the seconds since it was ordered."""
        return SYSTEM_CLOCK.monotonic() - self._ordered

    def send_spec(self, spec: role_pipe.RoleSpec) -> None:
        """Tell the role what to do; if it is dead already, its pidfd says so."""
        self._tell(asdict(spec))

    def send_chief(self, address: str) -> None:
        """Tell a role that has its spec where the chief serves; if it is dead already, its pidfd says so."""
        self._tell({"chief": address})

    def send_keys(self, keys: role_pipe.RoleKeys) -> None:
        """Tell a role that has its spec what it proves itself with from now on."""
        os.set_blocking(self._spec_fd, False)
        try:
            self._tell({"keys": asdict(keys)})
        except BlockingIOError:  # it has read nothing for so long that the pipe is full: it hangs
            self.kill()
        finally:
            os.set_blocking(self._spec_fd, True)

    def _tell(self, told: dict[str, Any]) -> None:
        line = json.dumps(told).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            if os.write(self._spec_fd, line) < len(line):
                raise BlockingIOError

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
        return bool(role_pipe.readable(timeout_secs, self.pidfd))

    @property
    def pulse(self) -> int:
        """Return a count that has changed if Python has run in the process meanwhile (see `Child.show_life`)."""
        form = role_pipe.PULSE_FORMAT
        return form.unpack(os.pread(self._shared_fd, form.size, role_pipe.UNIT_FORMAT.size))[0]

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
        self.unit = role_pipe.UNIT_FORMAT.unpack(os.pread(self._shared_fd, role_pipe.UNIT_FORMAT.size, 0))[0] - 1
        self.close()
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
