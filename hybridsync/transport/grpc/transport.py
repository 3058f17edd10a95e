"""gRPC as a transport: for each port a servicer and a client of its shape, all of a role's on one port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import grpc

from hybridsync.core.work_deadlines import UNWATCHED, Watching
from hybridsync.transport.grpc.channels import Servicer, make_server
from hybridsync.transport.grpc.chief import ChiefClient, ChiefServicer
from hybridsync.transport.grpc.declared_calls import watched_calls
from hybridsync.transport.grpc.optimizer_state import OptimizerClient, OptimizerServicer
from hybridsync.transport.grpc.parameter_server import ParameterClient, ParameterServicer, PhaseServicer
from hybridsync.transport.grpc.shard import ShardClient, ShardServicer
from hybridsync.transport.grpc.snapshot_source import SnapshotClient, SnapshotServicer
from hybridsync.transport.link import ChiefLink, ControlLink, HolderLink, PeerLink, Services, Serving

if TYPE_CHECKING:
    from hybridsync.server.partition import Part
    from hybridsync.worker.link import ServerLink


class GrpcTransport:
    """A `Transport` between processes.

    Addresses are `host:port`, of which port 0 takes a free one, or `unix:` and the path of a socket.

    Args:
      token: of the run: shown in each call, and asked for; "" for none.
    """

    def __init__(self, token: str = "") -> None:
        self._token = token

    def serve(self, services: Services, address: str, calls: int, watchdog: Watching = UNWATCHED) -> Serving:
        """See `Transport.serve`; each call occupies a thread.

        Raises:
          AddressError: the address is not on the loopback interface, is malformed, or in use; or its folder is open to
            other users.
        """
        interceptors = [watched_calls(watchdog, services.state_bytes)]
        server, bound = make_server(servicers_of(services), address, calls, interceptors, self._token)
        server.start()
        return _Serving(server, bound)

    def chief(self, address: str, deadline_secs: float) -> ChiefLink:
        """See `Transport.chief`."""
        return ChiefClient(address, deadline_secs, self._token)

    def holder(self, address: str, state_bytes: int = 0) -> HolderLink:
        """See `Transport.holder`."""
        return SnapshotClient(address, state_bytes=state_bytes, token=self._token)

    def server(self, address: str, state_bytes: int) -> ControlLink:
        """See `Transport.server`."""
        return ParameterClient(address, state_bytes=state_bytes, token=self._token)

    def peer(self, address: str, state_bytes: int) -> PeerLink:
        """See `Transport.peer`."""
        return ShardClient(address, state_bytes=state_bytes, token=self._token)

    def link(self, servers: Sequence[str], parts: Sequence[Part]) -> ServerLink:
        """See `Transport.link`."""
        from hybridsync.transport.packed_link import PackedLink  # jax, which a supervisor does without

        assert len(servers) == len(parts), "a phase names every server"
        return PackedLink(
            parts,
            ParameterClient(servers[0], token=self._token),
            [ShardClient(address, token=self._token) for address in servers[1:]],
            [
                OptimizerClient(address, part.opt_state.layout.nbytes, self._token)
                for address, part in zip(servers, parts, strict=True)
            ],
        )


class _Serving:
    """A role's gRPC server."""

    def __init__(self, server: grpc.Server, address: str) -> None:
        self._server, self.address = server, address

    def stop(self, grace_secs: float | None = None, wait_secs: float = 0.0) -> None:
        """See `Serving.stop`."""
        self._server.stop(grace_secs).wait(wait_secs)


def servicers_of(services: Services) -> list[Servicer]:
    """Return a servicer for each thing that a role offers."""
    found: list[Servicer] = [SnapshotServicer(services.holder)]
    if services.chief is not None:
        found.append(ChiefServicer(services.chief))
    if services.server is not None:
        found.append(PhaseServicer(services.server))
    if services.parameters is not None:
        found.append(ParameterServicer(services.parameters, services.contribution_bytes, services.num_buffers))
    if services.shard is not None:
        found.append(ShardServicer(services.shard, services.contribution_bytes, services.num_buffers))
    if services.optimizer is not None:
        found.append(OptimizerServicer(services.optimizer, services.opt_state_bytes))
    return found
