from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from hybridsync.core.errors import SchemaMismatch, StalePhase, WaitTimeout
from hybridsync.emulation.link_delays import DelayedPort, Pacing
from hybridsync.emulation.link_model import Wire
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.channels import retrying, stub
from hybridsync.transport.grpc.codec import encode
from hybridsync.transport.grpc.dialling import Channel
from hybridsync.transport.grpc.frames import send
from hybridsync.transport.grpc.parameter_server import SMALL_BYTES, ParameterClient, ParameterServicer, PhaseServicer
from hybridsync.transport.grpc.snapshot_source import SnapshotServicer
from tests.telemetry.clocks import ManualClock
from tests.transport.conftest import HELD, PHASE, PHASE_ID, FakeServer, pattern

LARGE, SMALL = 2 * (1 << 20) + 77, 80_000
PUSH = Push(PHASE_ID, worker=2, incarnation=2**64 - 1, units=(4, 7), base=30)


@pytest.fixture(params=[LARGE, SMALL], ids=["chunks", "one message"])
def num_bytes(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def server(num_bytes: int) -> FakeServer:
    return FakeServer(pattern(num_bytes, seed=1))


@pytest.fixture
def address(server: FakeServer, num_bytes: int, serve) -> str:
    return serve(PhaseServicer(server), ParameterServicer(server, num_bytes), SnapshotServicer(server))


@pytest.fixture
def client(address: str, closing) -> ParameterClient:
    return closing(ParameterClient(address, deadline_secs=10, who="server 0"))


def test_the_chief_drives_a_server(client: ParameterClient, server: FakeServer) -> None:
    assert client.enter(PHASE) == HELD
    client.fence(PHASE_ID, worker=2, incarnation=11)
    assert client.take_snapshot(PHASE_ID, final=True).snapshot_id == 4
    assert server.seen == [PHASE, (PHASE_ID, 2, 11), (PHASE_ID, True)]


def test_parameters_are_pulled_whole_and_their_buffer_is_given_back_once(
    client: ParameterClient, server: FakeServer, num_bytes: int
) -> None:
    into = np.zeros(num_bytes, np.uint8)
    assert client.pull(PUSH, into) == PushReply(30)
    assert np.array_equal(into, server.parameters)
    assert server.views[0].returned.wait(60) and server.views[0].num_released == 1


def test_a_contribution_arrives_whole_and_aligned_and_parameters_come_back(
    client: ParameterClient, server: FakeServer, num_bytes: int
) -> None:
    arrived: list[np.ndarray] = []

    def keep(push: Push, contribution: np.ndarray) -> None:
        assert contribution.ctypes.data % 64 == 0
        arrived.append(contribution.copy())

    server.on_push = keep
    contribution, into = pattern(num_bytes, seed=2), np.zeros(num_bytes, np.uint8)
    assert client.push_pull(PUSH, contribution, into) == PushReply(31, duplicate=True, dropped="too stale")
    assert server.seen == [PUSH]
    assert np.array_equal(arrived[0], contribution)
    assert np.array_equal(into, server.parameters)
    assert server.views[0].returned.wait(60) and server.views[0].num_released == 1


def test_a_held_push_keeps_its_buffer_until_it_is_released(
    client: ParameterClient, server: FakeServer, num_bytes: int
) -> None:
    held, go_on = threading.Event(), threading.Event()
    buffers: dict[int, np.ndarray] = {}
    intact: list[bool] = []
    contributions = {unit: pattern(num_bytes, seed=unit) for unit in (0, 1, 2)}

    def rule(push: Push, contribution: np.ndarray) -> None:
        (unit,) = push.units
        buffers[unit] = contribution
        if unit == 0:
            held.set()
            assert go_on.wait(60)
            intact.append(np.array_equal(contribution, contributions[0]))

    server.on_push = rule

    def offer(unit: int) -> None:
        push = Push(PHASE_ID, unit, 1, (unit,), 0)
        client.push_pull(push, contributions[unit], np.zeros(num_bytes, np.uint8))

    first = threading.Thread(target=offer, args=(0,))
    first.start()
    assert held.wait(60), "the first push did not arrive"
    offer(1)
    go_on.set()
    first.join(60)
    assert intact == [True]
    assert buffers[1].ctypes.data != buffers[0].ctypes.data
    for buffer in buffers.values():
        buffer[:] = 0xFF  # both are released: nobody may still read them
    offer(2)
    assert buffers[2].ctypes.data in {buffers[0].ctypes.data, buffers[1].ctypes.data}
    assert np.array_equal(buffers[2], contributions[2])


def test_a_server_without_a_free_buffer_says_what_to_change(serve, closing, monkeypatch) -> None:
    monkeypatch.setattr("hybridsync.transport.grpc.parameter_server.BUFFER_SECS", 0.05)
    held, go_on = threading.Event(), threading.Event()

    def hold(push: Push, contribution: np.ndarray) -> None:
        held.set()
        assert go_on.wait(60)

    server = FakeServer(pattern(SMALL), on_push=hold)
    client = closing(ParameterClient(serve(ParameterServicer(server, SMALL, num_buffers=1)), deadline_secs=10))
    contribution = pattern(SMALL)
    first = threading.Thread(target=client.push_pull, args=(PUSH, contribution, np.zeros(SMALL, np.uint8)))
    first.start()
    assert held.wait(60), "the first push did not arrive"
    with pytest.raises(WaitTimeout, match="allow more buffers than workers"):
        client.push_pull(PUSH, contribution, np.zeros(SMALL, np.uint8))
    go_on.set()
    first.join(60)


def test_a_contribution_of_another_size_is_refused_with_both_and_never_reaches_the_rule(
    client: ParameterClient, server: FakeServer, num_bytes: int
) -> None:
    with pytest.raises(SchemaMismatch, match=f"{num_bytes + 8} bytes where {num_bytes}"):
        client.push_pull(PUSH, pattern(num_bytes + 8), np.zeros(num_bytes, np.uint8))
    assert server.seen == []


def test_parameters_of_another_size_are_refused_with_both(client: ParameterClient, num_bytes: int) -> None:
    with pytest.raises(SchemaMismatch, match=f"{num_bytes} bytes where {num_bytes + 8}"):
        client.push_pull(PUSH, pattern(num_bytes), np.zeros(num_bytes + 8, np.uint8))
    with pytest.raises(SchemaMismatch, match=f"{num_bytes} bytes where {num_bytes + 8}"):
        client.pull(PUSH, np.zeros(num_bytes + 8, np.uint8))


def test_a_stale_push_is_refused_by_name(client: ParameterClient, server: FakeServer, num_bytes: int) -> None:
    def refuse(push: Push, contribution: np.ndarray) -> None:
        raise StalePhase("worker 2 pushes in phase 3, phase 4 is active")

    server.on_push = refuse
    with pytest.raises(StalePhase, match=r"^worker 2 pushes in phase 3, phase 4 is active$"):
        client.push_pull(PUSH, pattern(num_bytes), np.zeros(num_bytes, np.uint8))
    server.on_push = lambda push, contribution: None
    assert client.push_pull(PUSH, pattern(num_bytes), np.zeros(num_bytes, np.uint8)).sequence == 31


@pytest.mark.parametrize("num_bytes", [LARGE], indirect=True)
def test_a_push_whose_connection_was_lost_is_sent_whole_again(server: FakeServer, serve, closing) -> None:
    class LosesTheFirst(ParameterServicer):
        num_calls = 0

        def _push_pull(self, stream: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            self.num_calls += 1
            if self.num_calls == 1:
                next(stream)
                next(stream)
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
            yield from super()._push_pull(stream, context)

    arrived: list[np.ndarray] = []
    server.on_push = lambda push, contribution: arrived.append(contribution.copy())
    servicer = LosesTheFirst(server, LARGE)
    client = closing(ParameterClient(serve(servicer), deadline_secs=10))
    contribution, into = pattern(LARGE, seed=2), np.zeros(LARGE, np.uint8)
    assert client.push_pull(PUSH, contribution, into).sequence == 31
    assert servicer.num_calls == 2 and server.seen == [PUSH]
    assert np.array_equal(arrived[0], contribution) and np.array_equal(into, server.parameters)


def too_few(frames: list[bytes]) -> list[bytes]:
    return frames[:-1]


def too_many(frames: list[bytes]) -> list[bytes]:
    return [*frames, frames[-1]]


def torn(frames: list[bytes]) -> list[bytes]:
    return [*frames[:-1], frames[-1][:-3]]


@pytest.mark.parametrize("spoil", [too_few, too_many, torn])
@pytest.mark.parametrize("num_bytes", [LARGE], indirect=True)
def test_a_damaged_push_is_refused_and_never_reaches_the_rule(address, server, closing, spoil) -> None:
    channel = closing(Channel(address))
    frames = spoil(list(send(pb.Header(push=encode(PUSH)), pattern(LARGE))))
    push_pull = stub(channel, "ParameterServer", "PushPull")
    with pytest.raises(SchemaMismatch):
        retrying(lambda secs: list(push_pull(iter(frames), timeout=secs)), 10, "server 0", "PushPull")
    assert server.seen == []


def test_a_damaged_reply_is_refused(serve, closing) -> None:
    class Torn(grpc.GenericRpcHandler):
        def service(self, handler_call_details):
            return grpc.unary_stream_rpc_method_handler(self.pull)

        def pull(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            return iter(list(send(pb.Header(), pattern(LARGE)))[:-1])

    client = closing(ParameterClient(serve(Torn()), deadline_secs=10))
    with pytest.raises(SchemaMismatch, match=f"where its header says {LARGE}"):
        client.pull(PUSH, np.zeros(LARGE, np.uint8))


@pytest.mark.parametrize("num_bytes", [20 << 20], indirect=True)
def test_a_caller_that_goes_away_gives_buffers_back(address, server, num_bytes, closing) -> None:
    channel = closing(Channel(address))
    stream = stub(channel, "ParameterServer", "Pull")(encode(PUSH), timeout=120)
    next(stream)
    stream.cancel()
    assert server.views[0].returned.wait(60) and server.views[0].num_released == 1


def test_buffers_below_the_limit_go_in_one_message() -> None:
    assert SMALL < SMALL_BYTES <= LARGE


def test_a_paced_push_is_offered_when_it_has_arrived_and_answered_when_the_parameters_have(
    server: FakeServer, num_bytes: int, serve, closing
) -> None:
    clock, waits = ManualClock(now=0.0), []

    def wait(secs: float) -> None:
        waits.append((round(secs, 6), len(server.seen)))
        clock.advance(secs)

    pacing = Pacing(Wire(link_bytes_per_sec=100.0), push_bytes=200, pull_bytes=100, clock=clock, wait=wait)
    address = serve(ParameterServicer(DelayedPort(server, pacing), num_bytes))
    client = closing(ParameterClient(address, deadline_secs=10, who="server 0"))
    into = np.zeros(num_bytes, np.uint8)
    client.push_pull(PUSH, pattern(num_bytes, seed=2), into)
    assert waits == [(2.0, 0), (1.0, 1)]
    assert np.array_equal(into, server.parameters)
    client.pull(PUSH, into)
    assert waits[2:] == [(1.0, 2)]


def test_parameters_that_the_push_was_computed_on_are_not_sent_again(
    client: ParameterClient, server: FakeServer, num_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    contribution, into = pattern(num_bytes, seed=2), np.zeros(num_bytes, np.uint8)
    monkeypatch.setattr(server, "answer", lambda push, _: PushReply(31))
    assert client.push_pull(PUSH, contribution, into).sequence == 31 and into.any()
    into[:] = 7
    assert client.push_pull(PUSH._replace(base=31), contribution, into).sequence == 31
    assert np.all(into == 7), "the worker goes on with what it has"
    assert all(view.returned.wait(60) and view.num_released == 1 for view in server.views)
