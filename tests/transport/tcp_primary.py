"""A primary served over TCP, and whoever calls it."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridsync.core.addresses import at_socket
from hybridsync.interfaces.messages import Push
from hybridsync.security.keyring import Keyring
from hybridsync.server.endpoint import Endpoint
from hybridsync.server.publisher import ParameterPool
from hybridsync.transport.buffers import zeroed
from hybridsync.transport.connected_links import ConnectedParameters, ConnectedReader
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.bulk_link import BulkLinkClient, BulkLinkServicer, Place
from hybridsync.transport.grpc.codec import encode
from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.link import Services, Serving
from hybridsync.transport.tcp.connection import TcpConnection
from hybridsync.transport.tcp.handshake import ANSWER_BYTES, CALLER, NONCE_BYTES, HandshakeKey, Hello
from hybridsync.transport.tcp.lanes import Lanes
from hybridsync.transport.tcp.service import TcpService
from tests.roles import Start, counts, phase_of, push_of, tally_programs

SECS = 10.0
TOKEN = "the run's token"
UNITS = 8


class Served:
    """A role that takes buffers at a free port of this host.

    Args:
      folder: of the socket of its other calls.
      services: what it offers.
      most: connections at a time.
    """

    def __init__(self, folder: Path, services: Services, most: int = 8) -> None:
        self.services, self._closing = services, list[Callable[[], None]]()
        self.service = TcpService(services, "127.0.0.1", most)
        self.address = at_socket(folder / "role")
        self.control = self.serve_control()

    def serve_control(self) -> Serving:
        transport = GrpcTransport(Keyring(TOKEN))
        return transport.serve_with([BulkLinkServicer(self.service.open)], self.services, self.address, calls=8)

    def connection(self, deadline_secs: float | None = None, token: str = TOKEN, num_sockets: int = 2) -> TcpConnection:
        size = self.services.contribution_bytes
        made = TcpConnection(self.address, "server 0", Keyring(token), deadline_secs, size, num_sockets)
        self._closing.append(made.close)
        return made

    def place(self, num_sockets: int = 2) -> Place:
        """Return a place for a caller that says what it likes."""
        places = BulkLinkClient(self.address, "server 0", Keyring(TOKEN))
        try:
            return places.open(num_sockets)
        finally:
            places.close()

    def stranger(self) -> socket.socket:
        """Return a socket to the role that has said nothing."""
        made = socket.create_connection(("127.0.0.1", self.service.port), SECS)
        self._closing.append(made.close)
        return made

    def sockets(self, num_sockets: int = 2) -> list[socket.socket]:
        """Return the proven sockets of a connection."""
        place = self.place(num_sockets)
        return [self.proven(place, lane) for lane in range(num_sockets)]

    def proven(self, place: Place, lane: int) -> socket.socket:
        made, key = self.stranger(), HandshakeKey(place.connection_id, place.key)
        hello = Hello(place.connection_id, lane, secrets.token_bytes(NONCE_BYTES))
        made.sendall(hello.pack())
        answer = made.recv(ANSWER_BYTES, socket.MSG_WAITALL)
        made.sendall(key.proof(CALLER, hello, answer[:NONCE_BYTES]))
        return made

    def raw(self, num_sockets: int = 2) -> Lanes:
        """Return proven lanes of a caller that says what it likes."""
        sockets = self.sockets(num_sockets)
        for each in sockets:
            each.setblocking(True)
        lanes = Lanes(sockets)
        lanes.within(SECS)
        self._closing.append(lanes.close)
        return lanes

    def num_links(self) -> int:
        return len(self.service._sessions)

    def stop(self) -> None:
        self.service.stop(SECS)
        self.control.stop(wait_secs=SECS)

    def close(self) -> None:
        for close in reversed(self._closing):
            close()
        self.stop()


class TcpPrimary(Served):
    """A primary in a phase of the tally."""

    def __init__(self, folder: Path, spec: str = "asp", most: int = 8) -> None:
        programs, start = tally_programs(), Start()
        self.pool = ParameterPool(programs.parameters_layout, zeroed)
        self.primary = start.primary(publisher=self.pool, allocate=zeroed)
        self.phase = phase_of(1, spec, snapshot=start.snapshot, members=(0, 1, 2, 3))
        self.primary.enter(self.phase)
        self.parameters_bytes = programs.parameters_layout.nbytes
        services = Services(
            holder=self.primary,
            parameters=Endpoint(self.primary, programs.contribution_layout),
            contribution_bytes=programs.contribution_layout.nbytes,
            num_buffers=2,
        )
        super().__init__(folder, services, most)

    def parameters(self, deadline_secs: float | None = None, num_sockets: int = 2) -> ConnectedParameters:
        return ConnectedParameters(self.connection(deadline_secs, num_sockets=num_sockets), self.parameters_bytes)

    def reader(self) -> ConnectedReader:
        return ConnectedReader(self.connection())

    def push(self, *units: int, worker: int = 0) -> Push:
        return push_of(self.phase, *units, worker=worker)

    def request(self, call: str, *units: int, num_bytes: int = 0) -> bytes:
        return pb.LinkRequest(call=call, push=encode(self.push(*units)), num_bytes=num_bytes).SerializeToString()

    def applied(self) -> list[int]:
        """Return how often each unit was applied."""
        snapshot = self.primary.take_snapshot(self.phase.id, final=False)
        buffer = tally_programs().state_layout.empty()
        self.primary.read(snapshot.snapshot_id, buffer)
        return counts(tally_programs().state_layout.unpack(buffer))[:UNITS]


def answer(lanes: Lanes) -> pb.LinkReply:
    """Return the reply to what was sent; one without `answers` where the connection was ended."""
    return pb.LinkReply.FromString(lanes.await_message() or b"")


def is_ended(connection: socket.socket) -> bool:
    """Wait for the other end to end a connection."""
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def fail_to_start(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Have one thread of a connection fail to start, after so many that do."""
    start, before = threading.Thread.start, iter(range(after + 1))

    def failing(thread: threading.Thread) -> None:
        if thread.name.startswith("lane") and next(before, -1) == after:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", failing)
