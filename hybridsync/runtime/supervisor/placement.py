"""Keeps which roles of a run are still to be started, which are being started on which host, and which run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from hybridsync.cluster.role_assignment import RoleAssignment
from hybridsync.interfaces.messages import Process, RoleEvent
from hybridsync.runtime.agent.host_messages import Key, KillRole
from hybridsync.runtime.agent.role_process import describe_exit
from hybridsync.runtime.supervisor.run_hosts import RunHosts


class Placement:
    """Holds the roles that are wanted until they run.

    Args:
      assignment: assignment of the roles to hosts.
      hosts: hosts of the run.
      running: the roles that run, as their owner changes them.
      awaited: hosts that never were there, and whose roles wait for them, as their owner changes them.
    """

    def __init__(
        self,
        assignment: RoleAssignment,
        hosts: RunHosts,
        running: Mapping[Key, RunningRole],
        awaited: Collection[int],
    ) -> None:
        self._assignment, self._hosts, self._running, self._awaited = assignment, hosts, running, awaited
        self._wanted: dict[Key, str] = {}  # and why; these have no host yet
        self._starting: dict[Key, tuple[int, str]] = {}

    @property
    def pending(self) -> set[Key]:
        """Roles that are wanted and do not run yet."""
        return {*self._wanted, *self._starting}

    def want(self, key: Key, reason: str) -> None:
        """Have a role started by the next `due`."""
        self._wanted[key] = reason

    def due(self, *, workers: bool) -> Iterator[tuple[Key, int, str]]:
        """Yield the roles that have a host now, each with the host and why it is wanted: they are being started.

        Args:
          workers: whether there is a group for workers to join.
        """
        for key, reason in list(self._wanted.items()):
            host = self._host_of(key)
            if host is not None and (workers or key[0] != "worker"):
                del self._wanted[key]
                self._starting[key] = host, reason
                yield key, host, reason

    def starting(self, role: str) -> list[tuple[Key, int, str]]:
        """Return the roles of a kind that are being started, each with its host and why it is wanted."""
        return [(key, *self._starting[key]) for key in self._starting if key[0] == role]

    def starting_at(self) -> dict[Key, int]:
        """Return the roles that are being started, each with its host."""
        return {key: host for key, (host, _) in self._starting.items()}

    def settle(self, key: Key) -> None:
        """Take note that a role runs, or cannot be started."""
        self._starting.pop(key, None)

    def is_starting_at(self, key: Key, host: int) -> bool:
        """Return whether a role is being started on a host."""
        return key in self._starting and self._starting[key][0] == host

    def host_lost(self, host: int) -> list[Key]:
        """Want again what was being started on a host; returns the roles."""
        lost = []
        for key, (at, reason) in list(self._starting.items()):
            if at == host:
                del self._starting[key]
                self._wanted[key] = reason
                lost.append(key)
        return lost

    def present(self, slots: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of these workers that run, or have a host to start on."""
        known = self._running.keys() | self._starting.keys()
        return tuple(slot for slot in slots if ("worker", slot) in known or self._host_of(("worker", slot)) is not None)

    def missing(self, slots: tuple[int, ...]) -> list[Key]:
        """Return the wanted roles without a host; of workers, those of `slots`."""
        return [
            key
            for key in sorted(self._wanted)
            if self._host_of(key) is None and (key[0] != "worker" or key[1] in slots)
        ]

    def _host_of(self, key: Key) -> int | None:
        slots = self._hosts.slots()
        # What is wanted and has its home there starts at home, and keeps its place there until it does.
        homes = {other: self._assignment.home(*other) for other in self._wanted if other != key}
        places = {other: home for other, home in homes.items() if home in slots}
        places |= {other: host for other, (host, _) in self._starting.items()}
        places |= {other: role.host for other, role in self._running.items()}
        away_secs = {host: secs for host, secs in self._hosts.away_secs().items() if host not in self._awaited}
        return self._assignment.host(*key, slots, away_secs, places)


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
