"""A socket whose file is removed while it is served: another one is made, and open connections stay."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridsync.collectives.shared_memory.service import SumService, join
from hybridsync.core import kept_socket
from hybridsync.core.addresses import at_socket
from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.errors import RoleLost
from hybridsync.core.kept_socket import KeptSocket
from hybridsync.security.keyring import Keyring
from hybridsync.transport.grpc.chief import ChiefClient
from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.link import Services
from hybridsync.transport.shared_memory.service import SlabService
from hybridsync.transport.shared_memory.slabs import SlabMemory
from hybridsync.transport.shared_memory.transport import SharedMemoryTransport
from tests.roles import hello
from tests.transport.conftest import FakeChief, FakeServer
from tests.transport.slab_role import Lent

WAIT_SECS = 60.0
KEYS = Keyring("5ca1ab1e" * 8)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of this user's alone, with a short name."""
    monkeypatch.setattr(kept_socket, "LOOK_SECS", 0.02)
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        yield Path(short)


class Holder(FakeServer):
    """Lends its parameters where they lie."""

    def lend(self, snapshot_id: int) -> Any:
        return Lent(self.parameters)


def _take_away(folder: Path, *, whole: bool) -> None:
    names = {path.name for path in folder.iterdir()}
    if whole:
        shutil.rmtree(folder)
        pause(0.1)  # attempts to make them fail meanwhile
        folder.mkdir(0o700)
    else:
        for path in folder.iterdir():
            path.unlink()
    _until(lambda: {path.name for path in folder.iterdir()} >= names)


def _until(condition: Callable[[], bool]) -> None:
    deadline = SYSTEM_CLOCK.monotonic() + WAIT_SECS
    while not condition():
        assert SYSTEM_CLOCK.monotonic() < deadline, "a socket was not made again"
        pause(0.01)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("transport", [GrpcTransport, SharedMemoryTransport])
def test_a_role_is_reached_by_those_connected_before_and_by_others(
    folder: Path, transport: type[GrpcTransport | SharedMemoryTransport], *, whole: bool
) -> None:
    into, at_role = np.zeros(64, np.uint8), transport(KEYS)
    state = at_role.allocate(64)
    state[:] = np.arange(64)
    services = Services(holder=Holder(state), chief=FakeChief())
    serving = at_role.serve(services, at_socket(folder / "role"), calls=4)
    before = ChiefClient(serving.address, WAIT_SECS, KEYS)
    before.register(hello(0, schema="same"))
    for _ in range(2):
        _take_away(folder, whole=whole)
        before.register(hello(0, schema="same"))
        after, holder = ChiefClient(serving.address, WAIT_SECS, KEYS), transport(KEYS).holder(serving.address, 64)
        after.register(hello(0, schema="same"))
        holder.port.read(4, into)
        assert np.array_equal(into, state)
        after.close()
        holder.close()
    before.close()
    serving.stop(wait_secs=WAIT_SECS)
    late = ChiefClient(serving.address, 0.2, KEYS)
    with pytest.raises(RoleLost):
        late.register(hello(0, schema="same"))
    late.close()


def test_a_listener_is_closed_whose_successor_came_while_a_caller_was_taken_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_in, go_on = threading.Event(), threading.Event()
    take_in = SlabService._begin_session

    def slowly(service: SlabService, connection: socket.socket) -> None:
        taken_in.set()
        assert go_on.wait(WAIT_SECS)
        take_in(service, connection)

    monkeypatch.setattr(SlabService, "_begin_session", slowly)
    service = SlabService(Services(holder=FakeServer(np.zeros(8, np.uint8))), SlabMemory(), str(folder / "s"), "t", 4)
    listeners = [service._listener]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        caller.connect(str(folder / "s"))
        assert taken_in.wait(WAIT_SECS)
        for _ in range(2):
            _take_away(folder, whole=False)
            _until(lambda: service._listener is not listeners[-1])
            listeners.append(service._listener)
        go_on.set()
        service.stop(WAIT_SECS)
    assert [listener.fileno() for listener in listeners] == [-1, -1, -1]


@pytest.mark.parametrize("spoiled", ["open to others", "a link"])
def test_no_socket_is_made_in_a_folder_that_another_user_may_have_made(
    folder: Path, spoiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()
    monkeypatch.setattr(kept_socket.logging, "log_every_n_seconds", lambda *values: refused.set())
    place, elsewhere, made = folder / "run", folder / "elsewhere", threading.Event()
    elsewhere.mkdir(0o700)
    if spoiled == "a link":
        place.symlink_to(elsewhere)
    else:
        place.mkdir(0o700)
        place.chmod(0o777)
    kept = KeptSocket(place / "role", made.set)
    assert refused.wait(WAIT_SECS) and not made.is_set()
    if spoiled == "a link":
        place.unlink()
        place.mkdir(0o700)
    place.chmod(0o700)
    assert made.wait(WAIT_SECS)
    kept.close()


def test_a_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept_socket._check_folder(folder)
    owner = os.geteuid()
    monkeypatch.setattr(kept_socket.os, "geteuid", lambda: owner + 1)
    with pytest.raises(PermissionError, match=f"it is user {owner}'s, of mode 700"):
        kept_socket._check_folder(folder)


def test_workers_join_the_memory_of_sums(folder: Path) -> None:
    service = SumService(2, at_socket(folder / "group"))
    first = join(service.address, 0, 0, WAIT_SECS)
    _take_away(folder, whole=True)
    second = join(service.address, 1, 1, WAIT_SECS)
    assert [first.words.session(place) for place in (0, 1)] == [second.words.session(place) for place in (0, 1)]
    assert all(second.words.session(place) > 0 for place in (0, 1)), "one of them counts as ended"
    service.stop()
