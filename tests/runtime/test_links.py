"""Which transport carries a run's buffers between processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hybridsync.core.errors import ConfigError
from hybridsync.runtime import wiring
from hybridsync.runtime.wiring import choose_link, transport_of
from hybridsync.security.keyring import NO_KEYS
from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.shared_memory.transport import SharedMemoryTransport
from hybridsync.transport.tcp.transport import TcpTransport


def test_shared_memory_is_taken_where_roles_serve_on_sockets_and_grpc_elsewhere() -> None:
    assert choose_link("auto", sockets=True) == choose_link("shm", sockets=True) == "shm"
    assert (
        choose_link("auto", sockets=False)
        == choose_link("grpc", sockets=False)
        == choose_link("grpc", sockets=True)
        == "grpc"
    )
    assert isinstance(transport_of("shm", NO_KEYS), SharedMemoryTransport)
    assert isinstance(transport_of("grpc", NO_KEYS), GrpcTransport)


@pytest.mark.parametrize("sockets", [True, False])
def test_tcp_is_taken_where_it_is_asked_for_and_only_there(sockets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_link("tcp", sockets=sockets) == "tcp"
    assert isinstance(transport_of("tcp", NO_KEYS), TcpTransport)
    monkeypatch.setattr(wiring.platform, "system", lambda: "Darwin")
    with pytest.raises(ConfigError, match="--link=tcp needs Linux, and this is Darwin; take --link=grpc"):
        choose_link("tcp", sockets=sockets)


@pytest.mark.parametrize(("system", "sockets"), [("Linux", False), ("Darwin", True)])
def test_shared_memory_that_does_not_suit_is_refused_where_it_was_asked_for(
    system: str, sockets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring.platform, "system", lambda: system)
    assert choose_link("auto", sockets=sockets) == "grpc"
    with pytest.raises(ConfigError, match="--link=shm needs Linux, and roles that serve on sockets; leave out --bind"):
        choose_link("shm", sockets=sockets)


def test_a_role_needs_no_more_of_the_transports_than_was_imported_before_it_was_forked() -> None:
    program = """
import importlib, sys
from hybridsync.runtime.processes import ROLE_MODULES
from hybridsync.runtime.wiring import transport_of
from hybridsync.security.keyring import NO_KEYS
for name in ROLE_MODULES:
    importlib.import_module(name)
before = {*sys.modules}
for kind in ("grpc", "shm"):
    transport_of(kind, NO_KEYS)
print(sorted({*sys.modules} - before))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout == "[]\n"
