"""Times transfers between workers and parameter servers, by their links and the port that all of them share. Pure.

The simulator asks it in virtual time, and where links are emulated the servers ask it in real time.

>>> wire = Wire(port_bytes_per_sec=100.0)
>>> wire.push_ends(now=0.0, num_bytes=50), wire.push_ends(now=0.0, num_bytes=50), wire.pull_ends(now=0.0, num_bytes=50)
(0.5, 1.0, 0.5)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hybridsync.config.injected_stragglers import AS_FAST, Slowness
from hybridsync.interfaces.messages import Push


class Wire:
    """The links of the workers, and the servers' port, each in both directions.

    Transfers come through the port one after another, in the order in which they begin. A worker has one transfer in
    each direction at a time, so that nothing has to wait for its link. A message without bytes waits for no transfer:
    its packets are sent between those of others. A worker that is made slow has a link of its own speed, and takes the
    port for no longer than the others.

    Args:
      link_bytes_per_sec: of each worker's link, each direction.
      port_bytes_per_sec: of the port, each direction; that of all servers together.
      latency_secs: from the last byte sent to the last one received.

    Attributes:
      push_ends: (now, bytes, slowness) -> when what a worker begins to send at `now` has arrived; takes the port.
      pull_ends: the same of what the servers begin to send.
    """

    def __init__(
        self,
        link_bytes_per_sec: float = math.inf,
        port_bytes_per_sec: float = math.inf,
        latency_secs: float = 0.0,
    ) -> None:
        self.push_ends = _Direction(link_bytes_per_sec, port_bytes_per_sec, latency_secs).ends
        self.pull_ends = _Direction(link_bytes_per_sec, port_bytes_per_sec, latency_secs).ends


class _Direction:
    """One direction of a wire."""

    __slots__ = ("_free_at", "_latency", "_link", "_port")

    def __init__(self, link: float, port: float, latency: float) -> None:
        self._link, self._port, self._latency = link, port, latency
        self._free_at = 0.0

    def ends(self, now: float, num_bytes: int, slow: Slowness = AS_FAST) -> float:
        """Return when a transfer that begins at `now` has arrived; the port is taken for it."""
        if not num_bytes:
            return now
        free_at, link = self._free_at, self._link
        self._free_at = shared = (now if now > free_at else free_at) + num_bytes / self._port
        if slow is AS_FAST:
            own = now + num_bytes / link
            return (shared if shared > own else own) + self._latency
        own = now + num_bytes / (link if link < slow.bytes_per_sec else slow.bytes_per_sec)
        return (shared if shared > own else own) + self._latency + slow.rpc_secs


class SlowLinks:
    """Tells how slow the link of a push's worker is, at the push's last unit or else at the newest of all pushes.

    Args:
      slowness: (worker, unit) -> how slow the worker is then.
    """

    def __init__(self, slowness: Callable[[int, int], Slowness]) -> None:
        self._slowness, self._newest = slowness, 0

    def of(self, push: Push) -> Slowness:
        """Return how slow the link is that `push`, or the answer to it, goes over."""
        if push.units:
            self._newest = push.units[-1]
        return self._slowness(push.worker, self._newest)
