"""A transport whose buffers go over links of its own, beside gRPC, which carries everything else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hybridsync.transport.connected_links import ConnectedBlocks, ConnectedParameters, ConnectedReader, LinkConnection
from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.link import Serving
from hybridsync.transport.link_service import LinkService

if TYPE_CHECKING:
    from hybridsync.server.partition import Part
    from hybridsync.worker.link import ServerLink


class TransportBesideGrpc(GrpcTransport, ABC):
    """Gives links over connections of a subclass, and leaves the other calls to gRPC.

    Args:
      keys: keys of this process, which its calls show, and which it asks for.
    """

    @abstractmethod
    def _connection(self, address: str, who: str, contribution_bytes: int) -> LinkConnection:
        """Return a connection to a server, not made yet, that brings contributions of so many bytes."""

    @abstractmethod
    def _reader(self, address: str, state_bytes: int) -> ConnectedReader: ...

    def link(self, servers: Sequence[str], parts: Sequence[Part]) -> ServerLink:
        """See `Transport.link`."""
        from hybridsync.transport.packed_link import PackedLink  # jax, which a supervisor does without

        assert len(servers) == len(parts), "a phase names every server"
        connections = [
            self._connection(address, f"server {part.server}", part.contribution.layout.nbytes)
            for address, part in zip(servers, parts, strict=True)
        ]
        sizes = [part.parameters.layout.nbytes for part in parts]
        primary = ConnectedParameters(connections[0], sizes[0])
        others = [ConnectedBlocks(*pair) for pair in zip(connections[1:], sizes[1:], strict=True)]
        return PackedLink(parts, primary, others, self.optimizers(servers, parts))


class ServingBesideGrpc:
    """Serves a role's calls over gRPC, and its buffers beside them.

    Args:
      control: gRPC's part; its address is the role's.
      bulk: the part of the buffers.
    """

    def __init__(self, control: Serving, bulk: LinkService) -> None:
        self._control, self._bulk, self.address = control, bulk, control.address

    def stop(self, grace_secs: float | None = None, wait_secs: float = 0.0) -> None:
        """See `Serving.stop`."""
        self._bulk.stop(wait_secs)
        self._control.stop(grace_secs, wait_secs)
