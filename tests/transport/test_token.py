"""Who reaches a role: only calls that show the run's token, and on a socket only this user's."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from hybridsync.core.addresses import MAX_SOCKET_PATH, at_socket
from hybridsync.core.errors import AddressError, Unauthenticated
from hybridsync.security.keyring import Keyring
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.channels import make_server
from hybridsync.transport.grpc.chief import ChiefClient, ChiefServicer
from hybridsync.transport.grpc.interceptors import TOKEN_KEY
from hybridsync.transport.grpc.parameter_server import ParameterClient
from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.link import Services
from tests.roles import hello
from tests.transport.conftest import PHASE_ID, FakeChief, FakeServer

TOKEN, SECS = "5ca1ab1e" * 8, 10.0
NOT_SHOWN = "this call does not show the token of the run"


@pytest.fixture
def private() -> Iterator[Path]:
    """A folder of this user's alone, with a short name; pytest's own are too long for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def role(private: Path) -> Iterator[str]:
    serving = GrpcTransport(Keyring(TOKEN)).serve(_services(), at_socket(private / "role"), calls=8)
    yield serving.address
    serving.stop(wait_secs=SECS)


def _services() -> Services:
    return Services(holder=FakeServer(np.zeros(8, np.uint8)), chief=FakeChief())


def _every_method() -> list[str]:
    services = pb.DESCRIPTOR.services_by_name.values()
    return [f"/{service.full_name}/{method.name}" for service in services for method in service.methods]


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        ((TOKEN_KEY, "0" * 64),),
        ((TOKEN_KEY, TOKEN[:-1]),),
        ((TOKEN_KEY, TOKEN), (TOKEN_KEY, TOKEN)),
        ((TOKEN_KEY, ""),),
    ],
    ids=["none", "another", "a part", "twice", "empty"],
)
def test_no_method_answers_a_call_without_the_token_and_none_reads_what_it_says(
    role: str, metadata: tuple[tuple[str, str], ...]
) -> None:
    with grpc.insecure_channel(role) as channel:
        for method in _every_method():
            unary, stream = channel.unary_unary(method), channel.stream_stream(method)
            calls: list[Callable[[], Any]] = [
                lambda unary=unary: unary(b"no message", timeout=SECS, metadata=metadata),
                lambda stream=stream: list(stream(iter([b"no message"]), timeout=SECS, metadata=metadata)),
            ]
            for call in calls:
                with pytest.raises(grpc.RpcError) as refused:
                    call()
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED, method
                assert (refused.value.details() or "").startswith(NOT_SHOWN), method


def test_a_client_of_another_run_is_told_so_at_once(role: str, closing: Callable[[Any], Any]) -> None:
    for client in (ChiefClient(role, SECS), ChiefClient(role, SECS, Keyring("0" * 64))):
        with pytest.raises(Unauthenticated, match=NOT_SHOWN):
            closing(client).register(hello(0, schema="same"))
    with pytest.raises(Unauthenticated, match=NOT_SHOWN):
        closing(ParameterClient(role, SECS)).fence(PHASE_ID, 0, 1)


def test_a_call_with_the_token_is_answered(role: str, closing: Callable[[Any], Any]) -> None:
    welcome = closing(ChiefClient(role, SECS, Keyring(TOKEN))).register(hello(0, schema="same"))
    assert welcome == FakeChief().register(hello(0, schema="same"))


def test_a_token_that_is_left_out_is_asked_of_nobody(private: Path, closing: Callable[[Any], Any]) -> None:
    server, address = make_server([ChiefServicer(FakeChief())], at_socket(private / "open"))
    server.start()
    try:
        closing(ChiefClient(address, SECS)).register(hello(0, schema="same"))
    finally:
        server.stop(None).wait(SECS)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_is_open_to_others_is_refused(private: Path, mode: int) -> None:
    private.chmod(mode)
    with pytest.raises(AddressError, match=rf"will not serve on .*: its folder belongs to user .* mode {mode:o}; it"):
        make_server([], at_socket(private / "role"))


def test_a_path_that_no_socket_has_and_a_folder_that_is_not_there_are_refused(private: Path) -> None:
    with pytest.raises(AddressError, match=f"has at most {MAX_SOCKET_PATH} bytes"):
        make_server([], at_socket(private / ("x" * MAX_SOCKET_PATH)))
    with pytest.raises(AddressError, match="No such file or directory"):
        make_server([], at_socket(private / "absent" / "role"))


def test_a_role_takes_the_place_of_one_that_has_died(private: Path, closing: Callable[[Any], Any]) -> None:
    path = private / "role"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    assert path.is_socket(), "a killed process leaves its socket behind"
    serving = GrpcTransport(Keyring(TOKEN)).serve(_services(), at_socket(path), calls=4)
    closing(ChiefClient(serving.address, SECS, Keyring(TOKEN))).register(hello(0, schema="same"))
    serving.stop(wait_secs=SECS)
