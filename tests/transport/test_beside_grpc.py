"""What transports with links of their own for buffers share: a connection to each server; two services that end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hybridsync.security.keyring import Keyring
from hybridsync.server.partition import partition
from hybridsync.transport.beside_grpc import ServingBesideGrpc, TransportBesideGrpc
from hybridsync.transport.grpc.channels import make_server
from tests.tasks import mlp_task, momentum_sgd, programs_of


class Connected(TransportBesideGrpc):
    """Notes the connections that it is asked for."""

    def __init__(self) -> None:
        super().__init__(Keyring("the token of a run"))
        self.asked: list[tuple[str, str, int]] = []
        self.closed: list[str] = []

    def serve(self, *arguments: Any, **named: Any) -> Any:
        raise AssertionError("nobody serves here")

    def _connection(self, address: str, who: str, contribution_bytes: int) -> Any:
        self.asked.append((address, who, contribution_bytes))
        return _Closes(lambda: self.closed.append(who))

    def _reader(self, address: str, state_bytes: int) -> Any:
        raise AssertionError("nobody reads a state here")


class _Closes:
    def __init__(self, close: Callable[[], None]) -> None:
        self.close = close


class Stopped:
    """Notes in which order services are stopped, and how."""

    address = "unix:/a/role"

    def __init__(self, name: str, told: list[tuple[str, Any]]) -> None:
        self._name, self._told = name, told

    def stop(self, *how: Any) -> None:
        self._told.append((self._name, how))


@pytest.mark.parametrize("num_servers", [1, 3])
def test_a_link_has_a_connection_to_each_server_that_brings_its_part_of_a_contribution(num_servers: int) -> None:
    parts = partition(programs_of(mlp_task(), momentum_sgd()), num_servers)
    server, address = make_server([])
    transport = Connected()
    link = transport.link([address] * num_servers, parts)
    assert transport.asked == [
        (address, f"server {number}", part.contribution.layout.nbytes) for number, part in enumerate(parts)
    ]
    link.close()
    assert transport.closed == [f"server {number}" for number in range(num_servers)]
    server.stop(grace=None)


def test_a_link_to_fewer_servers_than_a_phase_has_is_a_defect() -> None:
    parts = partition(programs_of(mlp_task(), momentum_sgd()), 2)
    with pytest.raises(AssertionError, match=r"a phase names every server"):
        Connected().link(["127.0.0.1:1"], parts)


def test_the_links_of_buffers_end_before_the_calls_over_grpc_that_may_speak_of_them() -> None:
    told: list[tuple[str, Any]] = []
    serving = ServingBesideGrpc(Stopped("grpc", told), Stopped("buffers", told))  # pyright: ignore[reportArgumentType]
    assert serving.address == "unix:/a/role"
    serving.stop(0.5, 2.0)
    assert told == [("buffers", (2.0,)), ("grpc", (0.5, 2.0))]
