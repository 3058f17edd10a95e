"""A connection for buffers may do what the certificate may, by which its place was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hybridsync.core.errors import HandshakeRefused, PermissionDenied, StalePhase
from hybridsync.security.authorization import RULES
from hybridsync.security.certificates import Authority
from hybridsync.security.keyring import Keyring
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.link import Services
from hybridsync.transport.link_session import CONTRIBUTING, METHODS
from hybridsync.transport.tcp.connection import TcpConnection
from hybridsync.transport.tcp.transport import TcpTransport
from tests.security.roles import NUM_BYTES, REACHED, SECS, TOKEN, Role

CALLERS = [("chief", 0), ("server", 0), ("server", 2), ("worker", 2)]


@contextmanager
def serving(role: Role, authority: Authority) -> Iterator[str]:
    port: Any = role
    services = Services(holder=port, parameters=port, shard=port, contribution_bytes=NUM_BYTES, num_buffers=4)
    serving = TcpTransport(Keyring(TOKEN, authority.issue("server"))).serve(services, "127.0.0.1:0", calls=8)
    yield serving.address
    serving.stop(wait_secs=SECS)


@contextmanager
def connected(address: str, authority: Authority, *caller: Any, dials: str = "server") -> Iterator[TcpConnection]:
    credentials = authority.issue(*caller)
    connection = TcpConnection(
        *(address, "server 0", Keyring(TOKEN, credentials), SECS), contribution_bytes=NUM_BYTES, role=dials
    )
    yield connection
    connection.close()


def request(call: str, worker: int) -> pb.LinkRequest:
    sent = NUM_BYTES if call in CONTRIBUTING else 0
    return pb.LinkRequest(call=call, push=pb.Push(worker=worker), num_bytes=sent)


@pytest.mark.parametrize("caller", CALLERS, ids=str)
def test_each_request_goes_by_the_row_of_its_method(authority: Authority, caller: tuple[str, int]) -> None:
    role = Role()
    with serving(role, authority) as address, connected(address, authority, *caller) as connection:
        for call, method in METHODS.items():
            role.seen.clear()
            may = bool(RULES[method].callers & {caller[0], f"{caller[0]} {caller[1]}"})
            kind, text = (StalePhase, REACHED) if may else (PermissionDenied, f"{method} was called with")
            with pytest.raises(kind, match=text):
                connection.call(request(call, worker=caller[1]))
            assert len(role.seen) == int(may), (call, role.seen)


def test_no_request_speaks_for_another_worker(authority: Authority) -> None:
    role = Role()
    with serving(role, authority) as address, connected(address, authority, "worker", 2) as connection:
        for call in METHODS:
            if call == "read":
                continue
            with pytest.raises(PermissionDenied, match=rf"{METHODS[call]} speaks for worker 3 .* of worker 2"):
                connection.call(request(call, worker=3))
        assert role.seen == []
        with pytest.raises(StalePhase, match=REACHED):  # the connection goes on behind each refusal
            connection.call(request("push_pull", worker=2))


@pytest.mark.parametrize("caller", ["host", "head", "user"])
def test_nobody_else_gets_a_place(authority: Authority, caller: str) -> None:
    role = Role()
    with (
        serving(role, authority) as address,
        connected(address, authority, caller, 0) as connection,
        pytest.raises(PermissionDenied, match=rf"BulkLink/Open was called with the certificate of {caller} 0"),
    ):
        connection.call(request("read", worker=0))
    assert role.seen == []


def test_no_place_is_asked_of_a_role_that_was_not_meant(authority: Authority) -> None:
    role = Role()
    with (
        serving(role, authority) as address,
        connected(address, authority, "worker", 2, dials="chief") as connection,
        pytest.raises(HandshakeRefused),
    ):
        connection.call(request("read", worker=0))
    assert role.seen == []
