"""Times the ring all-reduces of workers, by the ports that they go through. Pure.

The simulator asks it in virtual time, and where links are emulated the workers ask it in real time, as both do for
pushes and pulls (`hybridsync.emulation.link_model`).

>>> rings = Rings(bytes_per_sec=100.0, latency_secs=0.25)
>>> rings.begin(now=1.0, ports=(0, 1), num_members=2, num_bytes=200).arrives
3.5
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from hybridsync.emulation.link_model import Direction, Transfer


def ring_secs(num_bytes: int, num_members: int, bytes_per_sec: float, latency_secs: float) -> float:
    """Return the seconds of a ring all-reduce: 2 (n-1) rounds of 1/n of the buffer each, one after another.

    Each member sends and receives at once, so that 2 (n-1)/n of the buffer passes its port in each direction.

    Args:
      num_bytes: size of the buffer in bytes.
      num_members: number of members, n.
      bytes_per_sec: bandwidth of each member's port, each direction; infinite for one that takes no time.
      latency_secs: latency of each round, in seconds.

    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009.

    >>> ring_secs(1_000_000, 4, bytes_per_sec=1e8, latency_secs=1e-3)
    0.021
    """
    if num_members == 1:
        return 0.0
    return 2 * (num_members - 1) * (latency_secs + num_bytes / num_members / bytes_per_sec)


class Ring:
    """A ring all-reduce that has begun.

    Args:
      alone: time at which it ends if it shares no port, in seconds.
      passes: what each port carries of it, and when that would end if the port carried nothing else.
    """

    __slots__ = ("_alone", "_passes")

    def __init__(self, alone: float, passes: tuple[tuple[Transfer, float], ...]) -> None:
        self._alone, self._passes = alone, passes

    @property
    def arrives(self) -> float:
        """Return when it ends, unless another begins at one of its ports: then it may be later, never sooner."""
        late = max((transfer.arrives - alone for transfer, alone in self._passes), default=0.0)
        return self._alone + late if late > 0.0 else self._alone


class Rings:
    """The ports that workers sum and average through, each in both directions at once (full duplex).

    A ring waits in each round for its slowest port. The rings in progress share a port fairly, and each further one may
    cost it goodput, as the transfers with parameter servers do at theirs (`hybridsync.emulation.link_model.Wire`). A
    worker that has a port to itself is in one ring at a time; several workers of a machine share one.

    Args:
      bytes_per_sec: bandwidth of each port, each direction.
      latency_secs: latency of each round, in seconds.
      incast: goodput that each further ring costs a port.
    """

    def __init__(self, bytes_per_sec: float = math.inf, latency_secs: float = 0.0, incast: float = 0.0) -> None:
        self._bytes_per_sec, self._latency_secs, self._incast = bytes_per_sec, latency_secs, incast
        self._ports: dict[int, Direction] = {}

    def begin(
        self, now: float, ports: Iterable[int], num_members: int, num_bytes: int, beside_secs: float = 0.0
    ) -> Ring:
        """Return the ring that begins at `now`, when its last member has come.

        Args:
          now: current time, in seconds.
          ports: the ports that the ring goes through, each once.
          num_members: number of members, n.
          num_bytes: size of the buffer in bytes.
          beside_secs: seconds that the ring takes in addition, whatever its size.
        """
        alone = now + (beside_secs + self.secs(num_bytes, num_members))
        if self._bytes_per_sec == math.inf:
            return Ring(alone, ())
        passes = 2 * (num_members - 1) / num_members * num_bytes
        ends = now + passes / self._bytes_per_sec
        return Ring(alone, tuple((self._port(port).begin(now, passes), ends) for port in ports))

    def secs(self, num_bytes: int, num_members: int) -> float:
        """Return how long a ring takes that shares no port (see `ring_secs`)."""
        return ring_secs(num_bytes, num_members, self._bytes_per_sec, self._latency_secs)

    def _port(self, port: int) -> Direction:
        if port not in self._ports:
            self._ports[port] = Direction(math.inf, self._bytes_per_sec, 0.0, self._incast)
        return self._ports[port]
