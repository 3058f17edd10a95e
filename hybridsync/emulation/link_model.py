"""Times transfers between workers and parameter servers, by their links and the port that all of them share. Pure.

The simulator asks it in virtual time, and where links are emulated the servers ask it in real time. Both ask alike: a
transfer gives the time at which it arrives if no other begins meanwhile; the caller that has waited until then asks
again.

>>> wire = Wire(port_bytes_per_sec=100.0)
>>> first, second = wire.begin_push(now=0.0, num_bytes=50), wire.begin_push(now=0.25, num_bytes=50)
>>> first.arrives, second.arrives
(0.75, 1.0)
"""

from __future__ import annotations

import math
from bisect import insort_right
from collections.abc import Callable

from hybridsync.config.injected_stragglers import AS_FAST, Slowness
from hybridsync.interfaces.messages import Push


class Wire:
    """The links of the workers, and the servers' port, each in both directions.

    The transfers in progress share the port fairly (processor sharing): with k of them each has 1/k of it, and no more
    than its worker's link carries. Each further transfer may cost the port some of its goodput (incast), which then is
    `port / (1 + incast * (k - 1))` in all. A worker has one transfer in each direction at a time, so that nothing has
    to wait for its link. A message without bytes waits for no transfer: its packets are sent between those of others. A
    worker that is made slow has a link of its own speed, and takes the port for no longer than the others.

    Source: Bertsekas and Gallager, Data Networks, 1992, section 6.5.2, for fair shares. The form of the loss is ours:
    with many senders into one port packets are lost and sent again (Phanishayee et al., Measurement and analysis of TCP
    throughput collapse in cluster-based storage systems, FAST 2008).

    Args:
      link_bytes_per_sec: bandwidth of each worker's link, each direction.
      port_bytes_per_sec: bandwidth of the port, each direction; that of all servers together.
      latency_secs: seconds from the last byte sent to the last one received.
      incast: goodput that each further transfer costs the port.

    Attributes:
      begin_push: (now, bytes, slowness) -> what a worker begins to send at `now`; it takes the port.
      begin_pull: the same of what the servers begin to send.
    """

    def __init__(
        self,
        link_bytes_per_sec: float = math.inf,
        port_bytes_per_sec: float = math.inf,
        latency_secs: float = 0.0,
        incast: float = 0.0,
    ) -> None:
        self.begin_push = Direction(link_bytes_per_sec, port_bytes_per_sec, latency_secs, incast).begin
        self.begin_pull = Direction(link_bytes_per_sec, port_bytes_per_sec, latency_secs, incast).begin


class Transfer:
    """A transfer that has begun.

    Args:
      finish: number of bytes that its port has carried of each transfer in progress when it has carried all of this
        one.
      ends: time at which the port has carried it, in seconds.
      own: time at which its worker's own link has carried it, in seconds.
      behind: seconds from the moment at which both have carried it to its arrival.

    Attributes:
      arrives: when it arrives, unless another transfer begins at its port before that: then it may be later, never
        sooner.
    """

    __slots__ = ("arrives", "behind", "ends", "finish", "own")

    def __init__(self, finish: float, ends: float, own: float, behind: float) -> None:
        self.finish, self.ends, self.own, self.behind = finish, ends, own, behind
        self.arrives = (ends if ends > own else own) + behind


class Direction:
    """One direction of a wire. Its time never goes back: what begins before the newest begin, begins then."""

    __slots__ = ("_at", "_carried", "_incast", "_latency", "_link", "_port", "_rates", "_under_way")

    def __init__(self, link: float, port: float, latency: float, incast: float) -> None:
        self._link, self._port, self._latency, self._incast = link, port, latency, incast
        self._rates = [0.0, min(link, port)]  # bytes a second of each of so many transfers, as far as that was asked
        self._under_way: list[Transfer] = []  # in the order of their ends
        self._at = 0.0  # when a transfer last began or ended
        self._carried = 0.0  # bytes of each transfer in progress, counted from one begin on, at that time

    def begin(self, now: float, num_bytes: float, slow: Slowness = AS_FAST) -> Transfer:
        """Return the transfer that begins at `now`; the port is shared with it until its end."""
        if not num_bytes:
            return Transfer(0.0, now, now, 0.0)
        own, behind = now, self._latency
        if slow is not AS_FAST:
            own, behind = now + num_bytes / slow.bytes_per_sec, behind + slow.rpc_secs
        if self._port == math.inf:
            return Transfer(0.0, now + num_bytes / self._link, own, behind)
        under_way = self._under_way
        if now > self._at:
            if under_way and under_way[-1].ends > now:
                self._go_on(now)
            else:
                under_way.clear()
                self._at, self._carried = now, 0.0
        if not under_way:  # hot path: most transfers have the port to themselves
            transfer = Transfer(num_bytes, self._at + num_bytes / self._rates[1], own, behind)
            under_way.append(transfer)
            return transfer
        transfer = Transfer(self._carried + num_bytes, 0.0, own, behind)
        if under_way[-1].finish <= transfer.finish:
            under_way.append(transfer)
        else:
            insort_right(under_way, transfer, key=_finish)
        at, carried, left = self._at, self._carried, len(under_way)
        rates = self._rates if left < len(self._rates) else self._rates_up_to(left)
        for each in under_way:
            at += (each.finish - carried) / rates[left]
            each.ends, each.arrives = at, (at if at > each.own else each.own) + each.behind
            carried, left = each.finish, left - 1
        return transfer

    def _go_on(self, now: float) -> None:
        """Let go of what ends up to `now`, while others go on."""
        under_way, num_ended = self._under_way, 0
        for transfer in under_way:
            if transfer.ends > now:
                break
            self._at, self._carried = transfer.ends, transfer.finish
            num_ended += 1
        del under_way[:num_ended]
        self._carried += (now - self._at) * self._rates[len(under_way)]
        self._at = now

    def _rates_up_to(self, most: int) -> list[float]:
        """Return the bytes a second of each of so many transfers, from none to at least `most`."""
        rates = self._rates
        while len(rates) <= most:
            num_transfers = len(rates)
            share = self._port / (num_transfers * (1.0 + self._incast * (num_transfers - 1)))
            rates.append(share if share < self._link else self._link)
        return rates


def _finish(transfer: Transfer) -> float:
    return transfer.finish


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
