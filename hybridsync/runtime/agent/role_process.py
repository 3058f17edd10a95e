"""The processes of roles on one host: how one is started, with its log, what it reports, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError
from hybridsync.runtime.agent.fork_server import CannotStart, ForkServerClient, ForkServerLost, log_tail, open_at_end
from hybridsync.runtime.agent.host_messages import Key, NotStarted, StartRole
from hybridsync.runtime.agent.host_resources import xla_threads
from hybridsync.runtime.role import role_pipe
from hybridsync.storage.durable import FOLDER_MODE, open_file

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


class Logs:
    """Opens log files; says once that they cannot be written.

    Args:
      folder: folder of the logs; exists.
      say: shows a line to the user.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder, self._say, self._said = folder, say, False

    def path(self, name: str) -> Path:
        """Return where a role's log is."""
        return self._folder / f"{name}.log"

    def open(self, path: Path) -> BinaryIO:
        """Open a log at its end; /dev/null where the disk refuses.

        Raises:
          OSError: this process cannot open any file.
        """
        try:
            path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)  # the user may have removed it, or moved the workdir
            return open(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")
        except OSError as error:
            if not self._said:
                self._said = True
                self._say(f"logs cannot be written to {self._folder}: {error}; the run goes on without them")
            return open(os.devnull, "ab")


FIRST_PAUSE_SECS, LAST_PAUSE_SECS = 0.5, 30.0
"""The pause between two tries doubles from the first to the last."""
FORK_SERVER_RETRY_SECS = 30.0


@dataclass(eq=False)
class _Start:
    """One role to be started, when it is tried next, and until when."""

    order: StartRole
    at: float
    until: float
    pause: float = FIRST_PAUSE_SECS
    told: bool = False
    has_lost_fork_server: bool = False
    process: RoleProcess | None = None  # while the fork server has the order


class Starts:
    """Starts roles in the order in which they were asked for, one at a time. To be made on the main thread.

    No call waits for the fork server: `fd` is readable when `take` has more.

    Args:
      command: command of the fork server that roles are forked from (see `ForkServerClient`).
      logs: logs of the roles.
      say: shows a line to the user.
      again_secs: seconds for which the start of a role is tried.
      lock_fd: file descriptor of the workdir's lock, which each chief holds as well; None if the workdir is not locked.
      log_suffix: suffix of the name of the fork server's log.
      worker_environment: returns the environment variables of the next worker's process, for its devices.

    Raises:
      OSError: the fork server cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        logs: Logs,
        say: Callable[[str], None],
        again_secs: float,
        lock_fd: int | None,
        log_suffix: str = "",
        worker_environment: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._fork_server_client = ForkServerClient(command, logs.path(f"fork-server{log_suffix}"), logs.open)
        self._logs, self._say, self._again_secs, self._lock_fd = logs, say, again_secs, lock_fd
        self._worker_environment = worker_environment
        self._retry_fork_server_at = 0.0
        self._waiting: dict[Key, _Start] = {}
        self._under_way: _Start | None = None

    @property
    def fork_server_pid(self) -> int:
        """The fork server's process id."""
        return self._fork_server_client.pid

    @property
    def fd(self) -> int | None:
        """File descriptor that is readable when the fork server has answered; None while it has no order."""
        return None if self._under_way is None else self._fork_server_client.fd

    def request(self, order: StartRole) -> None:
        """Have a role started; an order for one that has not started yet takes the former's place.

        A process that the fork server is starting for the former is killed by `take`: it has that one's restart count.
        """
        waiting, now = self._waiting.get(order.key), SYSTEM_CLOCK.monotonic()
        if waiting is None or waiting is self._under_way:
            self._waiting[order.key] = _Start(order, now, now + self._again_secs)
        else:
            waiting.order = order

    def discard(self) -> None:
        """Start nothing of what still waits."""
        self._waiting.clear()

    def take(self) -> Iterator[tuple[RoleProcess, StartRole] | NotStarted]:
        """Yield the processes that have started, each with its order, and what is given up; order what is due next."""
        while (start := self._under_way or self._next_due()) is not None:
            found: tuple[RoleProcess, StartRole] | NotStarted | None
            try:
                start.process = start.process or self._order(start.order)
                if not start.process.has_started():
                    self._under_way = start
                    return
                found = start.process, start.order
            except (OSError, HybridSyncError) as error:
                start.process, found = None, self._failed(start, error)
            self._under_way = None
            if self._waiting.get(start.order.key) is not start:  # it was discarded while it was started
                if start.process is not None:
                    start.process.kill()
                    start.process.reap()
            elif found is not None:
                del self._waiting[start.order.key]
                yield found

    def _next_due(self) -> _Start | None:
        now = SYSTEM_CLOCK.monotonic()
        return next((start for start in self._waiting.values() if now >= start.at), None)

    def _order(self, order: StartRole) -> RoleProcess:
        role, role_id = order.key
        path, lock_fd = self._logs.path(f"{role}-{role_id}"), self._lock_fd if role == "chief" else None
        environment = xla_threads(order.spec.num_threads)
        if role == "worker":
            environment |= self._worker_environment()
        return RoleProcess(
            self._fork_server_client,
            role,
            role_id,
            restart_count=order.spec.restart_count,
            log_path=path,
            open_log=self._logs.open,
            lock_fd=lock_fd,
            environment=environment,
        )

    def _failed(self, start: _Start, error: OSError | HybridSyncError) -> NotStarted | None:
        """Return that a role is given up, or None where its start is tried again."""
        (role, role_id), now = start.order.key, SYSTEM_CLOCK.monotonic()
        if isinstance(error, ForkServerLost) and not start.has_lost_fork_server:
            start.has_lost_fork_server = True  # the next one tries at once
            return None
        if start.order.spec.restart_count == 0 and not isinstance(error, OSError | CannotStart):
            return NotStarted(role, role_id, str(error), hopeless=True)
        if now >= start.until:
            why = f"{role} {role_id} could not be started for {self._again_secs:g} s: {error}"
            return NotStarted(role, role_id, why)
        if not start.told:
            self._say(f"{role} {role_id} could not be started, which is tried again: {error}")
        start.told = True
        start.at, start.pause = now + start.pause, min(2 * start.pause, LAST_PAUSE_SECS)
        return None

    def keep_fork_server(self) -> None:
        """Have a fork server for the next role that is lost; until then the run needs none."""
        now = SYSTEM_CLOCK.monotonic()
        if now < self._retry_fork_server_at or self._under_way is not None:  # `take` hears of the end of that one
            return
        try:
            if self._fork_server_client.ensure_running():
                self._retry_fork_server_at = now + FORK_SERVER_RETRY_SECS
        except OSError as error:
            self._say(f"no fork server for the next role could be started: {error}; it is tried again")
            self._retry_fork_server_at = now + FORK_SERVER_RETRY_SECS

    def close(self) -> None:
        """End the fork server; what it has started goes on."""
        self._fork_server_client.close()
        if self._under_way is not None and self._under_way.process is not None:
            self._under_way.process.close()
            self._under_way = None
