"""Emulated links: what workers push and pull takes as long as it would on them, whatever this machine carries faster.

The bytes are really moved; for the rest of the time the caller is kept waiting. That is done at the primary, for the
links of the workers as for the port of the servers: every push and every pull passes there, it knows which of them
share the port, and one model serves here and in the simulator (`emulation/link_model.py`). With several servers the
primary stands for all of them: their ports together carry the whole of a push, evenly.

Calls without a contribution or parameters are not kept waiting, nor are heartbeats, the hand-over of a state, or the
optimizer states that workers take at a phase's start. Lock-step collectives and the averages of groups go from worker
to worker, over the same links and not through a server's port; each worker waits for those itself
(`emulation/ring_delays.py`), as it does for what slows it alone (`emulation/device.py`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hybridsync.config import AS_FAST, NO_STRAGGLERS, EmulationConfig, Slowness, Straggler, Stragglers, together
from hybridsync.core.clock import SYSTEM_CLOCK, Clock, pause
from hybridsync.core.errors import ConfigError
from hybridsync.emulation.link_model import SlowLinks, Transfer, Wire
from hybridsync.emulation.ring_model import Rings
from hybridsync.interfaces.messages import Push
from hybridsync.interfaces.ports import Answer, ParameterPort


def emulated(
    config: EmulationConfig,
    num_servers: int,
    *,
    link_bytes_per_sec: float = math.inf,
    port_bytes_per_sec: float = math.inf,
) -> Wire:
    """Return the wire that a configuration emulates, on a network that is no faster than this.

    Args:
      config: values to emulate; None of a value is the network's own.
      num_servers: number of parameter servers; their ports count as one.
      link_bytes_per_sec: bandwidth of each worker's link in the network itself.
      port_bytes_per_sec: bandwidth of each server's port in the network itself.
    """
    link = link_bytes_per_sec if config.link_bytes_per_sec is None else config.link_bytes_per_sec
    port = port_bytes_per_sec if config.port_bytes_per_sec is None else config.port_bytes_per_sec
    shared = num_servers * min(port, port_bytes_per_sec)
    return Wire(min(link, link_bytes_per_sec), shared, config.latency_secs, config.incast)


def emulated_rings(config: EmulationConfig, bytes_per_sec: float = math.inf, latency_secs: float = 0.0) -> Rings:
    """Return what the collectives of workers go through in a configuration, on a network that is no faster than this.

    A ring goes through its members' own links, never through the port of a server.

    Args:
      config: values to emulate; None of a value is the network's own.
      bytes_per_sec: bandwidth of each worker's port in the network itself.
      latency_secs: latency in seconds of each round in the network itself.
    """
    link = bytes_per_sec if config.link_bytes_per_sec is None else config.link_bytes_per_sec
    return Rings(min(link, bytes_per_sec), latency_secs + config.latency_secs, config.incast)


def emulates_links(config: EmulationConfig) -> bool:
    """Return whether any push or pull of a run takes longer than this machine takes for it.

    >>> emulates_links(EmulationConfig(stragglers="worker=1,rpc_ms=10"))
    True
    >>> emulates_links(EmulationConfig(compute_secs=1.0, stragglers="worker=1,factor=4"))
    False
    """
    limits = config.link_bytes_per_sec, config.port_bytes_per_sec, config.latency_secs or None
    late = any(one.slowness.is_late for one in Straggler.parse(config.stragglers))
    return late or any(limit is not None for limit in limits)


MOST_SECS = 30.0
"""Of a push and a pull together: a worker gives a call a minute, of which a rule may hold it 20 s."""


def check_speed(config: EmulationConfig, num_workers: int, num_servers: int, push_bytes: int, pull_bytes: int) -> None:
    """Refuse emulated links on which workers would give up their calls as lost, or of which a part has no effect.

    Raises:
      ConfigError: a push and a pull take too long, where all workers begin them together; or there is incast without a
        port that transfers share.
    """
    if config.incast and config.port_bytes_per_sec is None:
        raise ConfigError(
            f"emulation.incast is {config.incast:g}, but no emulated port is shared: emulation.port_bytes_per_sec is "
            "none; give the servers a port, or leave incast out"
        )
    slow: dict[int, list[Slowness]] = {}
    for one in Straggler.parse(config.stragglers):
        slow.setdefault(one.worker, []).append(one.slowness)
    found: list[float] = []
    for last in (AS_FAST, *map(together, slow.values())):
        wire = emulated(config, num_servers)
        for _ in range(num_workers - 1):
            wire.begin_push(0.0, push_bytes)
            wire.begin_pull(0.0, pull_bytes)
        found.append(wire.begin_push(0.0, push_bytes, last).arrives + wire.begin_pull(0.0, pull_bytes, last).arrives)
    secs = max(found)
    if secs > MOST_SECS:
        raise ConfigError(
            f"a push of {push_bytes:,} bytes and a pull of {pull_bytes:,} of {num_workers} workers would take "
            f"{secs:.3g} s with emulation.link_bytes_per_sec={config.link_bytes_per_sec}, "
            f"emulation.port_bytes_per_sec={config.port_bytes_per_sec}, emulation.incast={config.incast:g}, "
            f"emulation.latency_secs={config.latency_secs} and emulation.stragglers={config.stragglers!r}, above the "
            f"{MOST_SECS:g} s that calls have for it; emulate faster links, or a smaller model"
        )


class Pacing:
    """Keeps transfers waiting for their emulated end; called by the threads that carry them.

    The lock guards the wire and what is known of slow links.

    Args:
      wire: computes when transfers end.
      push_bytes, pull_bytes: size in bytes of a whole contribution, and of all parameters.
      clock: clock for the emulated transfers.
      wait: blocks for some seconds.
      stragglers: workers whose transfers take longer, and when.
      sizes: returns both sizes in bytes for the phase that is served; None where they are always the same.
    """

    def __init__(
        self,
        wire: Wire,
        push_bytes: int,
        pull_bytes: int,
        clock: Clock = SYSTEM_CLOCK,
        wait: Callable[[float], None] = pause,
        stragglers: Stragglers = NO_STRAGGLERS,
        sizes: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._wire, self._sizes = wire, sizes or (lambda: (push_bytes, pull_bytes))
        self._clock, self._wait = clock, wait
        self._lock = threading.Lock()
        self._slow = SlowLinks(stragglers.of)

    def push_begins(self, push: Push) -> Callable[[], None]:
        """Return what blocks until the push that begins now has arrived."""
        with self._lock:
            slow = self._slow.of(push)
            return self._until(self._wire.begin_push(self._clock.monotonic(), self._sizes()[0], slow))

    def pull_begins(self, push: Push) -> Callable[[], None]:
        """Return what blocks until the pull that begins now for `push` has arrived."""
        with self._lock:
            slow = self._slow.of(push)
            return self._until(self._wire.begin_pull(self._clock.monotonic(), self._sizes()[1], slow))

    def _until(self, transfer: Transfer) -> Callable[[], None]:
        def left() -> float:
            with self._lock:
                return transfer.arrives - self._clock.monotonic()

        def block() -> None:
            while (secs := left()) > 0:  # others that have begun meanwhile make it later
                self._wait(secs)

        return block


class DelayedPort:
    """A parameter server behind emulated links: a `ParameterPort` around its own.

    Args:
      port: the server's own port.
      pacing: keeps transfers waiting.
    """

    def __init__(self, port: ParameterPort, pacing: Pacing) -> None:
        self._port, self._pacing = port, pacing

    def pull(self, push: Push) -> Answer:
        """Lend the current parameters; they arrive when the emulated link has carried them."""
        return self._delayed(push, self._port.pull(push))

    def begin_push(self, push: Push) -> Callable[[Any], Answer]:
        """Take the link and the port for the push from now on; it is offered when they have carried it."""
        arrives, offer = self._pacing.push_begins(push), self._port.begin_push(push)

        def offer_arrived(contribution: Any) -> Answer:
            arrives()
            answer = offer(contribution)
            return self._delayed(push, answer) if answer.reply.brings_parameters(push) else answer

        return offer_arrived

    def idle(self, push: Push) -> None:
        """Pass on: nothing is carried that takes time."""
        self._port.idle(push)

    def ready(self, push: Push) -> None:
        """Pass on: nothing is carried that takes time."""
        self._port.ready(push)

    def _delayed(self, push: Push, answer: Answer) -> Answer:
        return replace(answer, await_arrival=self._pacing.pull_begins(push))
