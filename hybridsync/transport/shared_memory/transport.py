"""Shared memory as a transport for the roles of one host: buffers lie in slabs, and gRPC carries everything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridsync.core.addresses import socket_path
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.work_deadlines import UNWATCHED, Watching
from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.link import ChiefLink, ControlLink, HolderLink, PeerLink, ReaderLink, Services, Serving
from hybridsync.transport.shared_memory.connection import Connection
from hybridsync.transport.shared_memory.links import SharedBlocks, SharedParameters, SharedReader
from hybridsync.transport.shared_memory.service import SlabService
from hybridsync.transport.shared_memory.slabs import SlabMemory

if TYPE_CHECKING:
    from hybridsync.server.partition import Part
    from hybridsync.worker.link import ServerLink

READERS = 300
"""Connections beside those of the calls: every role of a host may read a state at a time."""

SUFFIX = ".slabs"
"""What the name of a role's socket for slabs ends with, beside that of its other calls."""


class SharedMemoryTransport:
    """A `Transport` between processes of one host; addresses are `unix:` and the path of a socket.

    Args:
      token: of the run: shown in each connection, and asked for; "" for none.
    """

    def __init__(self, token: str = "") -> None:
        self._token, self._memory = token, SlabMemory()
        self._control = GrpcTransport(token, self._reader)

    def allocate(self, num_bytes: int) -> np.ndarray:
        """See `Transport.allocate`; others read it where it lies."""
        return self._memory.allocate(num_bytes)

    def serve(self, services: Services, address: str, calls: int, watchdog: Watching = UNWATCHED) -> Serving:
        """See `Transport.serve`; each connection occupies a thread.

        Raises:
          AddressError: it cannot be served there.
        """
        control = self._control.serve(services, address, calls, watchdog)
        try:
            most = calls + READERS
            slabs = SlabService(services, self._memory, _slabs_of(control.address), self._token, most)
        except BaseException:
            control.stop()
            raise
        return _Serving(control, slabs)

    def chief(self, address: str, deadline_secs: float) -> ChiefLink:
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

    def link(self, servers: Sequence[str], parts: Sequence[Part]) -> ServerLink:
        """See `Transport.link`."""
        from hybridsync.transport.packed_link import PackedLink  # jax, which a supervisor does without

        assert len(servers) == len(parts), "a phase names every server"
        connections = [
            Connection(
                _slabs_of(address),
                self._token,
                f"server {part.server}",
                contribution_bytes=part.contribution.layout.nbytes,
            )
            for address, part in zip(servers, parts, strict=True)
        ]
        sizes = [part.parameters.layout.nbytes for part in parts]
        primary = SharedParameters(connections[0], sizes[0])
        others = [SharedBlocks(*pair) for pair in zip(connections[1:], sizes[1:], strict=True)]
        return PackedLink(parts, primary, others, self._control.optimizers(servers, parts))

    def _reader(self, address: str, state_bytes: int) -> ReaderLink:
        secs = transfer_secs(state_bytes)
        return SharedReader(Connection(_slabs_of(address), self._token, "the state's holder", secs))


class _Serving:
    """A role's two services."""

    def __init__(self, control: Serving, slabs: SlabService) -> None:
        self._control, self._slabs, self.address = control, slabs, control.address

    def stop(self, grace_secs: float | None = None, wait_secs: float = 0.0) -> None:
        """See `Serving.stop`."""
        self._slabs.stop(wait_secs)
        self._control.stop(grace_secs, wait_secs)


def _slabs_of(address: str) -> str:
    path = socket_path(address)
    assert path is not None, f"{address} is no socket, and its role shares no memory"
    return f"{path}{SUFFIX}"
