"""The end of a link over TCP at the role that calls."""

from __future__ import annotations

import secrets
import socket

import numpy as np

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.errors import HybridSyncError, RoleLost, Unauthenticated
from hybridsync.interfaces.messages import PushReply
from hybridsync.security.identity import MEMBER
from hybridsync.security.keyring import NO_KEYS, Keyring
from hybridsync.transport.buffers import zeroed
from hybridsync.transport.connected_links import LinkConnection
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.bulk_link import BulkLinkClient
from hybridsync.transport.grpc.codec import parse
from hybridsync.transport.grpc.frames import check_size
from hybridsync.transport.link_service import shut
from hybridsync.transport.link_session import CONTRIBUTING
from hybridsync.transport.tcp.handshake import ANSWER_BYTES, CALLER, NONCE_BYTES, ROLE, HandshakeKey, Hello
from hybridsync.transport.tcp.lanes import NOTHING, NUM_LANES, Lanes
from hybridsync.transport.tcp.private_hosts import bulk_host, private_host
from hybridsync.transport.tcp.service import HANDSHAKE_SECS


class TcpConnection(LinkConnection):
    """A `LinkConnection` over TCP; what a call lends is a buffer of this end, which the next such call fills.

    Args:
      address: address of the role's other calls.
      who: the role, for errors.
      keys: keys of this process, for the control call.
      deadline_secs: limit of a call, in seconds; None takes each call's own, by what it moves.
      contribution_bytes: size in bytes of the contributions that this end writes; 0 for none.
      num_sockets: number of sockets of the connection.
      role: role that is dialled; `MEMBER` for any role that holds the state.
    """

    def __init__(
        self,
        address: str,
        who: str,
        keys: Keyring = NO_KEYS,
        deadline_secs: float | None = None,
        contribution_bytes: int = 0,
        num_sockets: int = NUM_LANES,
        role: str = MEMBER,
    ) -> None:
        super().__init__(f"{who} at {address}")
        self._address, self._deadline_secs, self._num_sockets = address, deadline_secs, num_sockets
        self._places = BulkLinkClient(address, self._who, keys, role)
        self._contribution_bytes = contribution_bytes
        self._contribution: np.ndarray | None = None
        self._buffer = NOTHING  # what a reply brings
        self._is_spoiled = False  # it may hold half of something
        self._lanes: Lanes | None = None
        self._connecting: socket.socket | None = None

    @property
    def contribution(self) -> np.ndarray:
        """See `LinkConnection.contribution`."""
        if self._contribution is None:
            self._contribution = zeroed(self._contribution_bytes)
        return self._contribution

    def read_into(self, request: pb.LinkRequest, into: np.ndarray) -> None:
        """See `LinkConnection.read_into`; the bytes are received there."""
        kept, self._buffer = self._buffer, into
        try:
            self.call(request, into.nbytes)
        finally:
            self._buffer = kept
            self.hang_up()

    def close(self) -> None:
        """See `LinkConnection.close`."""
        self._closed.set()
        self._places.close()
        super().close()

    # --- a call ---

    def _secs_of(self, request: pb.LinkRequest, lent_bytes: int) -> float:
        if self._deadline_secs is not None:
            return self._deadline_secs
        return transfer_secs(lent_bytes + (request.num_bytes if request.call in CONTRIBUTING else 0))

    def _exchange(self, request: pb.LinkRequest, lent_bytes: int) -> tuple[pb.LinkReply, np.ndarray]:
        lanes = self._connected()
        sent = self.contribution if request.call in CONTRIBUTING else NOTHING
        assert request.call not in CONTRIBUTING or request.num_bytes == sent.nbytes, "a call brings what was written"
        lanes.within(self._secs_of(request, lent_bytes))
        lanes.send(request.SerializeToString(), sent)
        try:
            data = lanes.await_message()
            if data is None:
                raise ConnectionResetError(None, "it ended the connection")
            reply = parse(pb.LinkReply, data)
        except HybridSyncError:
            self._drop()
            raise
        if reply.error:
            raise self._refused(reply, request.call)
        return reply, self._received(lanes, request, reply, lent_bytes)

    def _received(self, lanes: Lanes, request: pb.LinkRequest, reply: pb.LinkReply, lent_bytes: int) -> np.ndarray:
        if lent_bytes and self._buffer.nbytes != lent_bytes:
            self._buffer = zeroed(lent_bytes)
        if not reply.num_bytes and (not lent_bytes or _has_them(request, reply)):
            if self._is_spoiled:
                raise RoleLost(f"{self._who} was lost while it sent the parameters that {request.call} relies on")
            return self._buffer
        try:
            check_size(reply.num_bytes, lent_bytes)
            self._is_spoiled = True
            lanes.receive(self._buffer)
            self._is_spoiled = False
        except HybridSyncError:
            self._drop()
            raise
        return self._buffer

    # --- the connection ---

    def _drop(self) -> None:
        lanes, self._lanes = self._lanes, None
        if lanes is not None:
            lanes.close()

    def _interrupt(self) -> None:
        lanes, connecting = self._lanes, self._connecting
        if lanes is not None:
            lanes.shut()
        if connecting is not None:
            shut(connecting)

    def _connected(self) -> Lanes:
        if self._lanes is None:
            host = private_host(bulk_host(self._address))
            place = self._places.open(self._num_sockets)
            key = HandshakeKey(place.connection_id, place.key)
            sockets: list[socket.socket] = []
            try:
                for lane in range(self._num_sockets):
                    sockets.append(self._proven(host, place.port, key, lane))
                self._lanes = Lanes(sockets)
            except BaseException:
                for each in sockets:
                    each.close()
                raise
            if self._closed.is_set():  # it was while this thread connected
                raise ConnectionAbortedError(None, "this end was closed")
        return self._lanes

    def _proven(self, host: str, port: int, key: HandshakeKey, lane: int) -> socket.socket:
        """Return a socket of the connection, when both ends have proven themselves."""
        made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        self._connecting = made
        try:
            made.settimeout(HANDSHAKE_SECS)
            made.connect((host, port))
            hello = Hello(key.connection_id, lane, secrets.token_bytes(NONCE_BYTES))
            made.sendall(hello.pack())
            answer = _exactly(made, ANSWER_BYTES)
            nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
            if not key.is_proof(ROLE, hello, nonce, proof):
                raise Unauthenticated(
                    f"{self._who} did not prove at port {port} that it knows the key of this connection; does another "
                    "process listen there?"
                )
            made.sendall(key.proof(CALLER, hello, nonce))
            made.settimeout(None)
        except BaseException:
            made.close()
            raise
        finally:
            self._connecting = None
        return made


def _has_them(request: pb.LinkRequest, reply: pb.LinkReply) -> bool:
    """Return whether the caller has the parameters that the reply to a push speaks of."""
    # It needs no more of the push than its base.
    return request.call == "push_pull" and not PushReply(reply.reply.sequence).brings_parameters(request.push)  # pyright: ignore[reportArgumentType]


def _exactly(connection: socket.socket, num_bytes: int) -> bytes:
    found, deadline = bytearray(), SYSTEM_CLOCK.monotonic() + HANDSHAKE_SECS
    while len(found) < num_bytes:
        if (left := deadline - SYSTEM_CLOCK.monotonic()) <= 0:
            raise TimeoutError(None, f"it proved nothing within {HANDSHAKE_SECS:g} s")
        connection.settimeout(left)
        more = connection.recv(num_bytes - len(found))
        if not more:
            raise ConnectionResetError(None, "it ended the connection before it was proven")
        found += more
    return bytes(found)
