"""Roles that are threads of one process: they call each other's objects, and pass trees instead of buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridsync.core.errors import RoleLost
from hybridsync.core.work_deadlines import UNWATCHED, Watching
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.interfaces.ports import (
    Answer,
    ChiefPort,
    Evaluate,
    OptimizerPort,
    ParameterPort,
    ServerPort,
    ShardPort,
    SnapshotSource,
)
from hybridsync.server.partition import Part
from hybridsync.training.compiled_programs import Parameters
from hybridsync.transport.buffers import zeroed
from hybridsync.transport.link import Link, Services, Serving
from hybridsync.worker.link import ServerLink


class InProcessTransport:
    """A `Transport` without a wire. Every role is served before another one asks for it."""

    def __init__(self) -> None:
        self._roles: dict[str, Services] = {}

    def allocate(self, num_bytes: int) -> np.ndarray:
        """See `Transport.allocate`."""
        return zeroed(num_bytes)

    def serve(self, services: Services, address: str, calls: int = 0, watchdog: Watching = UNWATCHED) -> Serving:
        """See `Transport.serve`; callers bring their own threads."""
        self._roles[address] = services
        return _Served(self._roles, address)

    def chief(self, address: str, deadline_secs: float = 0.0) -> ChiefPort:
        """See `Transport.chief`; a call that is made is answered."""
        return self._offered(address, "chief")

    def holder(self, address: str, state_bytes: int = 0) -> Link[SnapshotSource]:
        """See `Transport.holder`."""
        return Link(self._offered(address, "holder"), _stay)

    def server(self, address: str, state_bytes: int = 0) -> Link[ServerPort]:
        """See `Transport.server`."""
        return Link(self._offered(address, "server"), _stay)

    def peer(self, address: str, state_bytes: int = 0) -> Link[ShardPort]:
        """See `Transport.peer`."""
        return Link(self._offered(address, "shard"), _stay)

    def evaluator(self, address: str, state_bytes: int) -> Evaluate:
        """See `Transport.evaluator`."""
        return self._offered(address, "evaluate")

    def link(self, servers: Sequence[str], parts: Sequence[Part] = ()) -> ServerLink:
        """See `Transport.link`; threads share one store, which has all of the trees."""
        (primary,) = servers
        return ThreadLink(self._offered(primary, "parameters"), self._offered(primary, "optimizer"))

    def _offered(self, address: str, service: str) -> Any:
        services = self._roles.get(address)
        offered = getattr(services, service, None)
        if offered is None:
            raise RoleLost(f"nobody serves as {service} at {address} in this process")
        return offered


class _Served:
    """A role that others find until it stops."""

    def __init__(self, roles: dict[str, Services], address: str) -> None:
        self._roles, self.address = roles, address

    def stop(self, grace_secs: float | None = None, wait_secs: float = 0.0) -> None:
        """Be found no more; calls under way end by themselves."""
        self._roles.pop(self.address, None)


def _stay() -> None:
    """Close nothing: there is nothing between two threads, and calls under way end by themselves."""


class ThreadLink:
    """A `ServerLink` to a primary in this process; trees go through as they are.

    Args:
      server: the primary.
      optimizer: the same, for workers with local updates; its buffers are trees here.
    """

    def __init__(self, server: ParameterPort, optimizer: OptimizerPort) -> None:
        self._server, self._optimizer = server, optimizer

    def pull(self, push: Push) -> tuple[PushReply, Parameters]:
        """See `ServerLink.pull`."""
        return _arrived(self._server.pull(push))

    def prepare(self, contribution: Any) -> None:
        """Do nothing: trees go through as they are."""

    def push_pull(self, push: Push, contribution: Any) -> tuple[PushReply, Parameters]:
        """See `ServerLink.push_pull`."""
        return _arrived(self._server.begin_push(push)(contribution))

    def push(self, push: Push, contribution: Any) -> PushReply:
        """See `ServerLink.push`."""
        return self._server.begin_push(push)(contribution).reply

    def idle(self, push: Push) -> None:
        """See `ServerLink.idle`."""
        self._server.idle(push)

    def ready(self, push: Push) -> None:
        """See `ServerLink.ready`."""
        self._server.ready(push)

    def download_opt_state(self, push: Push) -> Any:
        """See `ServerLink.download_opt_state`."""
        return self._optimizer.download_opt_state(push)

    def upload_opt_state(self, push: Push, opt_state: Any) -> None:
        """See `ServerLink.upload_opt_state`."""
        self._optimizer.upload_opt_state(push, opt_state)

    def close(self) -> None:
        """Do nothing: a push that is held ends with its phase."""


def _arrived(answer: Answer) -> tuple[PushReply, Parameters]:
    answer.await_arrival()
    return answer.reply, answer.parameters
