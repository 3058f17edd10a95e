"""A role that is killed, stops or stands still in the middle of a transfer; and a link that is closed meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridsync.core.addresses import at_socket
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import DamagedState, RoleLost, SchemaMismatch, Unauthenticated, WaitTimeout
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push
from hybridsync.security.keyring import Keyring
from hybridsync.transport import connected_links
from hybridsync.transport.connected_links import ConnectedParameters
from hybridsync.transport.grpc import bulk_link
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.bulk_link import Place
from hybridsync.transport.tcp.connection import TcpConnection
from hybridsync.transport.tcp.lanes import FRAME_BYTES
from hybridsync.transport.tcp.session import TcpSession
from tests.transport.scripted_role import NUM_BYTES, Scripted
from tests.transport.slab_primary import until
from tests.transport.tcp_primary import SECS, TOKEN, Served

ROOT, ROLE = Path(__file__).parents[2], Path(__file__).with_name("scripted_role.py")
CALLER = Push(PhaseId(1, 1), 0, 1, (), 0)
PUSH = CALLER._replace(units=(3,))
SOON = 5.0
"""Far below the deadline of a call."""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short
        yield Path(folder)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connected_links, "UNREACHABLE_SECS", 0.3)
    monkeypatch.setattr(bulk_link, "UNREACHABLE_SECS", 0.3)


class Here:
    """A role of this process, held at one place until `go_on`."""

    def __init__(self, folder: Path, num_bytes: int) -> None:
        self.role = Scripted(num_bytes)
        self.served = Served(folder, self.role.services())
        self.is_held, self.go_on = threading.Event(), threading.Event()

    def hold(self) -> None:
        self.is_held.set()
        assert self.go_on.wait(SECS)

    def link(self, deadline_secs: float | None = None) -> ConnectedParameters:
        return ConnectedParameters(self.served.connection(deadline_secs), self.role.view.buffer.nbytes)

    def close(self) -> None:
        self.go_on.set()
        self.served.close()


@pytest.fixture
def here(folder: Path, request: pytest.FixtureRequest) -> Iterator[Here]:
    here = Here(folder, getattr(request, "param", 3 * FRAME_BYTES))
    yield here
    here.close()


large = pytest.mark.parametrize("here", [NUM_BYTES], indirect=True)


def ends_soon(call: Future[Any], kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        call.result(timeout=SOON)


def answers(link: ConnectedParameters) -> bool:
    """Return whether a role answers within the deadline of a call, which on a busy machine takes several calls."""
    try:
        link.idle(CALLER)
    except WaitTimeout:
        return False
    return True


# --- a link that is closed ---


def test_a_link_that_is_closed_while_it_receives_ends_its_call_at_once(here: Here, threads: ThreadPoolExecutor) -> None:
    here.role.on_arrival = here.hold
    link = here.link()
    waiting = threads.submit(link.pull, CALLER)
    assert here.is_held.wait(SECS)
    link.close()
    ends_soon(waiting, RoleLost, "server 0 at unix:.* was not asked for pull: the link is closed here")
    for call in (link.pull, link.push_pull, link.idle, link.ready):
        with pytest.raises(RoleLost, match="the link is closed here"):
            call(PUSH)
    link.close()


@large
def test_a_link_that_is_closed_while_it_sends_ends_its_call_at_once(here: Here, threads: ThreadPoolExecutor) -> None:
    here.role.on_begin = here.hold
    link = here.link()
    waiting = threads.submit(link.push_pull, PUSH)
    assert here.is_held.wait(SECS)
    link.close()
    ends_soon(waiting, RoleLost, "was not asked for push_pull: the link is closed here")
    here.go_on.set()
    until(lambda: here.served.num_links() == 0, "its link is kept")
    assert not here.role.pushed, "half a push was offered"


def test_a_link_that_is_closed_before_its_first_call_asks_for_no_place(here: Here) -> None:
    link = here.link()
    link.close()
    with pytest.raises(RoleLost, match="the link is closed here"):
        link.pull(CALLER)
    assert not here.served.service._expected


# --- a role that lives ---


def session_of(here: Here) -> TcpSession:
    (session,) = here.served.service._sessions
    assert isinstance(session, TcpSession)
    return session


def test_a_pull_whose_connection_is_lost_in_the_middle_is_made_again(here: Here, threads: ThreadPoolExecutor) -> None:
    here.role.on_arrival = here.hold
    waiting = threads.submit(here.link().pull, CALLER)
    assert here.is_held.wait(SECS)
    session_of(here).interrupt()
    here.go_on.set()
    assert np.array_equal(waiting.result(SECS)[1], here.role.view.buffer)
    until(lambda: here.role.view.num_lent == here.role.view.num_released == 2, "what was lent is kept")


def test_a_push_whose_connection_is_lost_in_the_middle_is_made_again(here: Here, threads: ThreadPoolExecutor) -> None:
    here.role.on_begin = here.hold
    link = here.link()
    link.contribution[:] = 3
    waiting = threads.submit(link.push_pull, PUSH)
    assert here.is_held.wait(SECS)
    session_of(here).interrupt()
    here.go_on.set()
    waiting.result(SECS)
    assert all((pushed == 3).all() for pushed in here.role.pushed) and here.role.pushed


def damage(here: Here, frame: int) -> None:
    """Let the role send one damaged frame."""
    lanes = session_of(here)._lanes
    put, seen = lanes._put, []

    def damaging(lane: int, parts: list[memoryview]) -> None:
        if parts[-1].nbytes > 1 << 10 and lane == frame % 2:
            seen.append(None)
            if len(seen) == frame // 2 + 1:
                parts = [*parts[:-1], memoryview(bytes(parts[-1].nbytes))]
        put(lane, parts)

    lanes._put = damaging


@pytest.mark.parametrize("frame", [0, 1, 2])
def test_damaged_parameters_are_refused_by_name_and_nothing_relies_on_them(here: Here, frame: int) -> None:
    link = here.link()
    link.pull(CALLER)
    damage(here, frame)
    with pytest.raises(DamagedState, match=rf"frame {frame} of a buffer arrived damaged: its digest is"):
        link.pull(CALLER)
    until(lambda: here.served.num_links() == 0, "the connection is kept")
    with pytest.raises(RoleLost, match="was lost while it sent the parameters that idle relies on"):
        link.idle(CALLER)
    with pytest.raises(RoleLost, match="was lost while it sent the parameters that push_pull relies on"):
        link.push_pull(PUSH._replace(base=1))
    assert np.array_equal(link.pull(CALLER)[1], here.role.view.buffer)
    link.idle(CALLER)


def test_a_reply_without_the_parameters_that_it_speaks_of_is_refused(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TcpSession, "_lend_parameters", lambda *_, **__: pb.LinkReply())
    for call in (here.link().pull, here.link().push_pull):
        with pytest.raises(SchemaMismatch, match=f"has 0 bytes where {3 * FRAME_BYTES} are expected"):
            call(PUSH._replace(base=7))


@pytest.mark.parametrize("held", ["on_arrival", "on_begin"])
@large
def test_a_role_that_does_not_go_on_is_waited_for_until_the_deadline(here: Here, held: str) -> None:
    link = here.link(deadline_secs=0.5)
    until(lambda: answers(link), "it does not answer")
    setattr(here.role, held, here.hold)
    call, name = (link.pull, "pull") if held == "on_arrival" else (link.push_pull, "push_pull")
    began = SYSTEM_CLOCK.monotonic()
    with pytest.raises(WaitTimeout, match=rf"server 0 at unix:.* did not answer {name} within 0\.5 s"):
        call(PUSH)
    assert 0.4 < SYSTEM_CLOCK.monotonic() - began < SOON


def test_each_call_has_the_deadline_of_what_it_moves(here: Here) -> None:
    connection = here.served.connection()
    asked = pb.LinkRequest(call="pull", num_bytes=10**9), pb.LinkRequest(call="push_pull", num_bytes=10**9)
    assert [connection._secs_of(each, 10**9) for each in asked] == [110.0, 160.0]


def test_a_service_that_stops_ends_the_calls_under_way(here: Here, threads: ThreadPoolExecutor, hasty: None) -> None:
    here.role.on_arrival = here.hold
    waiting = threads.submit(here.link().pull, CALLER)
    assert here.is_held.wait(SECS)
    stopping = threads.submit(here.served.stop)
    ends_soon(waiting, RoleLost, "this role takes no more connections: it is stopping|could not be reached for Open")
    here.go_on.set()
    stopping.result(timeout=SOON)
    assert here.served.num_links() == 0


def test_another_process_at_the_port_proves_nothing(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = here.served.connection()
    with socket.create_server(("127.0.0.1", 0)) as imposter:
        place = Place(imposter.getsockname()[1], b"i" * 16, b"k" * 32)
        monkeypatch.setattr(connection._places, "open", lambda num_sockets: place)

        def impose() -> None:
            caller, _ = imposter.accept()
            with caller:
                caller.sendall(bytes(64))
                while caller.recv(1 << 10):
                    pass

        thread = threading.Thread(target=impose)
        thread.start()
        with pytest.raises(Unauthenticated, match=r"did not prove at port \d+ that it knows the key"):
            connection.call(pb.LinkRequest(call="idle"))
        thread.join(SECS)
    connection.close()


# --- a role in a process of its own ---


class Role:
    """A process that serves, and the links to it."""

    def __init__(self, folder: Path) -> None:
        self.address = at_socket(folder / "role")
        self._links: list[ConnectedParameters] = []
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, held: str = "nothing") -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(ROLE), self.address, TOKEN, held]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        self._processes.append(self.process)
        assert self.says() == "serves"

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def link(self, deadline_secs: float | None = None) -> ConnectedParameters:
        connection = TcpConnection(self.address, "server 0", Keyring(TOKEN), deadline_secs, NUM_BYTES)
        self._links.append(ConnectedParameters(connection, NUM_BYTES))
        return self._links[-1]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=SECS)

    def close(self) -> None:
        for link in self._links:
            link.close()
        for process in self._processes:
            process.kill()
            process.wait(timeout=SECS)
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.stdout.close()


@pytest.fixture
def role(folder: Path, threads: ThreadPoolExecutor) -> Iterator[Role]:
    role = Role(folder)
    yield role
    role.close()  # before its callers' threads are waited for


CALLS: dict[str, Callable[[ConnectedParameters], Any]] = {
    "pull": lambda link: link.pull(CALLER),
    "push": lambda link: link.push_pull(PUSH),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_role_that_is_killed_in_the_middle_of_a_transfer_is_lost_by_name(
    role: Role, threads: ThreadPoolExecutor, hasty: None, call: str
) -> None:
    role.start(held=call)
    waiting = threads.submit(CALLS[call], role.link())
    assert role.says() == "held"
    role.kill()
    ends_soon(waiting, RoleLost, r"server 0 at unix:.* could not be reached for \S+ within 0\.3 s")


def test_a_role_whose_successor_is_there_soon_is_asked_again(
    role: Role, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (connected_links, bulk_link):  # a busy machine starts it late
        monkeypatch.setattr(module, "UNREACHABLE_SECS", 60.0)
    role.start(held="pull")
    waiting = threads.submit(CALLS["pull"], role.link())
    assert role.says() == "held"
    role.kill()
    role.start()
    assert np.array_equal(waiting.result(60.0)[1], Scripted(NUM_BYTES).view.buffer)


def test_a_role_that_stands_still_is_waited_for_and_asked_again_later(role: Role) -> None:
    role.start()
    link = role.link(deadline_secs=1.0)
    until(lambda: answers(link), "it does not answer")
    os.kill(role.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, role.process.pid, os.WSTOPPED)
    with pytest.raises(WaitTimeout, match=r"server 0 at unix:.* did not answer push_pull within 1 s"):
        link.push_pull(PUSH)
    os.kill(role.process.pid, signal.SIGCONT)
    until(lambda: answers(link), "it is not asked again")


@pytest.mark.usefixtures("hasty")
def test_a_role_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(RoleLost, match=r"server 0 at unix:.* could not be reached for Open within 0\.3 s"):
        TcpConnection(at_socket(folder / "nobody"), "server 0", Keyring(TOKEN)).call(pb.LinkRequest(call="idle"))
