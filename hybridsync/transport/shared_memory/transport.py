"""Shared memory as a transport for the roles of one host: buffers lie in slabs, and gRPC carries everything else."""

from __future__ import annotations

import numpy as np

from hybridsync.core.addresses import socket_path
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.work_deadlines import UNWATCHED, Watching
from hybridsync.security.keyring import NO_KEYS, Keyring
from hybridsync.transport.beside_grpc import ServingBesideGrpc, TransportBesideGrpc
from hybridsync.transport.connected_links import ConnectedReader
from hybridsync.transport.link import Services, Serving
from hybridsync.transport.link_service import READERS
from hybridsync.transport.shared_memory.connection import Connection
from hybridsync.transport.shared_memory.service import SlabService
from hybridsync.transport.shared_memory.slabs import SlabMemory

SUFFIX = ".slabs"
"""Ending of the name of a role's socket for slabs; the rest is the name of the socket for its other calls."""


class SharedMemoryTransport(TransportBesideGrpc):
    """A `Transport` between processes of one host; addresses are `unix:` and the path of a socket.

    Args:
      keys: keys of this process, which its calls and connections show, and which it asks for. The token of a run on one
        host is never exchanged.
    """

    def __init__(self, keys: Keyring = NO_KEYS) -> None:
        super().__init__(keys)
        self._memory = SlabMemory()

    def allocate(self, num_bytes: int) -> np.ndarray:
        """See `Transport.allocate`; others read it where it lies."""
        return self._memory.allocate(num_bytes)

    def serve(self, services: Services, address: str, calls: int, watchdog: Watching = UNWATCHED) -> Serving:
        """See `Transport.serve`; each connection occupies a thread.

        Raises:
          AddressError: the role cannot be served there.
        """
        control = super().serve(services, address, calls, watchdog)
        try:
            most = calls + READERS
            slabs = SlabService(services, self._memory, _slabs_of(control.address), self._keys.token, most)
        except BaseException:
            control.stop()
            raise
        return ServingBesideGrpc(control, slabs)

    def _connection(self, address: str, who: str, contribution_bytes: int) -> Connection:
        return Connection(_slabs_of(address), self._keys.token, who, contribution_bytes=contribution_bytes)

    def _reader(self, address: str, state_bytes: int) -> ConnectedReader:
        secs = transfer_secs(state_bytes)
        return ConnectedReader(Connection(_slabs_of(address), self._keys.token, "the state's holder", secs))


def _slabs_of(address: str) -> str:
    path = socket_path(address)
    assert path is not None, f"{address} is no socket, and its role shares no memory"
    return f"{path}{SUFFIX}"
