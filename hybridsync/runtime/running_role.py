"""A role that runs, as its supervisor knows it."""

from __future__ import annotations

from dataclasses import dataclass

from hybridsync.interfaces.messages import Process, RoleEvent
from hybridsync.runtime.host_messages import KillRole
from hybridsync.runtime.role_process import describe_exit


@dataclass
class RunningRole:
    """Holds what a supervisor knows of a role that runs.

    Attributes:
      role: "chief", "server" or "worker".
      role_id: index of the role within its kind.
      restart_count: number of processes that had this place before.
      pid: process id, on its host.
      host: index of the host on which it runs.
      quarantine: reason why no process takes its place when it has ended; "" if a new one does.
      exit_code: exit code that it reported before it ended, None if it did not: any process may end with a code that
        means nothing, because user code called `exit`.
      error: reason that it reported with its exit code, or for which this process ends it; "" for none.
      stood_secs: for how long it had shown no sign of life when this process ended it for that; 0 for another end.
      is_given_up: whether the chief has had it ended. It may end by itself first, where the order does not reach it.
    """

    role: str
    role_id: int
    restart_count: int
    pid: int
    host: int
    quarantine: str = ""
    exit_code: int | None = None
    error: str = ""
    stood_secs: float = 0.0
    is_given_up: bool = False

    @property
    def process(self) -> Process:
        """Return the process of the run that it is."""
        return self.role, self.role_id, self.restart_count, self.pid

    def started(self, reason: str, wall: float) -> RoleEvent:
        """Return what the chief is told of its start: why, and when by the wall clock."""
        return RoleEvent(self.role, self.role_id, self.pid, reason, wall, restart_count=self.restart_count)

    def lost(self, reason: str, unit: int, wall: float) -> RoleEvent:
        """Return what the chief is told of its end: why, the unit that it computed, and when by the wall clock.

        One that the chief has had ended proves nothing against its unit, whatever it was given up for.
        """
        told, unit = self.quarantine or reason, -1 if self.is_given_up else unit
        is_last = bool(self.quarantine)
        return RoleEvent(
            self.role,
            self.role_id,
            self.pid,
            reason=told,
            wall=wall,
            unit=unit,
            quarantined=is_last,
            restart_count=self.restart_count,
        )

    def kill_order(self) -> KillRole:
        """Return the order that kills it."""
        return KillRole(self.role, self.role_id, self.pid)

    def reason(self, code: int) -> str:
        """Put its end with this exit code into words, with the last of its own."""
        return describe_exit(code) + (f": {self.error}" if self.error else "")

    @property
    def name(self) -> str:
        """Name of the role in messages."""
        return self.role if self.role == "chief" else f"{self.role} {self.role_id}"
