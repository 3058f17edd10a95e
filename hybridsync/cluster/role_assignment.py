"""Decides which host runs a role; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HEAD = 0
"""Index of the host on which the supervisor and the chief run."""


@dataclass(frozen=True)
class RoleAssignment:
    """Says where the roles of a run belong, and where one goes whose host is away.

    Every role has a home. Workers are divided among the hosts in blocks, so that neighbours share a host. Servers are
    spread over as many hosts as there are. A lost role starts again at home. If its host has been away for
    `patience_secs`, the role goes to another one: a worker to a free slot, a server to the host with the fewest
    servers. A role stays where it runs when its home comes back.

    >>> assignment = RoleAssignment(num_hosts=3, num_workers=4, num_servers=2)
    >>> [assignment.home("worker", worker) for worker in range(4)]
    [0, 0, 1, 2]
    >>> [assignment.home("server", server) for server in range(2)]
    [0, 1]

    Attributes:
      num_hosts: hosts of the run; 0 is the head.
      num_workers: worker slots of the run.
      num_servers: parameter servers.
      patience_secs: how long a role waits for its host, in seconds.
    """

    num_hosts: int = 1
    num_workers: int = 1
    num_servers: int = 1
    patience_secs: float = 20.0

    def home(self, role: str, role_id: int) -> int:
        """Return the host where a role belongs."""
        if role == "worker":
            return role_id * self.num_hosts // self.num_workers
        return role_id % self.num_hosts if role == "server" else HEAD

    def slots(self) -> int:
        """Return how many workers a host has at most where all are at home.

        >>> RoleAssignment(num_hosts=3, num_workers=4).slots()
        2
        """
        return -(-self.num_workers // self.num_hosts)

    def host(
        self,
        role: str,
        role_id: int,
        slots: Mapping[int, int],
        away_secs: Mapping[int, float],
        places: Mapping[tuple[str, int], int],
    ) -> int | None:
        """Return where to start a role now; None where it is to wait.

        Args:
          role: "chief", "server" or "worker".
          role_id: index of the role within its kind.
          slots: index of each present host -> maximum number of workers there.
          away_secs: index of each absent host -> seconds of its absence.
          places: (role, index) of the other roles that run or start -> index of their host.
        """
        home = self.home(role, role_id)
        if home in slots:
            return home
        if role not in ("worker", "server") or away_secs.get(home, 0.0) < self.patience_secs:
            return None
        num_there = {host: sum(key[0] == role and at == host for key, at in places.items()) for host in slots}
        free = [host for host in slots if role == "server" or num_there[host] < slots[host]]
        return min(
            free, key=lambda host: (num_there[host] - (slots[host] if role == "worker" else 0), host), default=None
        )
