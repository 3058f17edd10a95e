"""Which transport carries a run's buffers between processes."""

from __future__ import annotations

import pytest

from hybridsync.core.errors import ConfigError
from hybridsync.runtime.wiring import transport as wiring
from hybridsync.runtime.wiring.transport import choose, transport_of
from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.shared_memory.transport import SharedMemoryTransport


def test_shared_memory_is_taken_where_roles_serve_on_sockets_and_grpc_elsewhere() -> None:
    assert choose("auto", sockets=True) == choose("shm", sockets=True) == "shm"
    assert choose("auto", sockets=False) == choose("grpc", sockets=False) == choose("grpc", sockets=True) == "grpc"
    assert isinstance(transport_of("shm", ""), SharedMemoryTransport)
    assert isinstance(transport_of("grpc", ""), GrpcTransport)


@pytest.mark.parametrize(("system", "sockets"), [("Linux", False), ("Darwin", True)])
def test_shared_memory_that_does_not_suit_is_refused_where_it_was_asked_for(
    system: str, sockets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring.platform, "system", lambda: system)
    assert choose("auto", sockets=sockets) == "grpc"
    with pytest.raises(ConfigError, match="--link=shm needs Linux, and roles that serve on sockets; leave out --bind"):
        choose("shm", sockets=sockets)
