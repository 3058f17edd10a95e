"""Starts roles' processes, and tries again where there is no process or no memory for one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError, RoleLost
from hybridsync.runtime.fork_server_client import CannotStart, ForkServerClient
from hybridsync.runtime.role_logs import Logs
from hybridsync.runtime.role_process import RoleProcess

FIRST_PAUSE_SECS, LAST_PAUSE_SECS = 0.5, 30.0
"""The pause between two tries doubles from the first to the last."""
FORK_SERVER_RETRY_SECS = 30.0

Key = tuple[str, int]


class NotStarted(RoleLost):
    """A role could not be started, however often it was tried.

    Args:
      key: role and number.
      message: says why.
    """

    def __init__(self, key: Key, message: str) -> None:
        super().__init__(message)
        self.key = key


@dataclass
class _Start:
    """One role to be started: its restart count and why, when it is tried next, and until when."""

    restart_count: int
    reason: str
    at: float
    until: float
    pause: float = FIRST_PAUSE_SECS
    told: bool = False


class Starts:
    """Starts roles in the order in which they were asked for. To be made on the main thread.

    Args:
      command: of the fork server that roles are forked from (see `ForkServerClient`).
      logs: of the roles.
      say: shows a line to the user.
      again_secs: how long it is tried to start a role.
      lock_fd: of the workdir's lock, which each chief holds as well; None where nobody has locked it.
      num_threads: with which XLA computes in each role; None leaves it to XLA.

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
        num_threads: int | None,
    ) -> None:
        self._fork_server_client = ForkServerClient(command, logs.path("fork-server"), logs.open)
        self._logs, self._say, self._again_secs, self._lock_fd = logs, say, again_secs, lock_fd
        self._num_threads = num_threads
        self._retry_fork_server_at = 0.0
        self._waiting: dict[Key, _Start] = {}

    @property
    def fork_server_pid(self) -> int:
        """The fork server's process id."""
        return self._fork_server_client.pid

    @property
    def waiting(self) -> Collection[Key]:
        """Roles that are still to be started."""
        return self._waiting.keys()

    def request(self, role: str, role_id: int, restart_count: int, reason: str) -> None:
        """Have a role started by the next `start_due`."""
        now = SYSTEM_CLOCK.monotonic()
        self._waiting[role, role_id] = _Start(restart_count, reason, now, now + self._again_secs)

    def start_due(self) -> Iterator[tuple[RoleProcess, str]]:
        """Start what is due; yields the processes, each with why it was to be started.

        Raises:
          NotStarted: it has been tried for long enough; that role waits no more.
          HybridSyncError: the first process of a role cannot be started, and trying again would not help.
        """
        for key, start in list(self._waiting.items()):
            if SYSTEM_CLOCK.monotonic() >= start.at and (process := self._try(key, start)) is not None:
                del self._waiting[key]
                yield process, start.reason

    def _try(self, key: Key, start: _Start) -> RoleProcess | None:
        role, role_id = key
        path, lock_fd = self._logs.path(f"{role}-{role_id}"), self._lock_fd if role == "chief" else None
        try:
            return RoleProcess(
                *(self._fork_server_client, role, role_id, start.restart_count, path, self._logs.open, lock_fd),
                num_threads=self._num_threads,
            )
        except (OSError, HybridSyncError) as error:
            if start.restart_count == 0 and not isinstance(error, OSError | CannotStart):
                raise
            now = SYSTEM_CLOCK.monotonic()
            if now >= start.until:
                del self._waiting[key]
                raise NotStarted(
                    key, f"{role} {role_id} could not be started for {self._again_secs:g} s: {error}"
                ) from error
            if not start.told:
                self._say(f"{role} {role_id} could not be started, which is tried again: {error}")
            start.told = True
            start.at, start.pause = now + start.pause, min(2 * start.pause, LAST_PAUSE_SECS)
            return None

    def keep_fork_server(self) -> None:
        """Have a fork server for the next role that is lost; the run needs none as long as nobody is."""
        now = SYSTEM_CLOCK.monotonic()
        if now < self._retry_fork_server_at:
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
