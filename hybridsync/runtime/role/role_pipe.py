"""The line between a supervisor and its roles, seen from the role.

A child finds its role in the environment and reads JSON lines from stdin: its `RoleSpec` at once, and, unless it is the
chief, {"chief": address} once the chief serves. Until then it prepares what needs no chief. {"keys": ...} may come at
any time after its spec, with the keys that the role uses from then on. It reports JSON lines on an inherited pipe:

    {"address": "unix:/run/chief"}          the chief serves there
    {"renew": true}                         the chief wants every worker to start again, in a new process group
    {"joined": "unix:/run/group-1"}         this worker, and so every worker, has joined the group that is served there
    {"stop": true}                          the run's user has it stopped: the next chief has to know it, too
    {"over": true}                          the chief is about to tell all roles to leave: who ends now is not replaced
    {"exit_code": 0}                        the chief has done its work, and its exit code means that
    {"error": "...", "exit_code": 1}        why this role is about to exit; the supervisor prints it, once
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import json
import math
import mmap
import os
import select
import signal
import struct
import threading
from collections.abc import Callable
from typing import Any

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import EXIT_FAILED, HybridSyncError, RoleLost, WaitTimeout
from hybridsync.runtime.end_signals import forks_end_on_signals, outlive_signals

ROLE = "HYBRIDSYNC_ROLE"
ROLE_ID = "HYBRIDSYNC_ROLE_ID"
REPORT_FD = "HYBRIDSYNC_REPORT_FD"
UNIT_FD = "HYBRIDSYNC_UNIT_FD"
LOCK_FD = "HYBRIDSYNC_LOCK_FD"
SUPERVISOR_PID = "HYBRIDSYNC_SUPERVISOR_PID"
_PR_SET_PDEATHSIG = 1
UNIT_FORMAT = struct.Struct("<q")
"""How the unit that a worker computes, plus one, lies in the memory it shares with its supervisor; 0 for none."""
PULSE_FORMAT = struct.Struct("<q")
"""How a count that grows while Python runs in the chief lies there, after the unit."""
SHARED_BYTES = UNIT_FORMAT.size + PULSE_FORMAT.size
PULSE_SECS = 0.5
TOLD_SECS = 120.0
"""How long a role waits for its supervisor, and then for its chief."""


def readable(secs: float, *descriptors: int) -> set[int]:
    """Wait up to `secs` until one of these file descriptors can be read or is at its end; returns those that are.

    Not `select.select`, which takes no descriptor above 1023: a supervisor of 256 workers has some.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(None if secs == math.inf else max(0.0, secs) * 1000)}


@dataclasses.dataclass(frozen=True)
class RoleKeys:
    """Holds what a role proves itself with.

    Attributes:
      token: token of the run, without which no role answers a call.
      credentials: credentials of this process, as `Credentials.as_dict` writes them; None for no TLS.
      user_credentials: credentials of the run's user, which the chief leaves in the workdir for the commands; None for
        no TLS.
    """

    token: str = dataclasses.field(default="", repr=False)
    credentials: dict[str, str] | None = dataclasses.field(default=None, repr=False)
    user_credentials: dict[str, str] | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True)
class RoleSpec:
    """Tells a role what it needs besides the run's own flags.

    Attributes:
      role: "chief", "server" or "worker".
      role_id: index of the role within its kind.
      restart_count: number of processes that had this place before; a worker with `restart_count > 0` is reborn.
      coordinator: address of the process group's coordination service; `NO_GROUP` where none is served.
      workdir: absolute path of the run's workdir.
      num_workers: number of workers of the run.
      num_servers: number of servers of the run.
      host: the address that collectives over TCP bind to.
      collective: kind of collectives among the workers, "host" or "shm".
      num_devices: local devices of each worker, among which a mesh of the process group chooses.
      num_threads: number of threads with which XLA computes in each role; None leaves it to XLA.
      slots: workers that the process group has a place for, ascending; () for all.
      listen: address at which this role serves.
      link: kind of links that carry buffers between processes, "grpc", "shm" or "tcp".
      keys: keys of the role, until it gets new ones.
      compilation_cache: folder of compiled programs; "" for what JAX itself keeps.
      sums_refused: reason why workers may not sum among themselves, for the chief; "" where they may.
      lock_nonce: nonce of the workdir's lock, of which the chief has the descriptor; "" if the workdir is not locked.
      opened: monotonic seconds of the supervisor's host at which the command began.
    """

    role: str
    role_id: int
    restart_count: int
    coordinator: str
    workdir: str
    num_workers: int
    num_servers: int
    host: str
    collective: str
    num_devices: int
    num_threads: int | None = None
    slots: tuple[int, ...] = ()
    listen: str = ""
    link: str = "grpc"
    keys: RoleKeys = dataclasses.field(default_factory=RoleKeys)
    compilation_cache: str = ""
    sums_refused: str = ""
    lock_nonce: str = ""
    opened: float = 0.0

    @classmethod
    def of_json(cls, told: dict[str, Any]) -> RoleSpec:
        """Return what was written by `dataclasses.asdict` and JSON, which has no tuples."""
        return cls(**{**told, "slots": tuple(told["slots"]), "keys": RoleKeys(**told["keys"])})


def live_under(parent: int, who: str) -> None:
    """Let this process be killed when `parent`, its supervisor, ends, and by no signal that asks for its end.

    Raises:
      RoleLost: the supervisor has ended already.
    """
    outlive_signals()
    process_control(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        raise RoleLost(f"{who} lost its supervisor {parent} at start; run the command again")


def process_control(option: int, value: int) -> None:
    """Call prctl(2).

    Raises:
      OSError: the kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(option, value) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


class Child:
    """A role process's line to its supervisor. Made by `Child.from_environment`.

    Attributes:
      role: "chief", "server" or "worker".
      role_id: index of the role within its kind.
      lock_fd: file descriptor of the workdir's lock, which the supervisor holds; None where it does not.
    """

    def __init__(self, role: str, role_id: int, report_fd: int, unit_fd: int, lock_fd: int | None = None) -> None:
        self.role = role
        self.role_id = role_id
        self.lock_fd = lock_fd
        self._report_fd = report_fd
        self._told = b""
        self._take_keys: Callable[[RoleKeys], None] | None = None
        self._shared = mmap.mmap(unit_fd, SHARED_BYTES)
        os.close(unit_fd)

    @classmethod
    def from_environment(cls) -> Child | None:
        """Take up the line, before any slow import; None when no supervisor started this process.

        From here on this process dies with its supervisor, and outlives other signals. The environment is cleared of
        the line, so that programs which this one starts do not take it for theirs.

        Raises:
          RoleLost: the supervisor has died meanwhile.
        """
        role = os.environ.pop(ROLE, None)
        if role is None:
            return None
        role_id, report_fd, unit_fd, supervisor = (
            int(os.environ.pop(name)) for name in (ROLE_ID, REPORT_FD, UNIT_FD, SUPERVISOR_PID)
        )
        lock = os.environ.pop(LOCK_FD, None)
        lock_fd = None if lock is None else int(lock)
        for descriptor in (report_fd, *(() if lock_fd is None else (lock_fd,))):
            os.set_inheritable(descriptor, False)
        live_under(supervisor, f"{role} {role_id}")
        forks_end_on_signals()
        return cls(role, role_id, report_fd, unit_fd, lock_fd)

    def spec(self, timeout_secs: float = TOLD_SECS) -> RoleSpec:
        """Wait for what the supervisor wants of this process.

        Raises:
          WaitTimeout: the supervisor has not sent it in time.
          RoleLost: the supervisor closed the line.
        """
        told = self._next_line(timeout_secs, "the supervisor to say what to do")
        return RoleSpec.of_json(told)

    def chief_address(self, timeout_secs: float = TOLD_SECS) -> str:
        """Wait until the chief serves, and return where; asked once, after `spec`, by a role that is not the chief.

        Raises:
          WaitTimeout: the chief does not serve in time.
          RoleLost: the supervisor closed the line.
        """
        told = self._next_line(timeout_secs, "the chief to serve")
        while "keys" in told:
            self._exchange(told)
            told = self._next_line(timeout_secs, "the chief to serve")
        self._follow()
        return told["chief"]

    def hear_keys(self, take: Callable[[RoleKeys], None]) -> None:
        """Have `take` called with what this role proves itself with from then on, whenever the supervisor says so.

        A thread of its own calls it; but as long as this role waits for its chief, the thread that waits.
        """
        self._take_keys = take
        if self.role == "chief":
            self._follow()

    def _follow(self) -> None:
        if self._take_keys is not None:
            threading.Thread(target=self._hear, name="keys", daemon=True).start()

    def _hear(self) -> None:
        while True:
            try:
                self._exchange(self._next_line(math.inf, "other keys"))
            except RoleLost:  # the supervisor has ended, and this process with it
                return

    def _exchange(self, told: dict[str, Any]) -> None:
        if self._take_keys is not None:
            self._take_keys(RoleKeys(**told["keys"]))

    def _next_line(self, timeout_secs: float, missing: str) -> dict[str, Any]:
        deadline = SYSTEM_CLOCK.monotonic() + timeout_secs
        while b"\n" not in self._told:
            if not readable(deadline - SYSTEM_CLOCK.monotonic(), 0):
                raise WaitTimeout(f"{self.role} {self.role_id} waited {timeout_secs:g} s for {missing}")
            chunk = os.read(0, 1 << 16)
            if not chunk:
                raise RoleLost(f"{self.role} {self.role_id} lost its supervisor while it waited for {missing}")
            self._told += chunk
        line, _, self._told = self._told.partition(b"\n")
        return json.loads(line)

    def report(self, **fields: Any) -> None:
        """Write one line to the supervisor; from one thread at a time. One that has ended ends this process, too."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._report_fd, json.dumps(fields).encode() + b"\n")

    def report_overdue(self, told: str) -> None:
        """Tell the supervisor why the watchdog ends this role; a short line, which no other thread's can part."""
        self.report(error=told[:1000], exit_code=EXIT_FAILED)

    def at_unit(self, unit: int) -> None:
        """Leave behind which unit this process computes, -1 for none: what a crash does not take with it."""
        UNIT_FORMAT.pack_into(self._shared, 0, unit + 1)

    def show_life(self) -> None:
        """Have a thread of Python show the supervisor that this process is not stopped, and that threads get to run."""
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def _beat(self) -> None:
        rest = threading.Event()
        for count in itertools.count(1):
            PULSE_FORMAT.pack_into(self._shared, UNIT_FORMAT.size, count)
            rest.wait(PULSE_SECS)

    def report_error(self, error: HybridSyncError) -> int:
        """Tell the supervisor why this role ends, and return the exit code to end with."""
        self.report(error=str(error)[:3000], exit_code=error.exit_code)
        return error.exit_code
