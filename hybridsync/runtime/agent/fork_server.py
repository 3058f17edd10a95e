"""The fork server: it has imported what roles need, and forks one whenever its supervisor asks for it.

Importing is most of what a new process costs (2 s of a processor for each role); a fork has it at once, and shares the
memory. A role is forked twice, so that the process between them ends and the role becomes a child of the supervisor,
which adopts such orphans (`ForkServerClient`): the fork server may die, and none of its roles does.

The order is a packet on a socket, {"environment": {...}}, with its descriptors: stdin, stdout, stderr, the report's
end of a pipe, the memory of the unit, and for a chief the workdir's lock. The answer is {"pid": n} or {"error": text}.

Only the forking thread survives a fork. If a configuration file has started other threads while it was read, for
instance by computing with JAX, a role is not forked but started as a program of its own, which has to import everything
first.

`ForkServer` is in that process, `ForkServerClient` in the supervisor's or the agent's.
"""

from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import RoleLost
from hybridsync.devices.environment import NUM_CPU_DEVICES
from hybridsync.runtime.agent.host_resources import ENVIRONMENT
from hybridsync.runtime.end_signals import ignore_signals
from hybridsync.runtime.role.role_pipe import (
    LOCK_FD,
    REPORT_FD,
    ROLE,
    SUPERVISOR_PID,
    UNIT_FD,
    Child,
    live_under,
    process_control,
    readable,
)
from hybridsync.storage.durable import private

FORK_SERVER_FD = "HYBRIDSYNC_FORK_SERVER_FD"
ORDER_BYTES = 1 << 16
NUM_DESCRIPTORS = 6


def is_role() -> bool:
    """Return whether a supervisor, or a host's agent, started this process; only before `connect`."""
    return FORK_SERVER_FD in os.environ or ROLE in os.environ


def connect() -> Child | ForkServer | None:
    """Take up the line to the supervisor, before any slow import; None when no supervisor started this process.

    Raises:
      RoleLost: the supervisor has died meanwhile.
    """
    descriptor = os.environ.pop(FORK_SERVER_FD, None)
    if descriptor is None:
        return Child.from_environment()
    supervisor = int(os.environ.pop(SUPERVISOR_PID))
    live_under(supervisor, "the fork server")
    return ForkServer(int(descriptor), supervisor)


class ForkServer:
    """The fork server's line to its supervisor. Made by `connect`.

    Args:
      descriptor: file descriptor of a socket that keeps packets apart.
      supervisor: process id of the supervisor.
    """

    def __init__(self, descriptor: int, supervisor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._line = socket.socket(fileno=descriptor)
        self._supervisor = supervisor
        self._folder = os.getcwd()

    def serve(self, *modules: str) -> Child:
        """Serve orders, and return in each process that becomes a role; the server itself ends with its supervisor.

        To be called on the main thread.

        Args:
          modules: names of the modules that the roles need, imported before the first of them is forked.

        Raises:
          RoleLost: in a role: the supervisor has died meanwhile.
        """
        gc.disable()  # what is imported stays: to look for garbage in it was a sixth of the time
        for module in modules:
            importlib.import_module(module)
        # What is here counts as alive: no collection of a role's touches, and so copies, its pages. To find the 1,200
        # of 286,000 objects that are garbage would take .17 s. They are out of reach before a collection may begin.
        gc.freeze()
        gc.enable()
        own, alone = os.getpid(), _has_one_thread()
        while True:
            packet, descriptors, _, _ = socket.recv_fds(self._line, ORDER_BYTES, NUM_DESCRIPTORS)
            if not packet:
                sys.exit()
            if error := self._fork_twice():
                self._line.send(json.dumps({"error": os.strerror(error)}).encode())
            if os.getpid() != own:
                return self._become(json.loads(packet)["environment"], descriptors, alone)
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork_twice(self) -> int:
        """Fork a process, in a session of its own, whose parent is the nearest ancestor that takes in orphans.

        Returns an error's number, 0 for none; in the new process, which has answered the order, too.
        """
        try:
            if first := os.fork():
                return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        except OSError as error:
            return error.errno or errno.EAGAIN
        between = os.getpid()
        try:
            if os.fork():
                os._exit(0)
        except OSError as error:
            os._exit(error.errno or errno.EAGAIN)
        while os.getppid() == between:
            os.sched_yield()
        os.setsid()
        # Sent by the role itself: whatever happens to the fork server, the supervisor hears of exactly the roles that
        # exist.
        self._line.send(json.dumps({"pid": os.getpid()}).encode())
        self._line.close()
        return 0

    def _become(self, environment: dict[str, str], descriptors: list[int], alone: bool) -> Child:
        stdin, stdout, stderr, report, unit, *lock = descriptors
        for descriptor, number in ((stdin, 0), (stdout, 1), (stderr, 2)):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.update(environment)
        os.environ.update({REPORT_FD: str(report), UNIT_FD: str(unit), SUPERVISOR_PID: str(self._supervisor)})
        for descriptor in lock:
            os.environ[LOCK_FD] = str(descriptor)
        if not alone:
            os.chdir(self._folder)  # the file runs again, and may change it from here
            _be_program(report, unit, *lock)
        if "jax" in sys.modules:  # it has read the fork server's environment, not this role's
            import jax

            jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS"))
            if number := environment.get(NUM_CPU_DEVICES):
                jax.config.update("jax_num_cpu_devices", int(number))
        if "numpy.random" in sys.modules:  # as the fork does with Python's own: else all roles would draw the same
            import numpy.random

            numpy.random.seed()
        child = Child.from_environment()
        assert child is not None, "an order's environment names a role"
        return child


def _be_program(*inherited: int) -> NoReturn:
    """Start this process's program anew, which takes the role up from the environment."""
    for descriptor in inherited:
        os.set_inheritable(descriptor, True)
    ignore_signals()
    os.execv(sys.executable, sys.orig_argv)


def _has_one_thread() -> bool:
    """Tell whether this process may be forked. Libraries that know of forks put their threads away for the first."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return len(os.listdir("/proc/self/task")) == 1


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
