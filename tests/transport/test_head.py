"""A head and its agents over gRPC: on a unix socket, and at a port of the loopback interface."""

from __future__ import annotations

import dataclasses
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridsync import __version__
from hybridsync.core.addresses import at_socket
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import AgentReplaced, ConfigError, InvalidMessage, RoleLost, StaleAgent, Unauthenticated
from hybridsync.interfaces.agents import (
    MOST_LINE_CHARS,
    MOST_LINES,
    AgentHello,
    AgentReply,
    AgentReport,
    AgentWelcome,
)
from hybridsync.interfaces.ports import HeadPort
from hybridsync.security.keyring import Keyring
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.codec import decode, encode
from hybridsync.transport.grpc.dialling import MESSAGE_BYTES
from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.link import Link, Serving
from tests.transport.relay import Relay

TOKEN, SECS = "a token", 10.0
HELLO = AgentHello("node1", 1, "10.0.0.1:1", 4, __version__, "c0ffee", "1" * 32)
REPORT = AgentReport(1, "1" * 32, 3, ('{"lost": ["worker", 1]}', ""), 7, 0.5)
REPLY = AgentReply(5, 7, ('{"start": ["worker", 1]}',))


class FakeHead:
    """Answers what a test sets, and notes what it was asked."""

    def __init__(self) -> None:
        self.seen: list[AgentHello | AgentReport] = []
        self.error: Exception | None = None
        self.arrived = threading.Condition()
        self.held = threading.Event()
        self.held.set()

    def attach(self, hello: AgentHello) -> AgentWelcome:
        self._note(hello)
        return AgentWelcome(10.0)

    def exchange(self, report: AgentReport) -> AgentReply:
        self._note(report)
        self.held.wait(SECS)
        return REPLY

    def _note(self, request: AgentHello | AgentReport) -> None:
        with self.arrived:
            self.seen.append(request)
            self.arrived.notify_all()
        if self.error is not None:
            raise self.error


def until_seen(head: FakeHead, count: int) -> None:
    with head.arrived:
        assert head.arrived.wait_for(lambda: len(head.seen) >= count, SECS), f"only {head.seen} have arrived"


@pytest.fixture(params=["socket", "port"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[FakeHead, Serving]]:
    head = FakeHead()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        address = at_socket(Path(folder) / "head") if request.param == "socket" else "127.0.0.1:0"
        serving = GrpcTransport(Keyring(TOKEN)).serve_head(head, address, calls=4)
        yield head, serving
        head.held.set()
        serving.stop(wait_secs=SECS)


@pytest.fixture
def head(served: tuple[FakeHead, Serving]) -> FakeHead:
    return served[0]


@pytest.fixture
def link(served: tuple[FakeHead, Serving]) -> Iterator[Link[HeadPort]]:
    link = GrpcTransport(Keyring(TOKEN)).head(served[1].address)
    yield link
    link.close()


def test_both_calls_reach_the_head_and_bring_its_answers(head: FakeHead, link: Link[HeadPort]) -> None:
    assert link.port.attach(HELLO) == AgentWelcome(10.0)
    assert link.port.exchange(REPORT) == REPLY
    assert head.seen == [HELLO, REPORT]


@pytest.mark.parametrize("kind", [StaleAgent, AgentReplaced, ConfigError])
def test_a_refusal_arrives_by_name_at_once(head: FakeHead, link: Link[HeadPort], kind: type[Exception]) -> None:
    head.error = kind("host 1 was silent")
    for call in (lambda: link.port.attach(HELLO), lambda: link.port.exchange(REPORT)):
        with pytest.raises(kind, match=r"^host 1 was silent$") as refused:
            call()
        assert type(refused.value) is kind
    assert head.seen == [HELLO, REPORT], "a refusal was tried again"


def test_an_agent_without_the_token_is_not_heard(head: FakeHead, served: tuple[FakeHead, Serving]) -> None:
    link = GrpcTransport(Keyring("another")).head(served[1].address)
    for call in (lambda: link.port.attach(HELLO), lambda: link.port.exchange(REPORT)):
        with pytest.raises(Unauthenticated, match=r"does not show the token"):
            call()
    link.close()
    assert head.seen == []


def test_a_poll_that_is_held_ends_when_its_link_is_closed(head: FakeHead, link: Link[HeadPort]) -> None:
    head.held.clear()
    failures: list[Exception] = []

    def poll() -> None:
        try:
            link.port.exchange(REPORT)
        except RoleLost as error:
            failures.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    until_seen(head, 1)
    link.close()
    thread.join(SECS)
    assert len(failures) == 1
    with pytest.raises(RoleLost, match=r"its channel is closed here"):
        link.port.attach(HELLO)


def test_a_head_that_is_not_there_is_missed_within_seconds() -> None:
    link, began = GrpcTransport(Keyring(TOKEN)).head("127.0.0.1:9"), SYSTEM_CLOCK.monotonic()
    with pytest.raises(RoleLost, match=r"the head at 127.0.0.1:9 could not be reached for Attach"):
        link.port.attach(HELLO)
    assert SYSTEM_CLOCK.monotonic() - began < 10.0, "it was looked for until the deadline of a call"
    link.close()


def test_a_poll_whose_connection_breaks_is_asked_again_with_the_same_request() -> None:
    head, replies = FakeHead(), list[AgentReply]()
    serving = GrpcTransport(Keyring(TOKEN)).serve_head(head, "127.0.0.1:0", calls=4)
    relay = Relay(serving.address)
    link = GrpcTransport(Keyring(TOKEN)).head(relay.address)
    try:
        link.port.attach(HELLO)
        head.held.clear()
        thread = threading.Thread(target=lambda: replies.append(link.port.exchange(REPORT)))
        thread.start()
        until_seen(head, 2)
        relay.cut()
        until_seen(head, 3)
        head.held.set()
        thread.join(SECS)
        assert replies == [REPLY] and head.seen == [HELLO, REPORT, REPORT]
    finally:
        link.close()
        relay.close()
        serving.stop(wait_secs=SECS)


# --- limits ---


@pytest.mark.parametrize("events", [("x" * (MOST_LINE_CHARS + 1),), ("\x1b[2J",), ("x",) * (MOST_LINES + 1)])
def test_lines_above_the_limits_never_reach_the_head(
    head: FakeHead, link: Link[HeadPort], events: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidMessage):
        link.port.exchange(dataclasses.replace(REPORT, events=events))
    assert head.seen == []


def test_the_largest_message_fits_through_grpc(head: FakeHead, link: Link[HeadPort]) -> None:
    report = dataclasses.replace(REPORT, events=("x" * MOST_LINE_CHARS,) * 16)
    assert len(encode(report).SerializeToString()) < MESSAGE_BYTES
    assert link.port.exchange(report) == REPLY and head.seen == [report]


def test_the_wire_keeps_names_short_and_lines_long() -> None:
    with pytest.raises(InvalidMessage, match=r"host of AgentHello has 257 characters, above the 256 of a message"):
        decode(AgentHello, encode(dataclasses.replace(HELLO, host="x" * 257)))
    with pytest.raises(InvalidMessage, match=r"events of AgentReport has 1001 entries, above the 1000 of a message"):
        decode(AgentReport, pb.AgentReport(events=["x"] * 1001))
    with pytest.raises(InvalidMessage, match=r"a line in a list has 65537 characters, above the 65536 of a message"):
        decode(AgentReply, pb.AgentReply(orders=["x" * 65537]))
