"""A transport whose buffers go over links of its own, beside gRPC, which carries everything else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridsync.core.work_deadlines import UNWATCHED, Watching
from hybridsync.interfaces.ports import Evaluate
from hybridsync.security.keyring import NO_KEYS, Keyring
from hybridsync.transport.connected_links import ConnectedBlocks, ConnectedParameters, LinkConnection
from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.link import ChiefPort, ControlLink, HolderLink, PeerLink, ReaderLink, Services, Serving
from hybridsync.transport.link_service import LinkService

if TYPE_CHECKING:
    from hybridsync.server.partition import Part
    from hybridsync.worker.link import ServerLink


class TransportBesideGrpc(ABC):
    """Gives links over connections of a subclass, and leaves the other calls to gRPC.

    Args:
      keys: keys of this process, which its calls show, and which it asks for.
    """

    def __init__(self, keys: Keyring = NO_KEYS) -> None:
        self._keys = keys
        self._control = GrpcTransport(keys, self._reader)

    # --- what each kind of link does its own way ---

    @abstractmethod
    def serve(self, services: Services, address: str, calls: int, watchdog: Watching = UNWATCHED) -> Serving:
        """See `Transport.serve`."""

    @abstractmethod
    def _connection(self, address: str, who: str, contribution_bytes: int) -> LinkConnection:
        """Return a connection to a server, not made yet, that brings contributions of so many bytes."""

    @abstractmethod
    def _reader(self, address: str, state_bytes: int) -> ReaderLink:
        """Return what reads the state that a role keeps."""

    # --- what they share ---

    def allocate(self, num_bytes: int) -> np.ndarray:
        """See `Transport.allocate`."""
        return self._control.allocate(num_bytes)

    def chief(self, address: str, deadline_secs: float) -> ChiefPort:
        """See `Transport.chief`."""
        return self._control.chief(address, deadline_secs)

    def holder(self, address: str, state_bytes: int = 0) -> HolderLink:
        """See `Transport.holder`."""
        return self._control.holder(address, state_bytes)

    def server(self, address: str, state_bytes: int) -> ControlLink:
        """See `Transport.server`."""
        return self._control.server(address, state_bytes)

    def peer(self, address: str, state_bytes: int) -> PeerLink:
        """See `Transport.peer`."""
        return self._control.peer(address, state_bytes)

    def evaluator(self, address: str, state_bytes: int) -> Evaluate:
        """See `Transport.evaluator`."""
        return self._control.evaluator(address, state_bytes)

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
        return PackedLink(parts, primary, others, self._control.optimizers(servers, parts))


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
