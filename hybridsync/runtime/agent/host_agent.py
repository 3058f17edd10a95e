"""A host's agent: starts, watches and kills roles as it is told, and tells what becomes of them. It decides nothing.

The same object serves both kinds of hosts. In the supervisor's process it is driven by calls; on a further host the
program `hybridsync host` passes orders and events between it and the supervisor (see `agent_program.py`). Imports
neither jax nor orbax.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hybridsync.core.errors import WorkdirError
from hybridsync.runtime.agent.host_messages import (
    ChiefServes,
    Ended,
    Event,
    GiveKeys,
    Key,
    KillRole,
    NotStarted,
    Reported,
    Started,
    StartRole,
)
from hybridsync.runtime.agent.role_addresses import RoleAddresses
from hybridsync.runtime.agent.role_process import Logs, RoleProcess, Starts
from hybridsync.runtime.role.role_pipe import RoleKeys
from hybridsync.storage.durable import make_directory

MOST_MESSAGE_CHARS = 3000
"""Of why a role could not be started: a line between hosts has its limit."""


@dataclass(frozen=True)
class HostSpec:
    """Describes how a host starts roles.

    Attributes:
      command: program and arguments of every role.
      logs: folder of the logs; it is made.
      log_suffix: suffix of the name of the fork server's log, where several hosts share the folder.
      start_again_secs: seconds for which the start of a role is tried again while there is no process or memory for it.
      compilation_cache: number of XLA's threads -> folder of compiled programs, checked; "" for what JAX itself keeps.
      worker_environments: environment variables of a worker's process on each seat (see `devices.environment`).
    """

    command: tuple[str, ...]
    logs: Path
    log_suffix: str = ""
    start_again_secs: float = 300.0
    compilation_cache: Callable[[int | None], str] = lambda num_threads: ""
    worker_environments: Sequence[Mapping[str, str]] = ({},)


class HostAgent:
    """Holds the processes of one host. To be made, and used, on the main thread: children die with it.

    Args:
      spec: describes how roles are started.
      addresses: addresses at which they serve.
      say: shows a line to the user.
      lock_fd: file descriptor of the workdir's lock, which each chief holds as well; None if the workdir is not locked.

    Raises:
      WorkdirError: the logs cannot be written.
    """

    def __init__(
        self,
        spec: HostSpec,
        addresses: RoleAddresses,
        say: Callable[[str], None],
        lock_fd: int | None = None,
    ) -> None:
        self._spec, self._addresses, self._say = spec, addresses, say
        self._roles: dict[Key, RoleProcess] = {}
        self._keys: dict[Key, RoleKeys] = {}  # newer ones than those of the order to start it
        self._events: deque[Event] = deque()
        self._chief_address = ""
        self._is_hopeless = False  # nothing can be started here: it is not tried for each role
        self.logs = Logs(spec.logs, say)
        try:
            make_directory(spec.logs)
            self._starts = Starts(
                spec.command,
                self.logs,
                say,
                again_secs=spec.start_again_secs,
                lock_fd=lock_fd,
                log_suffix=spec.log_suffix,
                worker_environment=self._free_seat,
            )
        except OSError as error:
            raise WorkdirError(f"cannot write to {spec.logs}: {error.strerror}; name a writable --workdir") from error

    def start(self, order: StartRole) -> None:
        """Start a role; `wait` tells when it is there.

        Where it runs already, the order was given before the word of its start arrived. Two processes of one role would
        work against each other, and the one that runs is not what was ordered last. So it is killed; its end is
        reported, and answered by a new order.
        """
        if (running := self._roles.get(order.key)) is not None:
            running.kill()
            return
        if self._is_hopeless:
            return
        self._keys.pop(order.key, None)
        self._starts.request(order)
        self._take_started()

    def kill(self, order: KillRole) -> None:
        """Kill a process, unless another one has its place already; `wait` tells its end."""
        process = self._roles.get((order.role, order.role_id))
        if process is not None and process.pid == order.pid:
            process.kill()

    def give_keys(self, order: GiveKeys) -> None:
        """Tell a role what it proves itself with from now on; one that waits to be started is told when it is there."""
        self._keys[order.key] = order.keys
        if (process := self._roles.get(order.key)) is not None:
            process.send_keys(order.keys)

    def chief_serves(self, order: ChiefServes) -> None:
        """Tell the roles where the first chief serves, and those that come; later chiefs serve at the same place."""
        if not self._chief_address:
            self._chief_address = order.address
            for process in self._roles.values():
                if process.role != "chief":
                    process.send_chief(order.address)

    def wait(self, secs: float, wake_fd: int) -> list[Event]:
        """Wait until something happens, and return it.

        Args:
          secs: longest wait in seconds.
          wake_fd: ends the wait when it can be read; it is emptied.
        """
        poll = select.poll()
        poll.register(wake_fd, select.POLLIN)
        for process in self._roles.values():
            poll.register(process.pidfd, select.POLLIN)
            if not process.reports_ended:
                poll.register(process.report_fd, select.POLLIN)
        if self._starts.fd is not None:
            poll.register(self._starts.fd, select.POLLIN)
        poll.poll(0 if self._events else secs * 1000)
        _drain(wake_fd)
        # Who has ended is looked at first: then the reports that are read are all of theirs, and what made a role leave
        # (the chief reports that the run is over, the others hear of it and end) is reported before its end.
        ended = [key for key, process in self._roles.items() if process.wait_ended(0)]
        for key, process in self._roles.items():
            self._events.extend(Reported(*key, process.pid, fields) for fields in process.read_reports())
        for key in ended:
            process = self._roles.pop(key)
            code = process.reap()
            self._events.append(Ended(*key, process.pid, code, process.lived_secs(), process.unit))
        self._starts.keep_fork_server()
        self._take_started()
        if self._starts.fd is None:  # else one of the children is a role of which the fork server is about to tell
            reap_adopted({self._starts.fork_server_pid, *(process.pid for process in self._roles.values())})
        events = list(self._events)
        self._events.clear()
        return events

    def _take_started(self) -> None:
        for found in self._starts.take():
            if isinstance(found, NotStarted):
                self._events.append(replace(found, message=found.message[:MOST_MESSAGE_CHARS]))
                self._is_hopeless = self._is_hopeless or found.hopeless
                continue
            process, order = found
            spec = order.spec
            self._roles[order.key] = process
            listen = spec.listen or self._addresses.of(spec.role, spec.role_id, spec.restart_count)
            cache = self._spec.compilation_cache(spec.num_threads)
            keys = self._keys.get(order.key, spec.keys)
            own = replace(spec, host=self._addresses.host, listen=listen, compilation_cache=cache, keys=keys)
            process.send_spec(own)
            if self._chief_address and spec.role != "chief":
                process.send_chief(self._chief_address)
            self._events.append(Started(*order.key, spec.restart_count, process.pid, order.reason))

    def _free_seat(self) -> Mapping[str, str]:
        """Return the environment of the first of the seats that fewest workers have: a successor has its place's."""
        taken = [process.environment for process in self._roles.values() if process.role == "worker"]
        return min(self._spec.worker_environments, key=lambda seat: sum(seat.items() <= its.items() for its in taken))

    def pulse(self, key: Key) -> int:
        """Return a count that changes as long as Python runs in a role of this host (see `Child.show_life`)."""
        return self._roles[key].pulse

    def discard(self) -> None:
        """Start nothing of what still waits."""
        self._starts.discard()

    def kill_all(self) -> None:
        """Kill every process, now; a signal handler may call it."""
        for process in list(self._roles.values()):
            process.kill()

    def end_roles(self) -> None:
        """Kill and reap every process, start nothing that waits, and forget the chief."""
        self._starts.discard()
        self.kill_all()
        for process in self._roles.values():
            process.reap()
        self._roles.clear()
        self._keys.clear()
        self._events.clear()
        self._chief_address, self._is_hopeless = "", False
        reap_adopted({self._starts.fork_server_pid})

    def close(self) -> None:
        """End the fork server, and every role."""
        self._starts.close()
        self.end_roles()


def _drain(fd: int) -> None:
    try:
        os.read(fd, 1 << 12)
    except BlockingIOError:
        return


def reap_adopted(own: Collection[int]) -> int:
    """Collect every ended child of another session that is not in `own`; returns how many there were.

    A role begins a session, so a child that a role leaves is never of this process's session, and another child that
    this process has started itself usually is: the code that started it waits for it.

    Args:
      own: ids of the children that other code waits for.
    """
    count, session = 0, os.getsid(0)
    for pid in _children().difference(own):
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # collected meanwhile, by another thread
            if os.getsid(pid) != session:
                count += os.waitpid(pid, os.WNOHANG)[0] == pid
    return count


def _children() -> set[int]:
    """Return the children of all threads of this process."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended, or a kernel that does not list children
            found.update(map(int, (task / "children").read_text().split()))
    return found
