"""The line between a supervisor and its roles, seen from the role.

A child finds its role in the environment, reads one JSON line (its `RoleSpec`) from stdin once the chief
serves, and reports JSON lines on an inherited pipe:

    {"address": "unix:/run/chief"}          the chief serves there
    {"renew": true}                         the chief wants every worker to start again, in a new process group
    {"joined": "unix:/run/group-1"}         this worker, and so every worker, has joined the group that is served there
    {"over": true}                          the chief says that workers which end now are not to be replaced
    {"error": "...", "exit_code": 1}        why this role is about to exit; the supervisor prints it, once
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import mmap
import os
import select
import signal
import struct
from typing import Any

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import EXIT_FAILED, HybridSyncError, RoleLost, WaitTimeout

ROLE = "HYBRIDSYNC_ROLE"
ROLE_ID = "HYBRIDSYNC_ROLE_ID"
REPORT_FD = "HYBRIDSYNC_REPORT_FD"
UNIT_FD = "HYBRIDSYNC_UNIT_FD"
LOCK_FD = "HYBRIDSYNC_LOCK_FD"
SUPERVISOR_PID = "HYBRIDSYNC_SUPERVISOR_PID"
_PR_SET_PDEATHSIG = 1
UNIT_FORMAT = struct.Struct("<q")
"""How the unit that a worker computes, plus one, lies in the memory it shares with its supervisor; 0 for none."""


@dataclasses.dataclass(frozen=True)
class RoleSpec:
    """Tells a role what it needs besides the run's own flags.

    Attributes:
      role: "chief", "server" or "worker".
      role_id: its number among its kind.
      restart_count: how many processes had this place before; a worker with `restart_count > 0` is reborn.
      chief: address of the chief; empty for the chief itself, the first time.
      coordinator: address of the process group's coordination service.
      workdir: absolute path.
      num_workers: of the run.
      num_servers: of the run.
      host: the address that collectives over TCP bind to.
      collective: how the workers sum among themselves, "host" or "shm".
      num_devices: local devices of each worker, among which a mesh of the process group chooses.
      num_threads: with which XLA computes in each role; None leaves it to XLA.
      slots: workers that the process group has a place for, ascending; () for all.
      listen: where this role serves.
      link: how buffers go between processes, "grpc" or "shm".
      token: of the run, without which no role answers a call.
    """

    role: str
    role_id: int
    restart_count: int
    chief: str
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
    token: str = dataclasses.field(default="", repr=False)


def die_with_parent(parent: int, who: str) -> None:
    """Let this process be killed when `parent`, its supervisor, ends.

    Raises:
      RoleLost: it has ended already.
    """
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
      role_id: its number among its kind.
      lock_fd: of the workdir's lock, which the supervisor holds; None where it does not.
    """

    def __init__(self, role: str, role_id: int, report_fd: int, unit_fd: int, lock_fd: int | None = None) -> None:
        self.role = role
        self.role_id = role_id
        self.lock_fd = lock_fd
        self._report_fd = report_fd
        self._unit = mmap.mmap(unit_fd, UNIT_FORMAT.size)
        os.close(unit_fd)

    @classmethod
    def from_environment(cls) -> Child | None:
        """Take up the line, before any slow import; None when no supervisor started this process.

        From here on this process dies with its supervisor. The environment is cleared of the line, so that
        programs which this one starts do not take it for theirs.

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
        die_with_parent(supervisor, f"{role} {role_id}")
        return cls(role, role_id, report_fd, unit_fd, lock_fd)

    def spec(self, timeout_secs: float = 120.0) -> RoleSpec:
        """Wait for the supervisor's line on stdin.

        Raises:
          WaitTimeout: no line came in time: the chief does not serve yet.
          RoleLost: the supervisor closed the line.
        """
        deadline = SYSTEM_CLOCK.monotonic() + timeout_secs
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([0], [], [], max(0.0, deadline - SYSTEM_CLOCK.monotonic()))[0]:
                missing = "the supervisor" if self.role == "chief" else "the chief"
                raise WaitTimeout(f"{self.role} {self.role_id} waited {timeout_secs:g} s for {missing} to serve")
            chunk = os.read(0, 1 << 16)
            if not chunk:
                raise RoleLost(f"{self.role} {self.role_id} lost its supervisor before it was told what to do")
            line += chunk
        told = json.loads(line)
        return RoleSpec(**{**told, "slots": tuple(told["slots"])})

    def report(self, **fields: Any) -> None:
        """Write one line to the supervisor; from one thread at a time."""
        os.write(self._report_fd, json.dumps(fields).encode() + b"\n")

    def report_overdue(self, told: str) -> None:
        """Tell the supervisor why the watchdog ends this role; a short line, which no other thread's can part."""
        self.report(error=told[:1000], exit_code=EXIT_FAILED)

    def at_unit(self, unit: int) -> None:
        """Leave behind which unit this process computes, -1 for none: what a crash does not take with it."""
        UNIT_FORMAT.pack_into(self._unit, 0, unit + 1)

    def report_error(self, error: HybridSyncError) -> int:
        """Tell the supervisor why this role ends, and return the exit code to end with."""
        self.report(error=str(error)[:3000], exit_code=error.exit_code)
        return error.exit_code
