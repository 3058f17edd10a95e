"""The cluster of a simulation, and what happens to it: plain values with units in their names. Pure.

Every default is an even, fault-free cluster of small CPU machines; a scenario file changes what differs.

>>> cluster = Cluster(devices=(Device(0.05), Device(0.2)))
>>> [cluster.device(worker).secs for worker in range(3)]
[0.05, 0.2, 0.05]
"""

from __future__ import annotations

import functools
import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from random import Random
from typing import Literal, get_args

from hybridsync.config.injected_stragglers import Slowness
from hybridsync.core.errors import ConfigError
from hybridsync.emulation.ring_model import ring_secs
from hybridsync.lab.simulator.colocated import Colocated, check_numbers

Role = Literal["worker", "server", "chief"]


def normals(random: Random) -> Iterator[float]:
    """Yield draws of the standard normal distribution, those of `random.gauss(0, 1)`, in pairs (Box and Muller)."""
    uniform = random.random
    while True:
        angle = uniform() * (2.0 * math.pi)
        radius = math.sqrt(-2.0 * math.log(1.0 - uniform()))
        yield math.cos(angle) * radius
        yield math.sin(angle) * radius


@dataclass(frozen=True)
class Device:
    """Models how long a worker's gradient of one unit takes.

    Args:
      secs: mean seconds of a unit.
      spread: standard deviation over mean of a lognormal distribution; 0 is constant.
      trace: seconds of units in turn, begun anew at its end; where it is given, `secs` and `spread` are not used.

    Raises:
      ConfigError: a value is out of range.
    """

    secs: float = 0.05
    spread: float = 0.0
    trace: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_numbers(self, above=("secs",), not_below=("spread",))
        if any(not 0 < secs < math.inf for secs in self.trace):
            raise ConfigError(f"Device.trace must hold seconds above 0, got {min(self.trace)}; correct the file")

    def seconds(self, normals: Iterator[float]) -> Iterator[float]:
        """Yield the seconds of one unit after another; `normals` are drawn from, one for each."""
        if self.trace:
            return itertools.cycle(self.trace)
        if not self.spread:
            return itertools.repeat(self.secs)
        variance = math.log1p(self.spread * self.spread)
        mean, deviation = math.log(self.secs) - variance / 2, math.sqrt(variance)
        return map(math.exp, map(mean.__add__, map(deviation.__mul__, normals)))  # no step of Python for each


@dataclass(frozen=True)
class Link:
    """A role's network port.

    Args:
      latency_secs: seconds from the last byte sent to the last one received, one way.
      bytes_per_sec: bandwidth of the port, each direction; the transfers in progress share a server's fairly.

    Raises:
      ConfigError: a value is out of range.
    """

    latency_secs: float = 100e-6
    bytes_per_sec: float = 1.25e9

    def __post_init__(self) -> None:
        check_numbers(self, above=("bytes_per_sec",), not_below=("latency_secs",))


@dataclass(frozen=True)
class Costs:
    """Holds what the roles themselves take, in seconds, beside compute and transfers.

    Args:
      apply_secs: duration of one update at a server.
      update_secs: duration of a replica's own update in lock-step.
      step_secs: duration of a lock-step step, whatever its size.
      call_secs: duration of a call at the role that answers it.
      capture_secs: duration of copying the whole state at its holder.
      reserve_secs: duration of making a phase's number durable.
      commit_secs: duration of one checkpoint, in the background of the training.
      restart_secs: time from the loss of a process to its successor's first message.
      notice_secs: time from a process's end until the chief knows it.

    Raises:
      ConfigError: a value is out of range.
    """

    apply_secs: float = 200e-6
    update_secs: float = 200e-6
    step_secs: float = 200e-6
    call_secs: float = 50e-6
    capture_secs: float = 2e-3
    reserve_secs: float = 5e-3
    commit_secs: float = 0.2
    restart_secs: float = 2.5
    notice_secs: float = 0.01

    def __post_init__(self) -> None:
        check_numbers(self, not_below=tuple(each.name for each in fields(self)))


@dataclass(frozen=True)
class Cluster:
    """Devices, links and costs.

    Args:
      devices: devices of worker 0, 1, ...; repeated if there are more workers.
      worker_link, server_link: the ports of every worker, and of every server.
      costs: costs of the roles themselves.
      colocated: latency of machines that are worker and server; None where they are separate machines, or all alike.
      node_size: number of workers of a machine, in their order; the averages of groups inside one go over `node_link`,
        and those that leave it through the one `worker_link` that its workers share.
      node_link: link between workers of one machine.
      hosts: number of workers of machine 0, 1, ... where they are not alike; () for `node_size` of each. Then the
        traffic with servers goes through the one `worker_link` of a machine as well, and the record names the machines
        as hosts.

    Raises:
      ConfigError: there is no device, or a machine has no worker.
    """

    devices: tuple[Device, ...] = (Device(),)
    worker_link: Link = Link()
    server_link: Link = Link()
    costs: Costs = Costs()
    colocated: Colocated | None = None
    node_size: int = 1
    node_link: Link = Link(5e-6, 1.2e10)
    hosts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.devices:
            raise ConfigError("Cluster.devices is empty; give at least one Device")
        check_numbers(self, above=("node_size",))
        if any(num_workers < 1 for num_workers in self.hosts):
            raise ConfigError(f"Cluster.hosts is {self.hosts}; give each host at least one worker")

    def device(self, worker: int) -> Device:
        """Return the device of `worker`."""
        return self.devices[worker % len(self.devices)]

    def nodes_of(self, workers: tuple[int, ...]) -> list[int]:
        """Return the machines that `workers` are on, ascending."""
        return sorted(set(map(self.node_of, workers)))

    def node_of(self, worker: int) -> int:
        """Return the machine that `worker` is on.

        >>> [Cluster(hosts=(2, 1)).node_of(worker) for worker in range(3)]
        [0, 0, 1]
        """
        if not self.hosts:
            return worker // self.node_size
        return bisect_right(self._last_workers, worker)

    def host_name(self, worker: int) -> str:
        """Return what the record calls the machine of `worker`; "sim" of a role that is no worker (below 0)."""
        return f"host-{self.node_of(worker)}" if self.hosts and worker >= 0 else "sim"

    @functools.cached_property
    def _last_workers(self) -> list[int]:
        return list(itertools.accumulate(self.hosts))

    def all_reduce_secs(self, num_bytes: int, num_members: int, *, inside: bool = False) -> float:
        """Return the seconds of a ring all-reduce on the cluster's own links (see `ring_secs`).

        Args:
          num_bytes: size of the buffer in bytes.
          num_members: number of members, n.
          inside: whether all of them are on one machine, where a machine has several workers.
        """
        link = self.node_link if inside and (self.hosts or self.node_size > 1) else self.worker_link
        return ring_secs(num_bytes, num_members, link.bytes_per_sec, link.latency_secs)


@dataclass(frozen=True)
class Slow:
    """A worker that is slow for a while: a transient straggler.

    Args:
      worker: id of the worker.
      delay_secs: added to the time of each unit, in seconds.
      factor: multiplies the time that its device takes for a unit.
      start_secs, stop_secs: seconds of the run between which it is slow.
      rpc_secs: added to the time of each push, each pull, and each collective that it takes part in, in seconds.
      bytes_per_sec: bandwidth of its link, each direction.

    Raises:
      ConfigError: a value is out of range.
    """

    worker: int
    delay_secs: float = 0.0
    factor: float = 1.0
    start_secs: float = 0.0
    stop_secs: float = math.inf
    rpc_secs: float = 0.0
    bytes_per_sec: float = math.inf

    def __post_init__(self) -> None:
        not_below = ("worker", "delay_secs", "start_secs", "rpc_secs")
        endless = ("stop_secs", "bytes_per_sec")
        check_numbers(self, above=("factor", "bytes_per_sec"), not_below=not_below, endless=endless)

    @property
    def slowness(self) -> Slowness:
        """Slowness of the worker, while it is slow."""
        return Slowness(self.factor, self.delay_secs, self.rpc_secs, self.bytes_per_sec)


@dataclass(frozen=True)
class Death:
    """A process that is killed at a second of the run.

    Args:
      role, id: role and number of the process; a chief's number is 0.
      at_secs: time of the death, seconds of the run.
      back_secs: until its successor's first words; None is `Costs.restart_secs`.

    Raises:
      ConfigError: a value is out of range.
    """

    role: Role
    id: int
    at_secs: float
    back_secs: float | None = None

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise ConfigError(f"Death.role must be one of {', '.join(get_args(Role))}, got {self.role!r}; correct it")
        check_numbers(self, not_below=("id", "at_secs") if self.back_secs is None else ("id", "at_secs", "back_secs"))


@dataclass(frozen=True)
class Pause:
    """A worker process that is stopped for a while; `replaced` starts a successor that it later meets as a zombie."""

    worker: int
    at_secs: float
    secs: float
    replaced: bool = False

    def __post_init__(self) -> None:
        check_numbers(self, not_below=("worker", "at_secs"), endless=("secs",))


@dataclass(frozen=True)
class Hang:
    """A worker process whose first unit that begins after `at_secs` never ends, though it goes on to report."""

    worker: int
    at_secs: float

    def __post_init__(self) -> None:
        check_numbers(self, not_below=("worker", "at_secs"))


@dataclass(frozen=True)
class Switch:
    """A command of the run's user, who asks for another protocol at a second of the run."""

    at_secs: float
    spec: str

    def __post_init__(self) -> None:
        check_numbers(self, not_below=("at_secs",))


@dataclass(frozen=True)
class Join:
    """A worker that comes only at a second of the run: the others begin without it."""

    worker: int
    at_secs: float

    def __post_init__(self) -> None:
        check_numbers(self, not_below=("worker", "at_secs"))


@dataclass(frozen=True)
class Partition:
    """Workers that nobody reaches for a while, and that reach nobody."""

    workers: tuple[int, ...]
    at_secs: float
    secs: float

    def __post_init__(self) -> None:
        check_numbers(self, not_below=("at_secs",), endless=("secs",))


@dataclass(frozen=True)
class Chaos:
    """Sets how likely messages are lost, duplicated or delayed.

    Args:
      lost, duplicated, delayed: probability that a message is lost, duplicated or delayed.
      delay_secs: mean of the exponential delay of a delayed message, or of the second copy of a duplicated one.
      until_secs: messages after that are delivered as they should be.

    Raises:
      ConfigError: a value is out of range.
    """

    lost: float = 0.0
    duplicated: float = 0.0
    delayed: float = 0.0
    delay_secs: float = 0.1
    until_secs: float = math.inf

    def __post_init__(self) -> None:
        check_numbers(self, above=("delay_secs",), not_below=("lost", "duplicated", "delayed"), endless=("until_secs",))
        if self.lost + self.duplicated + self.delayed > 1:
            raise ConfigError(
                f"Chaos: lost {self.lost}, duplicated {self.duplicated} and delayed {self.delayed} sum to more than 1; "
                "lower one"
            )

    @property
    def active(self) -> bool:
        """Return whether any message fares otherwise than it should."""
        return bool(self.lost or self.duplicated or self.delayed)


@dataclass(frozen=True)
class Scenario:
    """A cluster and what happens to it.

    Args:
      cluster: the machines.
      slow, deaths, pauses, hangs, joins, partitions, switches: incidents of the run.
      chaos: faults of messages.
      save_fails: numbers of the saves that fail, counted from 0.
      preempt_secs: second of the run at which it is asked to save its state and stop; infinite for never.
      for_good: a callback asks for that stop, by `run.stop`.
    """

    cluster: Cluster = field(default_factory=Cluster)
    slow: tuple[Slow, ...] = ()
    deaths: tuple[Death, ...] = ()
    pauses: tuple[Pause, ...] = ()
    hangs: tuple[Hang, ...] = ()
    joins: tuple[Join, ...] = ()
    partitions: tuple[Partition, ...] = ()
    chaos: Chaos = Chaos()
    save_fails: tuple[int, ...] = ()
    preempt_secs: float = math.inf
    for_good: bool = False
    switches: tuple[Switch, ...] = ()

    @property
    def reliable(self) -> bool:
        """Return whether every message arrives: then nobody needs to ask twice."""
        lost = any(death.role == "chief" for death in self.deaths)  # with it goes what it was asked
        return not (self.chaos.active or self.partitions or self.pauses or lost)

    def check(self, num_workers: int, num_servers: int) -> None:
        """Refuse what names a role that the run does not have.

        Raises:
          ConfigError: the scenario names such a role.
        """
        colocated = self.cluster.colocated
        if colocated is not None and len(colocated.latency_secs) != num_workers:
            raise ConfigError(
                f"Colocated.latency_secs has {len(colocated.latency_secs)} machines, but the run has {num_workers} "
                "workers; give each one"
            )
        hosts = self.cluster.hosts
        if hosts and sum(hosts) != num_workers:
            raise ConfigError(
                f"Cluster.hosts has {sum(hosts)} workers on {len(hosts)} hosts, but the run has {num_workers}; give "
                f"--workers={sum(hosts)}, or correct the hosts"
            )
        named = [each.worker for each in (*self.slow, *self.pauses, *self.hangs, *self.joins)]
        named += [worker for partition in self.partitions for worker in partition.workers]
        named += [death.id for death in self.deaths if death.role == "worker"]
        for worker in named:
            if worker >= num_workers:
                raise ConfigError(
                    f"the scenario names worker {worker}, but the run has workers 0 to {num_workers - 1}; correct one"
                )
        late = [join.worker for join in self.joins]
        if len(set(late)) < len(late):
            raise ConfigError(f"Scenario.joins names workers {late}, one of them twice; say once when it comes")
        for death in self.deaths:
            if death.role == "server" and death.id >= num_servers:
                raise ConfigError(
                    f"the scenario names server {death.id}, but the run has servers 0 to {num_servers - 1}; correct one"
                )
