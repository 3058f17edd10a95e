"""Keeps which roles of a run are still to be started, and which are being started on which host."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from hybridsync.cluster.role_assignment import RoleAssignment
from hybridsync.runtime.host_messages import Key
from hybridsync.runtime.run_hosts import RunHosts
from hybridsync.runtime.running_role import RunningRole


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
