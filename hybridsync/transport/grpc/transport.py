"""gRPC as a transport: for each port a servicer and a client of its shape, all of a role's on one port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import grpc
import numpy as np

from hybridsync.core.addresses import socket_path
from hybridsync.core.kept_socket import KeptSocket
from hybridsync.core.work_deadlines import UNWATCHED, Watching
from hybridsync.interfaces.ports import (
    ChiefPort,
    Evaluate,
    HeadPort,
    OptimizerPort,
    ServerPort,
    ShardPort,
    SnapshotSource,
)
from hybridsync.security.authorization import Admit, admit_all
from hybridsync.security.keyring import NO_KEYS, Keyring
from hybridsync.transport.buffers import zeroed
from hybridsync.transport.grpc.channels import Servicer, make_server
from hybridsync.transport.grpc.chief import ChiefClient, ChiefServicer
from hybridsync.transport.grpc.evaluator import EvaluatorClient, EvaluatorServicer
from hybridsync.transport.grpc.head import HeadClient, HeadServicer
from hybridsync.transport.grpc.interceptors import watched_calls
from hybridsync.transport.grpc.optimizer_state import OptimizerClient, OptimizerServicer
from hybridsync.transport.grpc.own_buffers import OwnBlocks, OwnParameters
from hybridsync.transport.grpc.parameter_server import ParameterClient, ParameterServicer, PhaseServicer
from hybridsync.transport.grpc.shard import ShardClient, ShardServicer
from hybridsync.transport.grpc.snapshot_source import SnapshotClient, SnapshotServicer
from hybridsync.transport.link import Link, Services, Serving

if TYPE_CHECKING:
    from hybridsync.server.partition import Part
    from hybridsync.transport.connected_links import ConnectedReader
    from hybridsync.worker.link import ServerLink


class GrpcTransport:
    """A `Transport` between processes.

    Addresses are `host:port`, of which port 0 takes a free one, or `unix:` and the path of a socket.

    Args:
      keys: keys of this process, which its calls show, and which it asks for.
    """

    def __init__(self, keys: Keyring = NO_KEYS) -> None:
        self._keys = keys

    def allocate(self, num_bytes: int) -> np.ndarray:
        """See `Transport.allocate`; a stream copies whatever memory it is."""
        return zeroed(num_bytes)

    def serve(self, services: Services, address: str, calls: int, watchdog: Watching = UNWATCHED) -> Serving:
        """See `Transport.serve`; each call occupies a thread.

        Raises:
          AddressError: the address is not on the loopback interface and there are no credentials, is malformed, or in
            use; or its folder is open to other users.
        """
        return self.serve_with([], services, address, calls, watchdog)

    def serve_with(
        self, beside: Sequence[Servicer], services: Services, address: str, calls: int, watchdog: Watching = UNWATCHED
    ) -> Serving:
        """Serve a role, and `beside` the services of a transport that leaves all calls but some to this one."""
        interceptors = [watched_calls(watchdog, services.state_bytes)]
        handlers = [*servicers_of(services), *beside]
        return _Serving(lambda at: make_server(handlers, at, calls, interceptors, self._keys), address)

    def serve_head(self, head: HeadPort, address: str, calls: int, admit: Admit = admit_all) -> Serving:
        """Serve the head of a run on several hosts, for the agents of its hosts.

        Args:
          head: the head, called by several threads at a time.
          address: address to serve at; a part of it may be chosen, and the whole is returned.
          calls: maximum number of calls at a time: three for each agent.
          admit: decides by the certificate of each call whether the caller is refused.

        Raises:
          AddressError: the head cannot be served there.
        """
        return _Serving(lambda at: make_server([HeadServicer(head)], at, calls, keys=self._keys, admit=admit), address)

    def head(self, address: str) -> Link[HeadPort]:
        """Return the way to a head, which may start later; every call on it has a deadline."""
        client = HeadClient(address, self._keys)
        return Link(client, client.close)

    def chief(self, address: str, deadline_secs: float) -> ChiefPort:
        """See `Transport.chief`."""
        return ChiefClient(address, deadline_secs, self._keys)

    def holder(self, address: str, state_bytes: int = 0) -> Link[SnapshotSource]:
        """See `Transport.holder`."""
        reader = self._reader(address, state_bytes)
        client = SnapshotClient(address, state_bytes=state_bytes, reader=reader, keys=self._keys)
        return Link(client, client.close)

    def server(self, address: str, state_bytes: int) -> Link[ServerPort]:
        """See `Transport.server`."""
        reader = self._reader(address, state_bytes)
        client = ParameterClient(address, state_bytes=state_bytes, reader=reader, keys=self._keys)
        return Link(client, client.close)

    def peer(self, address: str, state_bytes: int) -> Link[ShardPort]:
        """See `Transport.peer`."""
        reader = self._reader(address, state_bytes)
        client = ShardClient(address, state_bytes=state_bytes, reader=reader, keys=self._keys)
        return Link(client, client.close)

    def evaluator(self, address: str, state_bytes: int) -> Evaluate:
        """See `Transport.evaluator`."""
        return EvaluatorClient(address, state_bytes, self._keys).evaluate

    def link(self, servers: Sequence[str], parts: Sequence[Part]) -> ServerLink:
        """See `Transport.link`."""
        from hybridsync.transport.packed_link import PackedLink  # jax, which a supervisor does without

        sizes = [(part.contribution.layout.nbytes, part.parameters.layout.nbytes) for part in parts]
        primary = OwnParameters(ParameterClient(servers[0], keys=self._keys), *sizes[0])
        clients = [ShardClient(address, keys=self._keys) for address in servers[1:]]
        others = [OwnBlocks(client, *size) for client, size in zip(clients, sizes[1:], strict=True)]
        return PackedLink(parts, primary, others, self.optimizers(servers, parts))

    def optimizers(self, servers: Sequence[str], parts: Sequence[Part]) -> list[OptimizerPort]:
        """Return the ways to the optimizer states at these servers, for one phase."""
        return [
            OptimizerClient(address, part.opt_state.layout.nbytes, self._keys)
            for address, part in zip(servers, parts, strict=True)
        ]

    def _reader(self, address: str, state_bytes: int) -> ConnectedReader | None:
        """Return what reads a state of so many bytes at an address in place of a stream; None where a stream does."""


class _Serving:
    """Serves a role over gRPC, at a socket for as long as it takes: see `KeptSocket`.

    Args:
      make: binds a server to an address; returns it, not started, and the address it is bound to.
      address: address to serve at.
    """

    def __init__(self, make: Callable[[str], tuple[grpc.Server, str]], address: str) -> None:
        self._make = make
        server, self.address = make(address)
        server.start()
        self._servers = [server]  # gRPC cannot bind a server that runs: the later ones serve later connections
        path = socket_path(self.address)
        self._socket = None if path is None else KeptSocket(path, self._serve_again)

    def stop(self, grace_secs: float | None = None, wait_secs: float = 0.0) -> None:
        """See `Serving.stop`."""
        if self._socket is not None:
            self._socket.close()
        for stopped in [server.stop(grace_secs) for server in self._servers]:
            stopped.wait(wait_secs)

    def _serve_again(self) -> None:
        server, _ = self._make(self.address)
        server.start()
        self._servers.append(server)


def servicers_of(services: Services) -> list[Servicer]:
    """Return a servicer for each thing that a role offers."""
    sizes = services.contribution_bytes, services.num_buffers, services.narrow_bytes
    found: list[Servicer] = [SnapshotServicer(services.holder)]
    if services.chief is not None:
        found.append(ChiefServicer(services.chief))
    if services.server is not None:
        found.append(PhaseServicer(services.server))
    if services.parameters is not None:
        found.append(ParameterServicer(services.parameters, *sizes))
    if services.shard is not None:
        found.append(ShardServicer(services.shard, *sizes))
    if services.optimizer is not None:
        found.append(OptimizerServicer(services.optimizer, services.opt_state_bytes))
    if services.evaluate is not None:
        found.append(EvaluatorServicer(services.evaluate))
    return found
