"""Carries messages in virtual time: ports that are shared, latency, and what a scenario does to messages."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from hybridsync.sim.cluster import Cluster, Scenario
from hybridsync.sim.loop import Loop


class Port:
    """One direction of a network port: transfers through it come one after another.

    Attributes:
      free_at: when the last transfer so far is through.
    """

    __slots__ = ("bytes_per_sec", "free_at")

    def __init__(self, bytes_per_sec: float) -> None:
        self.bytes_per_sec = bytes_per_sec
        self.free_at = 0.0

    def through(self, now: float, num_bytes: float) -> float:
        """Return when `num_bytes` that are ready now are through."""
        start = now if now > self.free_at else self.free_at
        self.free_at = start + num_bytes / self.bytes_per_sec
        return self.free_at


class Network:
    """Delivers calls.

    Args:
      loop: virtual time.
      scenario: links, chaos and partitions.
      random: draws for the chaos.
      num_servers: how many ports the traffic with the servers is spread over.

    Attributes:
      num_bytes: moved between workers and servers.
      reliable: every message arrives once.
    """

    def __init__(self, loop: Loop, scenario: Scenario, random: Random, num_servers: int) -> None:
        self._loop, self._random = loop, random
        self._chaos, self._partitions = scenario.chaos, scenario.partitions
        self.cluster: Cluster = scenario.cluster
        self.reliable = scenario.reliable
        rate = num_servers * scenario.cluster.server_link.bytes_per_sec
        self._into_servers, self._from_servers = Port(rate), Port(rate)
        self._worker_rate = scenario.cluster.worker_link.bytes_per_sec
        self._latency = scenario.cluster.worker_link.latency_secs + scenario.cluster.server_link.latency_secs
        late = scenario.cluster.colocated
        self._longer = [late.exchange_secs(worker) for worker in range(len(late.latency_secs))] if late else []
        self._call_secs = scenario.cluster.worker_link.latency_secs + scenario.cluster.costs.call_secs
        self._node_ports: dict[int, Port] = {}
        self.num_bytes = 0

    def to_server(self, worker: int, num_bytes: int, call: Callable[..., object], *args: Any) -> None:
        """Carry a transfer of a worker to the servers."""
        now = self._loop.now
        self.num_bytes += num_bytes
        shared, own = self._into_servers.through(now, num_bytes), now + num_bytes / self._worker_rate
        if self._longer:
            own = (shared if shared > own else own) + self._longer[worker]
        at = (shared if shared > own else own) + self._latency
        if self.reliable:
            self._loop.plan(at, call, args)
        else:
            self._deliver(worker, at, call, args)

    def from_server(self, worker: int, ready: float, num_bytes: int, call: Callable[..., object], *args: Any) -> None:
        """Carry a transfer of the servers, which begins at `ready`, to a worker."""
        self.num_bytes += num_bytes
        shared, own = self._from_servers.through(ready, num_bytes), ready + num_bytes / self._worker_rate
        at = (shared if shared > own else own) + self._latency
        if self.reliable:
            self._loop.plan(at, call, args)
        else:
            self._deliver(worker, at, call, args)

    def message(self, worker: int, call: Callable[..., object], *args: Any) -> None:
        """Carry a small message between a worker and the chief."""
        self._deliver(worker, self._loop.now + self._call_secs, call, args)

    def averaged_at(self, members: tuple[int, ...], num_bytes: int) -> float:
        """Return when a group that begins now has averaged `num_bytes` of each of its members, by a ring over them.

        A ring that leaves a node goes once through the port of each node it comes to, which its workers share.
        """
        now, cluster = self._loop.now, self.cluster
        nodes = cluster.nodes_of(members)
        at = now + cluster.costs.step_secs
        if len(nodes) > 1:
            share = 2 * (len(members) - 1) / len(members) * num_bytes
            through = [self._node_port(node).through(now, share) for node in nodes]
            waited = max(through) - now - share / self._worker_rate
            return at + max(0.0, waited) + cluster.all_reduce_secs(num_bytes, len(members))
        return at + cluster.all_reduce_secs(num_bytes, len(members), inside=True)

    def _node_port(self, node: int) -> Port:
        if node not in self._node_ports:
            self._node_ports[node] = Port(self._worker_rate)
        return self._node_ports[node]

    def cut_off(self, worker: int) -> bool:
        """Whether nobody reaches `worker` now."""
        now = self._loop.now
        return any(worker in p.workers and p.at_secs <= now < p.at_secs + p.secs for p in self._partitions)

    def _deliver(self, worker: int, at: float, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        loop = self._loop
        if self.reliable:
            loop.plan(at, call, args)
            return
        if self._partitions and self.cut_off(worker):
            return
        chaos = self._chaos
        if chaos.active and loop.now < chaos.until_secs:
            drawn = self._random.random()
            if drawn < chaos.lost:
                return
            if drawn < chaos.lost + chaos.duplicated:
                loop.at(at + self._random.expovariate(1 / chaos.delay_secs), call, *args)
            elif drawn < chaos.lost + chaos.duplicated + chaos.delayed:
                at += self._random.expovariate(1 / chaos.delay_secs)
        loop.at(at, call, *args)
