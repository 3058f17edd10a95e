from __future__ import annotations

import itertools
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from hybridsync.core.addresses import at_socket
from hybridsync.core.errors import AddressError, HybridSyncError, RoleLost, SchemaMismatch, WaitTimeout
from hybridsync.core.plan import NO_PHASE
from hybridsync.interfaces.messages import LeaseReply, LeaseRequest
from hybridsync.transport.grpc import channels
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc import snapshot_source as holder_module
from hybridsync.transport.grpc.channels import FIRST_PAUSE_SECS, make_server, retrying, stub
from hybridsync.transport.grpc.chief import ChiefClient, ChiefServicer
from hybridsync.transport.grpc.codec import encode
from hybridsync.transport.grpc.dialling import Channel
from hybridsync.transport.grpc.snapshot_source import SnapshotClient, SnapshotServicer
from tests.telemetry.clocks import ManualClock
from tests.transport.conftest import PHASE_ID, FakeChief, FakeServer, pattern

REQUEST = LeaseRequest(1, 1, NO_PHASE, 0, 0)
SOON = 30.0
"""Far below the deadline of a call that is given up early, and far above what that takes on a busy machine."""


@pytest.fixture
def nowhere() -> Iterator[str]:
    """Return a port at which nobody listens, and which is given to no other process meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


class SlowChief(FakeChief):
    def __init__(self) -> None:
        super().__init__()
        self.called, self.go_on = threading.Event(), threading.Event()

    def lease(self, request: LeaseRequest) -> LeaseReply:
        self.seen.append(request)
        self.called.set()
        self.go_on.wait(60)
        return LeaseReply((), final=False)


def test_several_services_share_one_port(serve, closing) -> None:
    address = serve(ChiefServicer(FakeChief()), SnapshotServicer(FakeServer(pattern(10))))
    assert closing(ChiefClient(address)).lease(REQUEST).final
    assert closing(SnapshotClient(address)).take_snapshot(PHASE_ID, final=False).num_bytes == 10


@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "grpc_proxy", "all_proxy"])
def test_a_call_goes_to_the_role_and_not_to_a_web_proxy(
    serve, closing, nowhere: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for variable in (name, name.upper()):
        monkeypatch.setenv(variable, f"http://{nowhere}")
    client = closing(ChiefClient(serve(ChiefServicer(FakeChief()), address="127.0.0.1:0"), deadline_secs=SOON))
    assert client.lease(REQUEST).final


def test_a_call_waits_for_a_role_that_starts_late(serve, closing) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a port might be another process's by then
        address = at_socket(Path(folder) / "role")
        client = closing(ChiefClient(address, deadline_secs=20))
        replies: list[LeaseReply] = []
        caller = threading.Thread(target=lambda: replies.append(client.lease(REQUEST)))
        caller.start()
        caller.join(0.3)
        assert caller.is_alive(), "the call did not wait"
        serve(ChiefServicer(FakeChief()), address=address)
        caller.join(60)
        assert replies and replies[0].final


def test_a_role_that_never_starts_is_named_after_the_deadline(nowhere: str, closing) -> None:
    client = closing(ChiefClient(nowhere, deadline_secs=0.5))
    start = time.monotonic()
    with pytest.raises(RoleLost, match=f"the chief at {nowhere} could not be reached for Lease within 0.5 s"):
        client.lease(REQUEST)
    assert time.monotonic() - start < SOON


def test_a_role_that_does_not_answer_is_named_after_the_deadline(serve, closing) -> None:
    chief = SlowChief()
    address = serve(ChiefServicer(chief))
    client = closing(ChiefClient(address, deadline_secs=0.3))
    with pytest.raises(WaitTimeout, match=f"the chief at {address} did not answer Lease within 0.3 s"):
        client.lease(REQUEST)
    chief.go_on.set()


def test_a_call_under_way_ends_when_its_role_stops(closing) -> None:
    chief = SlowChief()
    server, address = make_server([ChiefServicer(chief)])
    server.start()
    lease = stub(closing(Channel(address)), "Chief", "Lease")

    def attempt(secs: float) -> object:
        return lease(encode(REQUEST), timeout=secs)

    with ThreadPoolExecutor(1) as threads:
        calling = threads.submit(retrying, attempt, 60.0, "the chief", "Lease", unreachable_secs=0.5)
        assert chief.called.wait(60)
        server.stop(grace=None)
        with pytest.raises(RoleLost, match="the chief"):
            calling.result(SOON)
        chief.go_on.set()


class Unreachable(grpc.RpcError, grpc.Call):
    """What a stub raises while nobody listens."""

    def code(self):
        return grpc.StatusCode.UNAVAILABLE

    def details(self):
        return "refused"

    def trailing_metadata(self):
        return ()

    def initial_metadata(self):
        return ()

    def is_active(self) -> bool:
        return False

    def time_remaining(self) -> float:
        return 0.0

    def cancel(self) -> bool:
        return False

    def add_callback(self, callback: Callable[[], None]) -> bool:
        return False


def test_attempts_pause_ever_longer_and_share_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, attempts = ManualClock(now=0.0), list[tuple[float, float]]()
    monkeypatch.setattr(channels, "SYSTEM_CLOCK", clock)
    monkeypatch.setattr(channels, "pause", clock.advance)

    def attempt(secs: float) -> None:
        attempts.append((clock.now, secs))
        raise Unreachable

    with pytest.raises(RoleLost, match="server 0 could not be reached for PushPull within 1 s"):
        retrying(attempt, 1.0, "server 0", "PushPull")
    times, left = zip(*attempts, strict=True)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses == pytest.approx([FIRST_PAUSE_SECS * 2**index for index in range(3)])
    assert left == pytest.approx([1.0 - at for at in times])


def test_a_role_whose_successor_has_another_address_is_given_up_early() -> None:
    start = time.monotonic()

    def attempt(secs: float) -> None:
        raise Unreachable

    with pytest.raises(RoleLost, match=r"server 0 could not be reached for TakeSnapshot within 0\.5 s"):
        retrying(attempt, 60.0, "server 0", "TakeSnapshot", unreachable_secs=0.5)
    assert time.monotonic() - start < SOON


def test_a_role_that_comes_within_that_time_is_reached() -> None:
    answers = iter([Unreachable, Unreachable])

    def attempt(secs: float) -> str:
        for error in answers:
            raise error
        return "here"

    assert retrying(attempt, 60.0, "server 0", "TakeSnapshot", unreachable_secs=10.0) == "here"


def test_a_role_that_is_reached_but_slow_has_the_whole_deadline(serve, closing) -> None:
    """What it is to do may take long: only whoever does not answer the door is given up early."""
    chief = SlowChief()
    channel = closing(Channel(serve(ChiefServicer(chief))))
    lease = stub(channel, "Chief", "Lease")
    start = time.monotonic()
    with pytest.raises(WaitTimeout, match="did not answer Lease within 1 s"):
        retrying(lambda secs: lease(encode(REQUEST), timeout=secs), 1.0, "chief", "Lease", unreachable_secs=0.2)
    assert time.monotonic() - start > 0.8
    chief.go_on.set()


def test_a_holder_that_is_gone_is_given_up_before_its_calls_deadline(nowhere: str, closing, monkeypatch) -> None:
    monkeypatch.setattr(holder_module, "UNREACHABLE_SECS", 0.3)
    client = closing(SnapshotClient(nowhere, deadline_secs=60.0, who="worker 3"))
    start = time.monotonic()
    with pytest.raises(RoleLost, match=f"worker 3 at {nowhere} could not be reached for TakeSnapshot within 0.3 s"):
        client.take_snapshot(PHASE_ID, final=True)
    with pytest.raises(RoleLost, match=r"for Read within 0\.3 s"):
        client.read(4, pattern(10))
    assert time.monotonic() - start < SOON


def test_a_client_that_is_closed_here_says_so_and_does_not_try_again(nowhere: str) -> None:
    client = ChiefClient(nowhere, deadline_secs=60.0)
    client.close()
    start = time.monotonic()
    with pytest.raises(RoleLost, match="was not asked for Lease: its channel is closed here"):
        client.lease(REQUEST)
    assert time.monotonic() - start < SOON


def test_a_used_port_is_refused() -> None:
    server, address = make_server([])
    with pytest.raises(AddressError, match=f"cannot serve on {address}.*another port"):
        make_server([], address)
    server.stop(grace=None).wait(60)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.0.0.1:4000", "example.com:80", ":0", "128.0.0.1:0"])
def test_an_address_that_others_can_reach_is_refused(address: str) -> None:
    with pytest.raises(
        AddressError, match=r"will not serve on .* without certificates: .* make some with hybridsync certs, or use 127"
    ):
        make_server([], address)


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "127.0.0.1:x", "127.0.0.1:70000", ""])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(AddressError, match="write host:port"):
        make_server([], address)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.8.9.1:0", "localhost:0"])
def test_loopback_addresses_are_served(address: str, serve, closing) -> None:
    bound = serve(ChiefServicer(FakeChief()), address=address)
    assert bound.startswith(address[:-1]) and not bound.endswith(":0")
    assert closing(ChiefClient(bound)).lease(REQUEST).final


def test_a_request_that_is_no_message_is_refused_by_name(serve, closing) -> None:
    channel = closing(Channel(serve(ChiefServicer(FakeChief()))))
    garbage = channel.unary_unary("/hybridsync.Chief/Lease", lambda data: data, pb.LeaseReply.FromString)
    with pytest.raises(SchemaMismatch, match="LeaseRequest"):
        retrying(lambda secs: garbage(b"\xff\xff", timeout=secs), 10, "chief", "Lease")


def test_a_message_over_the_limit_is_refused(serve, closing) -> None:
    channel = closing(Channel(serve(ChiefServicer(FakeChief()))))
    huge = pb.Hello(schema="x" * (5 << 20))
    with pytest.raises(SchemaMismatch, match="refused the size of Register"):
        retrying(lambda secs: stub(channel, "Chief", "Register")(huge, timeout=secs), 10, "chief", "Register")


def test_a_service_that_a_role_does_not_have_is_our_fault(serve, closing) -> None:
    client = closing(SnapshotClient(serve(ChiefServicer(FakeChief()))))
    with pytest.raises(HybridSyncError, match="UNIMPLEMENTED"):
        client.take_snapshot(PHASE_ID, final=False)
