"""Orders roles' processes for a supervisor from a fork server (see fork_server.py), and replaces one that fails."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import RoleLost
from hybridsync.runtime.fork_server import FORK_SERVER_FD, ORDER_BYTES
from hybridsync.runtime.host_resources import ENVIRONMENT
from hybridsync.runtime.role_pipe import SUPERVISOR_PID, process_control, readable
from hybridsync.storage.durable import private

START_SECS = 120.0
"""A fork server imports for so long at most."""
ANSWER_SECS = 10.0
"""One that has imported everything forks within milliseconds: after so long it stands still, and is replaced."""
END_SECS = 2.0
TAIL_LINES = 20
_PR_SET_CHILD_SUBREAPER = 36


class CannotStart(RoleLost):
    """The machine has too many processes, or too little memory, for another one; a later try may succeed."""


class ForkServerLost(RoleLost):
    """The fork server ended, or stands still, and did not start what was ordered; another one may."""


def open_at_end(path: Path) -> BinaryIO:
    """Open a log to append to it."""
    return open(path, "ab", opener=private)


class ForkServerClient:
    """Starts processes for roles, as children of this process. To be made on the main thread, with which they end.

    One process is ordered at a time. No call waits for the fork server but `answer`, for as long as its caller says.

    Args:
      command: program and arguments; the program takes up its line by `fork_server.connect`.
      log_path: log of the fork server's own output; appended to.
      open_log: opens a log at its end.

    Raises:
      OSError: the fork server cannot be started.
    """

    def __init__(
        self, command: Sequence[str], log_path: Path, open_log: Callable[[Path], BinaryIO] = open_at_end
    ) -> None:
        self._command = list(command)
        self._log_path, self._open_log = log_path, open_log
        process_control(_PR_SET_CHILD_SUBREAPER, 1)
        self._deadline = 0.0  # of the answer to the last order
        self._has_answered = False
        self._process, self._line = self._start()

    def _start(self) -> tuple[subprocess.Popen, socket.socket]:
        line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.setblocking(False)
        self._has_answered = False
        environment = {
            **ENVIRONMENT,
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            FORK_SERVER_FD: str(other.fileno()),
            SUPERVISOR_PID: str(os.getpid()),
        }
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        # The user's file is run there: a process that has loaded CUDA cannot be forked. A worker's order names its
        # platform (`devices.environment`); the chief and servers stay on CPU.
        environment["JAX_PLATFORMS"] = "cpu"
        with other, self._open_log(self._log_path) as log:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=(other.fileno(),),
                start_new_session=True,
            )
        return process, line

    @property
    def pid(self) -> int:
        """The fork server's process id."""
        return self._process.pid

    def ensure_running(self) -> bool:
        """Start another fork server where the last one has ended: its roles go on, and the next ones need one.

        Returns whether it had ended.

        Raises:
          OSError: the next one cannot be started.
        """
        ended = self._process.poll() is not None
        if ended:
            self._line.close()
            self._process, self._line = self._start()
        return ended

    @property
    def fd(self) -> int:
        """File descriptor that is readable when the answer to an order has come, or the fork server has ended."""
        return self._line.fileno()

    def order(self, environment: Mapping[str, str], descriptors: Sequence[int]) -> None:
        """Order a process in a session of its own; `answer` tells what became of it.

        Args:
          environment: environment variables of the process in addition to this process's.
          descriptors: file descriptors of the process: stdin, stdout, stderr, the end of its reports, the memory of its
            unit.

        Raises:
          CannotStart: there are too many processes, or there is too little memory.
          ForkServerLost: the fork server ended.
        """
        order = json.dumps({"environment": dict(environment)}).encode()
        try:
            self.ensure_running()
            socket.send_fds(self._line, [order], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            raise self._ended() from None
        except OSError as error:
            raise _none_can_be_started(error) from error
        self._deadline = SYSTEM_CLOCK.monotonic() + (ANSWER_SECS if self._has_answered else START_SECS)

    def answer(self, secs: float = 0.0) -> int | None:
        """Return the id of the process that was ordered last; None where no answer has come within `secs`.

        Raises:
          CannotStart: there are too many processes, or there is too little memory.
          ForkServerLost: the fork server ended, or has not answered for too long; a new one takes its place.
        """
        if not readable(secs, self._line.fileno()):
            if SYSTEM_CLOCK.monotonic() < self._deadline:
                return None
            self._end()  # its answer, should it come, would be taken for that to the next order
            raise ForkServerLost(
                f"the fork server, process {self._process.pid}, has not answered for "
                f"{ANSWER_SECS if self._has_answered else START_SECS:g} s; {log_tail(self._log_path)}"
            )
        try:
            packet = self._line.recv(ORDER_BYTES)
        except ConnectionResetError:
            packet = b""
        if not packet:
            raise self._ended()
        self._has_answered = True
        told = json.loads(packet)
        if "error" in told:
            raise _none_can_be_started(told["error"])
        return told["pid"]

    def _ended(self) -> ForkServerLost:
        """Reap a fork server that has closed its line."""
        try:
            self._process.wait(END_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return ForkServerLost(
            f"the fork server ended, exit {self._process.returncode}, before it started one; {log_tail(self._log_path)}"
        )

    def close(self) -> None:
        """End the fork server, and take in no more orphans; processes that it has started go on."""
        process_control(_PR_SET_CHILD_SUBREAPER, 0)
        self._end()

    def _end(self) -> None:
        self._line.close()
        self._process.kill()
        self._process.wait()


def _none_can_be_started(why: object) -> CannotStart:
    return CannotStart(f"no process can be started for a role: {why}; free memory, or raise the limit of processes")


def log_tail(path: Path) -> str:
    """Return where a log is and its last lines."""
    try:
        with open(path, encoding="utf-8", errors="replace") as log:
            lines = "".join(deque(log, TAIL_LINES))
    except OSError as error:
        return f"its log cannot be read: {error}"
    return f"last lines of {path}:\n{lines.rstrip()}"
