"""Who says nothing, or too much, takes no honest caller's place."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from hybridsync.core.addresses import at_socket
from hybridsync.core.errors import Busy, HybridSyncError
from hybridsync.interfaces.commands import StatusReply
from hybridsync.interfaces.messages import PushReply
from hybridsync.interfaces.ports import Answer
from hybridsync.security.certificates import Authority
from hybridsync.security.keyring import Keyring
from hybridsync.transport.grpc import channels, parameter_server
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.channels import make_server
from hybridsync.transport.grpc.chief import ChiefClient, ChiefServicer
from hybridsync.transport.grpc.interceptors import TOKEN_KEY
from hybridsync.transport.grpc.optimizer_state import OptimizerServicer
from tests.security.roles import BLOCK, NUM_BYTES, REACHED, SECS, TOKEN, Role, dialled, messages, served
from tests.transport.conftest import FakeChief
from tests.transport.slab_primary import until

CALLS = 40


@contextmanager
def chief_at(authority: Authority | None, chief: Any, *others: Any, threads: int = 4) -> Iterator[str]:
    credentials = authority.issue("chief") if authority else None
    handlers = [ChiefServicer(chief), *others]
    server, address = make_server(handlers, max_workers=threads, keys=Keyring(TOKEN, credentials))
    server.start()
    yield address
    assert server.stop(None).wait(SECS)


@contextmanager
def user_of(address: str, authority: Authority | None, secs: float = SECS) -> Iterator[ChiefClient]:
    client = ChiefClient(address, secs, Keyring(TOKEN, authority.issue("user") if authority else None))
    yield client
    client.close()


def silent(stack: ExitStack, address: str, number: int, words: bytes = b"") -> list[socket.socket]:
    host, _, port = address.rpartition(":")
    sockets = [stack.enter_context(socket.create_connection((host, int(port)), SECS)) for _ in range(number)]
    for each in sockets:
        each.sendall(words)
    return sockets


# What a connection may begin with: nothing, the first half of a TLS record, or words of another protocol
@pytest.mark.parametrize(
    "words", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n"], ids=["none", "half", "http"]
)
@pytest.mark.parametrize("is_secured", [True, False], ids=["TLS", "plain"])
def test_connections_that_do_not_go_on_take_nobodys_place_and_end(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, words: bytes, is_secured: bool
) -> None:
    options = [each for each in channels._SERVER_OPTIONS if each[0] != "grpc.server_handshake_timeout_ms"]
    monkeypatch.setattr(channels, "_SERVER_OPTIONS", [*options, ("grpc.server_handshake_timeout_ms", 500)])
    secured = authority if is_secured else None
    with ExitStack() as stack, chief_at(secured, FakeChief()) as address, user_of(address, secured) as user:
        sockets = silent(stack, address, 60, words)
        for _ in range(CALLS):
            assert user.status() == FakeChief().status()
        for each in sockets:
            while each.recv(1 << 12):  # an alert, or an answer to what was no TLS; then the end, or the test's own
                pass


def test_the_time_of_a_silent_connection_is_set(authority: Authority) -> None:
    assert dict(channels._SERVER_OPTIONS)["grpc.server_handshake_timeout_ms"] <= 10_000


def test_a_stream_that_says_nothing_gives_its_thread_back(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "FIRST_MESSAGE_SECS", 0.3)
    role, go_on = Role(), threading.Event()
    port: Any = role
    with (
        chief_at(authority, FakeChief(), OptimizerServicer(port, NUM_BYTES), threads=1) as address,
        dialled(address, authority.issue("worker", 2), "chief") as channel,
        user_of(address, authority) as user,
    ):

        def nothing() -> Iterator[bytes]:
            go_on.wait(SECS)
            yield from ()

        stream = channel.stream_stream("/hybridsync.OptimizerState/Upload")
        replies = stream(nothing(), timeout=2 * SECS, metadata=((TOKEN_KEY, TOKEN),))
        assert user.status() == FakeChief().status(), "the only thread waits for the stream"
        with pytest.raises(grpc.RpcError) as ended:
            list(replies)
        assert isinstance(ended.value, grpc.Call) and ended.value.code() is grpc.StatusCode.CANCELLED
        go_on.set()
    assert role.seen == []


@pytest.mark.parametrize("method", ["ParameterServer/PushPull", "Shard/Stage", "OptimizerState/Upload"])
def test_a_stream_that_stops_behind_its_first_message_gives_back_what_it_holds(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    role, go_on = Role(), threading.Event()
    with (
        served(role, authority.issue("server")) as address,
        dialled(address, authority.issue("worker", 2), "server") as channel,
    ):
        stream = channel.stream_stream(f"/hybridsync.{method}")

        def header() -> Iterator[bytes]:
            yield messages(method)[0]
            go_on.wait(SECS)

        role.begin_push = lambda push: lambda contribution: role.offered()  # pyright: ignore[reportAttributeAccessIssue]
        with monkeypatch.context() as patch:  # who is honest has the usual time
            patch.setattr(channels, "transfer_secs", lambda num_bytes: 0.3)
            streams = [stream(header(), timeout=2 * SECS, metadata=((TOKEN_KEY, TOKEN),)) for _ in range(6)]
            for each in streams:  # more than the role has buffers
                with pytest.raises(grpc.RpcError) as ended:
                    list(each)
                assert isinstance(ended.value, grpc.Call) and ended.value.code() is grpc.StatusCode.CANCELLED
        go_on.set()
        assert role.seen == []
        with pytest.raises(grpc.RpcError, match=REACHED):
            list(stream(iter(messages(method)), timeout=SECS, metadata=((TOKEN_KEY, TOKEN),)))
    assert len(role.seen) == 1


def test_a_stream_of_small_pushes_without_a_deadline_of_its_callers_ends(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameter_server, "SMALL_STREAM_SECS", 3.0)  # its first push has to be answered by then
    role, go_on = Role(), threading.Event()
    push = pb.SmallPush(push=pb.Push(worker=2), contribution=BLOCK).SerializeToString()

    def one_push() -> Iterator[bytes]:
        yield push
        go_on.wait(SECS)

    role.begin_push = lambda push: lambda contribution: Answer(PushReply(0), Lent())  # pyright: ignore[reportAttributeAccessIssue]
    with (
        served(role, authority.issue("server")) as address,
        dialled(address, authority.issue("worker", 2), "server") as channel,
    ):
        replies = channel.stream_stream("/hybridsync.ParameterServer/PushPullSmall")(
            one_push(), metadata=((TOKEN_KEY, TOKEN),)
        )
        assert next(replies), "the first push is answered"
        with pytest.raises(grpc.RpcError) as ended:
            next(replies)
        assert isinstance(ended.value, grpc.Call) and ended.value.code() is grpc.StatusCode.CANCELLED
        go_on.set()


class Lent:
    """A buffer of more bytes than a connection takes by itself; `is_back` is set when it was given back."""

    def __init__(self) -> None:
        self.buffer, self.is_back = np.zeros(64 << 20, np.uint8), threading.Event()

    def release(self) -> None:
        self.is_back.set()


@pytest.mark.parametrize("method", ["SnapshotSource/Read", "ParameterServer/Pull", "Shard/PullAt"])
def test_a_caller_that_does_not_take_what_it_asked_for_holds_it_for_a_time(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(channels, "transfer_secs", lambda num_bytes: 0.3)
    role: Any = Role()
    lent = Lent()
    role.lend = role.pull_at = lambda request: lent
    role.pull = lambda push: Answer(PushReply(1), lent)
    with (
        served(role, authority.issue("server")) as address,
        dialled(address, authority.issue("worker", 2), "server") as channel,
    ):
        request = pb.ReadRequest(num_bytes=lent.buffer.nbytes) if method.startswith("Snap") else pb.Push(worker=2)
        stream = channel.unary_stream(f"/hybridsync.{method}")
        replies = stream(request.SerializeToString(), timeout=120, metadata=((TOKEN_KEY, TOKEN),))
        assert lent.is_back.wait(SECS), "nothing of it is read"
        with pytest.raises(grpc.RpcError) as ended:
            list(replies)
        assert isinstance(ended.value, grpc.Call) and ended.value.code() is grpc.StatusCode.CANCELLED


@contextmanager
def flooded(make: Callable[[], Callable[[], Any]], threads: int = 4) -> Iterator[list[int]]:
    """Make calls as fast as they go in several threads; yields how many each has made."""
    over, counts = threading.Event(), [0] * threads
    begun = threading.Barrier(threads + 1)

    def flood(number: int) -> None:
        ask = make()
        begun.wait(SECS)
        while not over.is_set():
            with pytest.raises(grpc.RpcError):
                ask()
            counts[number] += 1

    with ThreadPoolExecutor(threads) as pool:
        ended = [pool.submit(flood, number) for number in range(threads)]
        begun.wait(SECS)
        try:
            yield counts
        finally:
            over.set()
        for each in ended:
            each.result(SECS)


@pytest.mark.parametrize("kind", ["no token", "no right to", "no message", "for another"])
def test_an_honest_callers_calls_go_on_beside_a_flood(authority: Authority, kind: str) -> None:
    chief, honest = FakeChief(), 0
    method = "Chief/Lease" if kind in ("no message", "for another") else "Chief/Stop"
    sent = b"\xff no message" if kind == "no message" else messages(method, worker=3)[0]
    metadata = () if kind == "no token" else ((TOKEN_KEY, TOKEN),)
    with ExitStack() as stack, chief_at(authority, chief) as address, user_of(address, authority) as user:

        def make() -> Callable[[], Any]:
            channel = stack.enter_context(dialled(address, authority.issue("worker", 2), "chief"))
            call = channel.unary_unary(f"/hybridsync.{method}")
            return lambda: call(sent, timeout=SECS, metadata=metadata)

        with flooded(make) as counts:
            while honest < CALLS or min(counts) < CALLS:
                assert user.status() == FakeChief().status()
                honest += 1
    assert honest >= CALLS and min(counts) >= CALLS
    assert chief.seen == ["status"] * honest, "a call of the flood has reached the chief"


class SlowChief(FakeChief):
    """A chief of which each call waits."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go_on = threading.Semaphore(0), threading.Event()

    def status(self) -> StatusReply:
        self.entered.release()
        assert self.go_on.wait(SECS)
        return super().status()


def is_connected(user: ChiefClient, chief: SlowChief) -> bool:
    """Return whether a call is answered within its deadline, for which a busy machine may be too slow to connect."""
    chief.go_on.set()
    try:
        user.status()
    except HybridSyncError:
        return False
    chief.go_on.clear()
    while chief.entered.acquire(blocking=False):
        continue
    return True


def test_a_role_without_a_place_is_asked_again_and_named_at_the_end(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "WAITING_CALLS", 0)
    chief = SlowChief()
    with (
        chief_at(authority, chief, threads=2) as address,
        user_of(address, authority) as user,
        user_of(address, authority, secs=2.0) as hasty,
        ThreadPoolExecutor(3) as pool,
    ):
        until(lambda: is_connected(hasty, chief), "it gets no connection in time")
        held = [pool.submit(user.status) for _ in range(2)]
        assert all(chief.entered.acquire(timeout=SECS) for _ in held)
        with pytest.raises(Busy, match=r"the chief at .* had no place for Status within 2 s"):
            hasty.status()
        waits = pool.submit(user.status)
        chief.go_on.set()
        assert [each.result(SECS) for each in (*held, waits)] == [FakeChief().status()] * 3


# --- another user of the machine ---

AS_NOBODY = """
import os, sys
address, token = sys.argv[1:]
from hybridsync.core.errors import HybridSyncError
from hybridsync.security.keyring import Keyring
from hybridsync.transport.grpc.chief import ChiefClient  # before this user can read nothing of the checkout any more
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    ChiefClient(address, 5.0, Keyring(token)).status()
except HybridSyncError as error:
    print(type(error).__name__, error)
else:
    print("answered")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_reaches_no_socket_even_with_the_token() -> None:
    role = Role()
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        served(role, None, at_socket(Path(folder) / "chief")) as address,
    ):
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, address, TOKEN],
            cwd=Path(__file__).resolve().parents[2],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("RoleLost the chief at unix:") and "Permission denied" in done.stdout, done.stdout
    assert role.seen == []


def test_nothing_of_a_refused_push_is_kept(authority: Authority) -> None:
    role = Role()
    with (
        served(role, authority.issue("server")) as address,
        dialled(address, authority.issue("worker", 2), "server") as channel,
    ):
        stream = channel.stream_stream("/hybridsync.Shard/Stage")
        for _ in range(20):  # more than the role has buffers: none is lost to a push that is refused
            with pytest.raises(grpc.RpcError, match=r"speaks for worker 3"):
                list(stream(iter(messages("Shard/Stage", worker=3)), timeout=SECS, metadata=((TOKEN_KEY, TOKEN),)))
        with pytest.raises(grpc.RpcError, match=r"a call has reached the role"):
            list(stream(iter(messages("Shard/Stage", worker=2)), timeout=SECS, metadata=((TOKEN_KEY, TOKEN),)))
    assert role.seen == ["stage"]


SERVED = """
import sys
from hybridsync.security.certificates import Authority
from hybridsync.security.keyring import Keyring
from hybridsync.transport.grpc.channels import make_server

server, address = make_server([], keys=Keyring("secret", Authority.made().issue("chief")))
server.start()
print(address, flush=True)
sys.stdin.read()
server.stop(None).wait()
"""


def test_refused_handshakes_write_nothing_to_the_log_of_a_role(tmp_path: Path) -> None:
    without = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    without.check_hostname, without.verify_mode = False, ssl.CERT_NONE
    environ = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    with (
        open(tmp_path / "log", "wb") as log,
        subprocess.Popen(
            [sys.executable, "-c", SERVED],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as role,
    ):
        assert role.stdin is not None and role.stdout is not None
        host, _, port = role.stdout.readline().strip().rpartition(":")
        for _ in range(20):
            with socket.create_connection((host, int(port)), SECS) as plain:
                plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert plain.recv(1) in (b"", b"\x15"), "it is answered as by TLS"
            with (
                contextlib.suppress(OSError),
                socket.create_connection((host, int(port)), SECS) as plain,
                without.wrap_socket(plain) as unnamed,
            ):
                assert unnamed.recv(1) == b"", "a caller without a certificate is served"
        role.stdin.close()
        assert role.wait(SECS) == 0
    assert (tmp_path / "log").read_text() == ""
