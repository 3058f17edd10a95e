"""TCP as a transport for roles on different hosts: buffers go over sockets of their own, and gRPC carries the rest."""

from __future__ import annotations

from hybridsync.core.work_deadlines import UNWATCHED, Watching
from hybridsync.security.identity import SERVER
from hybridsync.transport.beside_grpc import ServingBesideGrpc, TransportBesideGrpc
from hybridsync.transport.connected_links import ConnectedReader
from hybridsync.transport.grpc.bulk_link import BulkLinkServicer
from hybridsync.transport.link import Services, Serving
from hybridsync.transport.link_service import READERS
from hybridsync.transport.tcp.connection import TcpConnection
from hybridsync.transport.tcp.private_hosts import bulk_host
from hybridsync.transport.tcp.service import TcpService


class TcpTransport(TransportBesideGrpc):
    """A `Transport` between processes; addresses are those of gRPC, and buffers go to free ports of the same hosts.

    A socket copies whatever memory a buffer lies in.

    Args:
      keys: keys of this process, which its calls show, and which it asks for. Buffers are never encrypted.
    """

    def serve(self, services: Services, address: str, calls: int, watchdog: Watching = UNWATCHED) -> Serving:
        """See `Transport.serve`; each connection occupies a thread, and one more for each further socket.

        Raises:
          AddressError: it cannot be served there, or the host has a public address.
        """
        bulk = TcpService(services, bulk_host(address), calls + READERS)
        try:
            control = self.serve_with([BulkLinkServicer(bulk.open)], services, address, calls, watchdog)
        except BaseException:
            bulk.stop()
            raise
        return ServingBesideGrpc(control, bulk)

    def _connection(self, address: str, who: str, contribution_bytes: int) -> TcpConnection:
        return TcpConnection(address, who, self._keys, contribution_bytes=contribution_bytes, role=SERVER)

    def _reader(self, address: str, state_bytes: int) -> ConnectedReader:
        return ConnectedReader(TcpConnection(address, "the state's holder", self._keys))
