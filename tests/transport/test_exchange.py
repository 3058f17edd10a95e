from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import grpc
import pytest

from hybridsync.core.errors import RoleLost
from hybridsync.transport.grpc.dialling import Channel
from hybridsync.transport.grpc.exchange import StreamExchange


class Echo(grpc.GenericRpcHandler):
    """Answers each message with its stream's number and itself; `behave` may do something else first."""

    def __init__(self) -> None:
        self.num_streams = 0
        self.ended = threading.Semaphore(0)
        self.behave: Callable[[bytes, grpc.ServicerContext], object] = lambda request, context: None

    def service(self, handler_call_details):
        return grpc.stream_stream_rpc_method_handler(self.answer)

    def answer(self, stream: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        self.num_streams += 1
        number = self.num_streams
        try:
            for request in stream:
                if self.behave(request, context) == "end":
                    return
                yield b"%d %s" % (number, request)
        finally:
            self.ended.release()


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def exchange(echo: Echo, serve, closing) -> StreamExchange:
    channel = closing(Channel(serve(echo)))
    return closing(StreamExchange(channel.stream_stream("/any/method"), "server 0"))


def test_requests_one_after_the_other_share_a_stream(exchange: StreamExchange) -> None:
    assert [exchange.send(b"a", 10), exchange.send(b"b", 10)] == [b"1 a", b"1 b"]


def test_callers_at_the_same_time_do_not_wait_for_each_other(exchange: StreamExchange, echo: Echo) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def hold(request: bytes, context: grpc.ServicerContext) -> None:
        if request == b"held":
            arrived.set()
            assert go_on.wait(60)

    echo.behave = hold
    first = threading.Thread(target=exchange.send, args=(b"held", 10))
    first.start()
    assert arrived.wait(60)
    assert exchange.send(b"free", 10) == b"2 free"
    go_on.set()
    first.join(60)
    assert not first.is_alive()


def test_an_old_stream_is_replaced_and_ended(exchange: StreamExchange, echo: Echo, monkeypatch) -> None:
    monkeypatch.setattr("hybridsync.transport.grpc.exchange.STREAM_SECS", 0.0)
    exchange.send(b"a", 10)
    assert exchange.send(b"b", 10) == b"2 b"
    assert echo.ended.acquire(timeout=120), "the first stream was not ended"


def test_an_error_ends_the_stream_and_the_next_request_opens_another(exchange: StreamExchange, echo: Echo) -> None:
    echo.behave = lambda request, context: context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
    with pytest.raises(grpc.RpcError) as refused:
        exchange.send(b"a", 10)
    assert isinstance(refused.value, grpc.Call) and refused.value.details() == "no"
    echo.behave = lambda request, context: None
    assert exchange.send(b"b", 10) == b"2 b"


def test_a_stream_that_ends_without_an_answer_is_a_lost_role(exchange: StreamExchange, echo: Echo) -> None:
    echo.behave = lambda request, context: "end"
    with pytest.raises(RoleLost, match="server 0 ended the stream without an answer"):
        exchange.send(b"a", 10)


def test_a_callee_that_does_not_answer_is_given_up_in_time(exchange: StreamExchange, echo: Echo, monkeypatch) -> None:
    monkeypatch.setattr("hybridsync.transport.grpc.exchange.STREAM_SECS", 0.1)
    go_on = threading.Event()
    echo.behave = lambda request, context: go_on.wait(60)
    with pytest.raises(grpc.RpcError) as late:
        exchange.send(b"a", 0.1)
    go_on.set()
    assert isinstance(late.value, grpc.Call) and late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
