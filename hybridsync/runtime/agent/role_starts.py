"""Starts roles' processes, each with its log, and tries again where there is no process or no memory for one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError
from hybridsync.runtime.agent.fork_server import CannotStart, ForkServerClient, ForkServerLost
from hybridsync.runtime.agent.host_messages import Key, NotStarted, StartRole
from hybridsync.runtime.agent.host_resources import xla_threads
from hybridsync.runtime.agent.role_process import RoleProcess
from hybridsync.storage.durable import FOLDER_MODE, open_file


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
