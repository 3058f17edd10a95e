"""Starts roles' processes, and tries again where there is no process or no memory for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError
from hybridsync.core.work_deadlines import SLACK_SECS, UNWATCHED, Watching
from hybridsync.runtime.fork_server_client import START_SECS, CannotStart, ForkServerClient
from hybridsync.runtime.host_messages import Key, NotStarted, StartRole
from hybridsync.runtime.role_logs import Logs
from hybridsync.runtime.role_process import RoleProcess

FIRST_PAUSE_SECS, LAST_PAUSE_SECS = 0.5, 30.0
"""The pause between two tries doubles from the first to the last."""
FORK_SERVER_RETRY_SECS = 30.0
START_LIMIT_SECS = 2 * START_SECS + SLACK_SECS
"""Limit of one try: a fork server that ends meanwhile is replaced, and the next one imports for as long."""


@dataclass
class _Start:
    """One role to be started, when it is tried next, and until when."""

    order: StartRole
    at: float
    until: float
    pause: float = FIRST_PAUSE_SECS
    told: bool = False


class Starts:
    """Starts roles in the order in which they were asked for. To be made on the main thread.

    Args:
      command: command of the fork server that roles are forked from (see `ForkServerClient`).
      logs: logs of the roles.
      say: shows a line to the user.
      again_secs: seconds for which the start of a role is tried.
      lock_fd: file descriptor of the workdir's lock, which each chief holds as well; None if the workdir is not locked.
      log_suffix: suffix of the name of the fork server's log.
      watchdog: watchdog of this process.

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
        watchdog: Watching = UNWATCHED,
    ) -> None:
        self._fork_server_client = ForkServerClient(command, logs.path(f"fork-server{log_suffix}"), logs.open)
        self._logs, self._say, self._again_secs, self._lock_fd = logs, say, again_secs, lock_fd
        self._watchdog = watchdog
        self._retry_fork_server_at = 0.0
        self._waiting: dict[Key, _Start] = {}

    @property
    def fork_server_pid(self) -> int:
        """The fork server's process id."""
        return self._fork_server_client.pid

    def request(self, order: StartRole) -> None:
        """Have a role started by the next `start_due`; an order for one that waits already takes the former's place."""
        now = SYSTEM_CLOCK.monotonic()
        former = self._waiting.get(order.key)
        self._waiting[order.key] = (
            replace(former, order=order) if former else _Start(order, now, now + self._again_secs)
        )

    def discard(self) -> None:
        """Start nothing of what still waits."""
        self._waiting.clear()

    def start_due(self) -> Iterator[tuple[RoleProcess, StartRole] | NotStarted]:
        """Start what is due; yields the processes, each with its order, and what is given up."""
        for key, start in list(self._waiting.items()):
            if SYSTEM_CLOCK.monotonic() < start.at:
                continue
            with self._watchdog.work("starting {} {}".format(*key), START_LIMIT_SECS):
                started = self._try(start)
            if started is not None:
                del self._waiting[key]
                yield started if isinstance(started, NotStarted) else (started, start.order)

    def _try(self, start: _Start) -> RoleProcess | NotStarted | None:
        (role, role_id), restart_count = start.order.key, start.order.spec.restart_count
        path, lock_fd = self._logs.path(f"{role}-{role_id}"), self._lock_fd if role == "chief" else None
        try:
            return RoleProcess(
                *(self._fork_server_client, role, role_id, restart_count, path, self._logs.open, lock_fd),
                num_threads=start.order.spec.num_threads,
            )
        except (OSError, HybridSyncError) as error:
            if restart_count == 0 and not isinstance(error, OSError | CannotStart):
                return NotStarted(role, role_id, str(error), hopeless=True)
            now = SYSTEM_CLOCK.monotonic()
            if now >= start.until:
                return NotStarted(
                    role, role_id, f"{role} {role_id} could not be started for {self._again_secs:g} s: {error}"
                )
            if not start.told:
                self._say(f"{role} {role_id} could not be started, which is tried again: {error}")
            start.told = True
            start.at, start.pause = now + start.pause, min(2 * start.pause, LAST_PAUSE_SECS)
            return None

    def keep_fork_server(self) -> None:
        """Have a fork server for the next role that is lost; until then the run needs none."""
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
