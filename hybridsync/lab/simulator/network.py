"""Carries messages in virtual time: ports that are shared, latency, and what a scenario does to messages.

Transfers in progress share a port fairly (`hybridsync.emulation.link_model`). A message with no bytes worth counting,
such as a grant or a refusal, has its own connection. Its packets come between those of the transfers, so it does not
wait for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from hybridsync.config import AS_FAST, EmulationConfig, Slowness
from hybridsync.emulation.link_delays import emulated, emulated_rings
from hybridsync.emulation.link_model import Direction, SlowLinks, Transfer
from hybridsync.emulation.ring_model import Ring
from hybridsync.interfaces.messages import Push
from hybridsync.lab.simulator.cluster import Cluster, Scenario
from hybridsync.lab.simulator.event_loop import Loop

NOTHING_EMULATED = EmulationConfig()
ON_TIME = (0.0,)


class ThroughTwo:
    """A transfer through a host's port and the servers' at once: it has arrived when both have carried it."""

    __slots__ = ("_ports",)

    def __init__(self, *ports: Transfer) -> None:
        self._ports = ports

    @property
    def arrives(self) -> float:
        """Return when it has arrived, unless others begin at a port before that (see `Transfer.arrives`)."""
        return max(port.arrives for port in self._ports)


Carried = Transfer | ThroughTwo | Ring


class HostPorts:
    """The port of each host, each direction, which the transfers of its workers with servers share fairly."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, wide = cluster, cluster.worker_link.bytes_per_sec
        self._out = [Direction(math.inf, wide, 0.0, 0.0) for _ in cluster.hosts]
        self._into = [Direction(math.inf, wide, 0.0, 0.0) for _ in cluster.hosts]

    def leave(self, worker: int, now: float, num_bytes: int, transfer: Transfer) -> ThroughTwo:
        """Return `transfer`, which begins at `now`, through the port of its worker's host as well."""
        return ThroughTwo(transfer, self._out[self._cluster.node_of(worker)].begin(now, num_bytes))

    def reach(self, worker: int, now: float, num_bytes: int, transfer: Transfer) -> ThroughTwo:
        """Return what comes to `worker` from `now` on, in the same way."""
        return ThroughTwo(transfer, self._into[self._cluster.node_of(worker)].begin(now, num_bytes))


class Network:
    """Delivers calls.

    Args:
      loop: virtual time.
      scenario: links, chaos and partitions.
      random: draws for the chaos.
      num_servers: number of ports that the traffic with the servers is spread over.
      emulation: links that are slower than the scenario's.
      slowness: (worker, unit) -> how slow the worker's link is now; None where none ever is.

    Attributes:
      num_bytes: moved between workers and servers.
      reliable: every message arrives once.
    """

    def __init__(
        self,
        loop: Loop,
        scenario: Scenario,
        random: Random,
        num_servers: int,
        emulation: EmulationConfig = NOTHING_EMULATED,
        slowness: Callable[[int, int], Slowness] | None = None,
    ) -> None:
        self._loop, self._random = loop, random
        self._chaos, self._partitions = scenario.chaos, scenario.partitions
        self.cluster: Cluster = scenario.cluster
        self.reliable = scenario.reliable
        link, port = scenario.cluster.worker_link.bytes_per_sec, scenario.cluster.server_link.bytes_per_sec
        wire = emulated(emulation, num_servers, link_bytes_per_sec=link, port_bytes_per_sec=port)
        self._begin_push, self._begin_pull = wire.begin_push, wire.begin_pull
        worker_link = scenario.cluster.worker_link
        self._rings = emulated_rings(emulation, worker_link.bytes_per_sec, worker_link.latency_secs)
        self._hosts = HostPorts(self.cluster) if self.cluster.hosts else None
        self._slow = None if slowness is None else SlowLinks(slowness)
        self._latency = scenario.cluster.worker_link.latency_secs + scenario.cluster.server_link.latency_secs
        self._machines = late = scenario.cluster.colocated
        self._longer = [late.exchange_secs(worker) for worker in range(len(late.latency_secs))] if late else []
        self._call_secs = scenario.cluster.worker_link.latency_secs + scenario.cluster.costs.call_secs
        self._is_plain = self.reliable and self._slow is None and not self._longer and self._hosts is None
        self.num_bytes = 0

    def to_server(self, push: Push, num_bytes: int, call: Callable[..., object], *args: Any) -> None:
        """Carry a transfer of the worker of `push` to the servers."""
        self.num_bytes += num_bytes
        loop, now = self._loop, self._loop.now
        if self._is_plain:  # hot path, as in `from_server`: `_carry` without a call
            transfer, behind = self._begin_push(now, num_bytes), self._latency
            loop.plan((transfer.arrives + behind, loop.turn(), self._arrive, (transfer, behind, call, args)))
            return
        transfer = self._begin_push(now, num_bytes, self._slow.of(push) if self._slow else AS_FAST)
        if self._hosts is not None:
            transfer = self._hosts.leave(push.worker, now, num_bytes, transfer)
        is_late = self._machines is not None and self._machines.is_late_at(now)
        longer = self._longer[push.worker] if is_late else 0.0
        for late_secs in self._copies(push.worker):
            self._carry(transfer, longer + self._latency + late_secs, call, args)

    def from_server(self, push: Push, ready: float, num_bytes: int, call: Callable[..., object], *args: Any) -> None:
        """Carry the answer to `push`, which begins at `ready`, to its worker; one without bytes as a call."""
        self.num_bytes += num_bytes
        if self._is_plain:
            loop, transfer, behind = self._loop, self._begin_pull(ready, num_bytes), self._latency
            loop.plan((transfer.arrives + behind, loop.turn(), self._arrive, (transfer, behind, call, args)))
            return
        transfer = self._begin_pull(ready, num_bytes, self._slow.of(push) if self._slow else AS_FAST)
        if self._hosts is not None:
            transfer = self._hosts.reach(push.worker, ready, num_bytes, transfer)
        for late_secs in self._copies(push.worker):
            self._carry(transfer, self._latency + late_secs, call, args)

    def message(self, worker: int, call: Callable[..., object], *args: Any) -> None:
        """Carry a small message between a worker and the chief."""
        loop = self._loop
        for late_secs in self._copies(worker):
            loop.plan((loop.now + self._call_secs + late_secs, loop.turn(), call, args))

    def all_reduce(
        self, members: tuple[int, ...], num_bytes: int, beside_secs: float, call: Callable[..., object]
    ) -> None:
        """Carry a ring all-reduce of `num_bytes` of each of the `members`, which begins now; `call` hears of its end.

        A ring that leaves a node goes once through the port of each node it comes to, which its workers share.

        Args:
          members: worker ids, at least one.
          num_bytes: size of the buffer in bytes.
          beside_secs: seconds that the ring takes in addition.
          call: called when the ring has ended.
        """
        loop, cluster = self._loop, self.cluster
        nodes = cluster.nodes_of(members)
        if len(nodes) > 1:
            ring = self._rings.begin(loop.now, nodes, len(members), num_bytes, beside_secs)
            self._carry(ring, 0.0, call, ())
        else:
            loop.after(beside_secs + cluster.all_reduce_secs(num_bytes, len(members), inside=True), call)

    def cut_off(self, worker: int) -> bool:
        """Return whether nobody reaches `worker` now."""
        now = self._loop.now
        return any(worker in p.workers and p.at_secs <= now < p.at_secs + p.secs for p in self._partitions)

    def _carry(self, transfer: Carried, behind: float, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Plan a call for `behind` seconds after the arrival of a transfer."""
        loop = self._loop
        loop.plan((transfer.arrives + behind, loop.turn(), self._arrive, (transfer, behind, call, args)))

    def _arrive(self, transfer: Carried, behind: float, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Make the call that a transfer brings, unless others have begun meanwhile and made it later."""
        if transfer.arrives + behind > self._loop.now:
            self._carry(transfer, behind, call, args)
        else:
            call(*args)

    def _copies(self, worker: int) -> tuple[float, ...]:
        """Return how much later each copy of a message between `worker` and others arrives; () is a lost one."""
        if self.reliable:
            return ON_TIME
        if self._partitions and self.cut_off(worker):
            return ()
        chaos, draw = self._chaos, self._random
        if chaos.active and self._loop.now < chaos.until_secs:
            drawn = draw.random()
            if drawn < chaos.lost:
                return ()
            if drawn < chaos.lost + chaos.duplicated:
                return draw.expovariate(1 / chaos.delay_secs), 0.0
            if drawn < chaos.lost + chaos.duplicated + chaos.delayed:
                return (draw.expovariate(1 / chaos.delay_secs),)
        return ON_TIME


class Insisting:
    """One caller's way over a network that loses messages: it calls again and again, until the first answer is here.

    Args:
      network: network that may lose the messages.
      loop: virtual time.
      retry_secs: seconds between two tries.
      is_stale: (function, arguments) -> whether the caller has ended, or is paused and will repeat the call later.
    """

    def __init__(self, network: Network, loop: Loop, retry_secs: float, is_stale: Callable[..., bool]) -> None:
        self._network, self._loop, self._retry_secs, self._is_stale = network, loop, retry_secs, is_stale
        self._call = 0

    def to_server(self, push: Push, num_bytes: int, call: Callable[..., object], *args: Any) -> None:
        """Carry a transfer to the servers as `Network.to_server` does; the last argument takes the answer.

        A new call ends the one before it.
        """
        self._call += 1
        *message, then = args
        self._try(self._call, partial(self._network.to_server, push, num_bytes, call, *message), then)

    def _try(
        self, number: int, carry: Callable[[Callable[[Any], None]], object], then: Callable[[Any], object]
    ) -> None:
        if self._call != number or self._is_stale(self._try, number, carry, then):
            return

        def reply(outcome: Any) -> None:
            if self._call != number or self._is_stale(reply, outcome):
                return
            self._call += 1
            then(outcome)

        carry(reply)
        self._loop.after(self._retry_secs, self._try, number, carry, then)
