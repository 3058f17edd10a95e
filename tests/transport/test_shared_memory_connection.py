"""A role that is killed, stops, stands still or is not there yet; and a link that is closed while it waits."""

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

import pytest

from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.errors import AddressError, RoleLost, WaitTimeout
from hybridsync.core.plan import NO_PHASE
from hybridsync.interfaces.messages import Push
from hybridsync.transport import connected_links as connection_module
from hybridsync.transport.connected_links import ConnectedParameters
from hybridsync.transport.shared_memory.connection import Connection
from hybridsync.transport.shared_memory.service import SlabService
from tests.transport.slab_primary import ROOT, SECS, TOKEN, SlabPrimary, until
from tests.transport.slab_role import NUM_BYTES

ROLE = Path(__file__).with_name("slab_role.py")
PUSH = Push(NO_PHASE, 0, 0, (3,), 0)
CALLER = PUSH._replace(units=())
SOON = 5.0
"""Far below the deadline of a call."""


class Role:
    """A process that serves, and the links to it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._links: list[ConnectedParameters] = []
        self.process = self.start()

    def start(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(ROLE), self.path, TOKEN]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        assert self.says() == "serves"
        return self.process

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def link(self, deadline_secs: float = 60.0) -> ConnectedParameters:
        made = ConnectedParameters(Connection(self.path, TOKEN, "server 0", deadline_secs, NUM_BYTES), NUM_BYTES)
        self._links.append(made)
        return made

    def stand_still(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=SECS)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def close(self) -> None:
        for link in self._links:
            link.close()
        self.kill()


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short
        yield str(Path(folder) / "server-0.slabs")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture
def role(path: str, threads: ThreadPoolExecutor) -> Iterator[Role]:
    role = Role(path)
    yield role
    role.close()  # before its callers' threads are waited for


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "UNREACHABLE_SECS", 0.3)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a successor the time that a busy machine takes to start it."""
    monkeypatch.setattr(connection_module, "UNREACHABLE_SECS", 100.0)


def ends_soon(call: Future, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        call.result(timeout=SOON)


def answers(link: ConnectedParameters) -> bool:
    """Return whether a role answers within the deadline of a call, which on a busy machine takes several calls."""
    try:
        return link.pull(CALLER)[0].sequence == 0
    except WaitTimeout:
        return False


@pytest.mark.usefixtures("hasty")
def test_a_role_that_is_killed_while_a_call_waits_is_lost_by_name(role: Role, threads: ThreadPoolExecutor) -> None:
    waiting = threads.submit(role.link().push_pull, PUSH)
    assert role.says() == "held"
    role.kill()
    ends_soon(waiting, RoleLost, r"server 0 at unix:.*\.slabs could not be reached for push_pull within 0\.3 s")
    role.start()


@pytest.mark.usefixtures("patient")
def test_a_role_whose_successor_is_there_soon_is_asked_again(role: Role, threads: ThreadPoolExecutor) -> None:
    waiting = threads.submit(role.link().push_pull, PUSH)
    assert role.says() == "held"
    role.kill()
    role.start()
    assert role.says() == "held", "the same push, with its contribution's memory"
    assert not waiting.done()


@pytest.mark.parametrize("secs", [0.3, 1.2])
def test_a_role_that_stands_still_is_waited_for_until_the_deadline(role: Role, secs: float) -> None:
    link = role.link(deadline_secs=secs)
    until(lambda: answers(link), "it does not answer")
    role.stand_still()
    began = SYSTEM_CLOCK.monotonic()
    with pytest.raises(WaitTimeout, match=rf"server 0 at unix:.* did not answer pull within {secs:g} s"):
        link.pull(CALLER)
    assert secs - 0.1 < SYSTEM_CLOCK.monotonic() - began < secs + SOON
    os.kill(role.process.pid, signal.SIGCONT)
    until(lambda: answers(link), "it is not asked on a new connection")


@pytest.mark.usefixtures("hasty")
def test_a_role_that_is_not_there_is_named(path: str) -> None:
    with pytest.raises(RoleLost, match=r"could not be reached for contribution within 0\.3 s \(No such file"):
        ConnectedParameters(Connection(path, TOKEN, "server 0", 60.0, NUM_BYTES), NUM_BYTES).push_pull(PUSH)


def test_a_service_that_stops_ends_the_calls_under_way_and_waits_for_them(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, hasty: None
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        served = SlabPrimary(Path(folder))
        link, asked, go_on = served.parameters(), threading.Event(), threading.Event()

        def idle(push: Push) -> None:
            asked.set()
            go_on.wait(SECS)

        monkeypatch.setattr(served.primary, "idle", idle)
        waiting = threads.submit(link.idle, served.push())
        assert asked.wait(SECS)
        stopping = threads.submit(served.service.stop, SECS)
        ends_soon(waiting, RoleLost, "could not be reached for idle")
        assert not stopping.done()
        go_on.set()
        stopping.result(timeout=SOON)
        assert served.num_links() == 0
        served.close()


# --- a link that is closed ---


def test_a_link_that_is_closed_ends_its_waiting_call_at_once_and_refuses_later_ones(
    role: Role, threads: ThreadPoolExecutor
) -> None:
    link = role.link()
    waiting = threads.submit(link.push_pull, PUSH)
    assert role.says() == "held"
    link.close()
    ends_soon(waiting, RoleLost, "server 0 at unix:.* was not asked for push_pull: the link is closed here")
    for call in (link.pull, link.push_pull, link.idle, link.ready):
        with pytest.raises(RoleLost, match="the link is closed here"):
            call(PUSH)
    link.close()


class Full:
    """A listener that takes nobody, with as many waiting as it lets."""

    def __init__(self, path: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen(0)
        self.waiting: list[socket.socket] = []
        with pytest.raises(BlockingIOError):
            while True:
                self.waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                self.waiting[-1].setblocking(False)
                self.waiting[-1].connect(path)

    def close(self) -> None:
        for each in (self.listener, *self.waiting):
            each.close()


@pytest.fixture
def full(path: str) -> Iterator[Full]:
    full = Full(path)
    yield full
    full.close()


def nowhere(path: str) -> Callable[[], None]:
    return lambda: None


def crowded(path: str) -> Callable[[], None]:
    return Full(path).close


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("prepare", [nowhere, crowded])
def test_a_link_that_is_closed_while_it_connects_waits_no_longer(
    path: str, threads: ThreadPoolExecutor, prepare: Callable[[str], Callable[[], None]]
) -> None:
    done = prepare(path)
    link = ConnectedParameters(Connection(path, TOKEN, "server 0", 60.0, NUM_BYTES), NUM_BYTES)
    waiting = threads.submit(link.pull, CALLER)
    pause(0.05)
    link.close()
    ends_soon(waiting, RoleLost, "the link is closed here")
    done()


@pytest.mark.usefixtures("hasty")
def test_a_role_before_which_many_wait_is_out_of_reach_and_no_deadline_has_passed(path: str, full: Full) -> None:
    link = ConnectedParameters(Connection(path, TOKEN, "server 0", 60.0, NUM_BYTES), NUM_BYTES)
    with pytest.raises(RoleLost, match=r"could not be reached for pull within 0\.3 s \(too many wait"):
        link.pull(CALLER)


# --- whose socket it is ---


def test_the_socket_of_a_killed_role_is_taken_over_and_that_of_a_living_one_is_not(role: Role) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        served = SlabPrimary(Path(folder))
        served.service.stop(SECS)
        for prepare in (lambda: None, role.stand_still):
            prepare()
            with pytest.raises(AddressError, match=r"cannot serve shared memory at .*: Address already in use"):
                SlabService(served.services, served.memory, role.path, TOKEN, 8)
        os.kill(role.process.pid, signal.SIGCONT)
        assert role.link().pull(CALLER)[0].sequence == 0, "it serves on"
        role.kill()
        served.path = role.path
        served.serve()
        assert served.parameters().pull(served.push())[0].sequence == 0
        served.close()
    role.start()


def test_a_role_before_which_many_wait_keeps_its_socket(path: str, full: Full) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        served = SlabPrimary(Path(folder))
        with pytest.raises(AddressError, match="Address already in use"):
            SlabService(served.services, served.memory, path, TOKEN, 8)
        served.close()
    assert os.path.exists(path)


def test_a_file_that_is_no_socket_is_left_alone(path: str) -> None:
    Path(path).write_text("mine")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        served = SlabPrimary(Path(folder))
        with pytest.raises(AddressError, match="Address already in use"):
            SlabService(served.services, served.memory, path, TOKEN, 8)
        served.close()
    assert Path(path).read_text() == "mine"
