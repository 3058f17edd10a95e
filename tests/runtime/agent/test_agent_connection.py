"""An agent's threads against a head in the same process, whose calls can be lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.errors import ConfigError, RoleLost
from hybridsync.interfaces.agents import AgentHello, AgentReply, AgentReport, AgentWelcome
from hybridsync.interfaces.ports import HeadPort
from hybridsync.runtime.agent.agent_connection import AgentConnection
from hybridsync.runtime.agent.agent_exchange import (
    HeadFenced,
    HeadGone,
    HeadNews,
    HeadOrder,
    HeadRefused,
    HeadWelcomed,
)
from hybridsync.runtime.supervisor.agent_sessions import AgentSessions, SessionNews
from hybridsync.security.keyring import Keyring
from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.link import Link
from tests.runtime.agents import DIGEST, LEASE_SECS, hello, sessions_of, told
from tests.telemetry.clocks import ManualClock
from tests.transport.relay import Relay

WAIT_SECS = 30.0


class Way:
    """A way to a head that may lose requests or answers.

    Attributes:
      loses: "", "requests" or "answers".
    """

    def __init__(self, head: AgentSessions) -> None:
        self.head, self.loses, self.is_closed, self.num_lost = head, "", False, 0

    def attach(self, hello: AgentHello) -> AgentWelcome:
        return self._call(lambda: self.head.attach(hello))

    def exchange(self, report: AgentReport) -> AgentReply:
        return self._call(lambda: self.head.exchange(report))

    def _call(self, call: Callable[[], Any]) -> Any:
        loses, is_closed = self.loses, self.is_closed
        answer = None if is_closed or loses == "requests" else call()
        if loses or self.is_closed:
            self.num_lost += 1
            raise RoleLost("the head could not be reached")
        return answer

    def close(self) -> None:
        self.is_closed = True
        with self.head._condition:  # a call ends with its connection
            for session in self.head._sessions.values():
                session.polls += 1
            self.head._condition.notify_all()


class Side:
    """Collects what one end has taken, and waits for more of it."""

    def __init__(self) -> None:
        self.woken = threading.Event()
        self.taken: list[Any] = []

    def until(self, take: Callable[[], list[Any]], is_enough: Callable[[list[Any]], bool]) -> list[Any]:
        deadline = SYSTEM_CLOCK.monotonic() + WAIT_SECS
        while not is_enough(self.taken):
            assert SYSTEM_CLOCK.monotonic() < deadline, f"only {self.taken} came within {WAIT_SECS:g} s"
            self.woken.wait(0.02)
            self.woken.clear()
            self.taken += take()
        taken, self.taken = self.taken, []
        return taken


class Pair:
    """A head and an agent, for whose leases and held answers no time passes unless the test says so."""

    def __init__(self, give_up_secs: float = WAIT_SECS, digest: str = DIGEST) -> None:
        self.clock = ManualClock()
        self.at_head, self.at_agent = Side(), Side()
        self.head = sessions_of(self.clock, self.at_head.woken.set)
        self.ways: list[Way] = []
        hello_of = partial(hello, config_digest=digest)
        self.agent = AgentConnection(self.connect, hello_of, self.at_agent.woken.set, give_up_secs, self.clock)

    def connect(self) -> Link[HeadPort]:
        self.ways.append(Way(self.head))
        return Link(self.ways[-1], self.ways[-1].close)

    def heard(self, count: int) -> list[str]:
        def take() -> list[tuple[int, SessionNews]]:
            self.head.expire()
            return self.head.take()

        return told(self.at_head.until(take, lambda taken: len(taken) >= count))

    def told(self, count: int) -> list[HeadNews]:
        return self.at_agent.until(self.agent.take, lambda taken: len(taken) >= count)

    def begin(self) -> None:
        self.agent.start()
        (welcomed,) = self.told(1)
        assert isinstance(welcomed, HeadWelcomed)
        assert self.heard(1) == ["1+node1"]


@pytest.fixture
def paired() -> Iterator[Callable[..., Pair]]:
    pairs: list[Pair] = []

    def make(**options: Any) -> Pair:
        pairs.append(Pair(**options))
        return pairs[-1]

    yield make
    for pair in pairs:
        pair.head.attach(hello("f" * 32))  # ends the poll that the head holds
        pair.agent.close()
        assert not any(thread.is_alive() for thread in pair.agent._threads), "a thread outlives its connection"


def test_events_and_orders_cross_in_order(paired: Callable[..., Pair]) -> None:
    pair = paired()
    pair.begin()
    for number in range(50):
        pair.agent.send(f"event {number}")
        pair.head.order(1, f"order {number}")
    assert pair.heard(50) == [f"1:event {number}" for number in range(50)]
    assert pair.told(50) == [HeadOrder(f"order {number}") for number in range(50)]


def test_an_event_does_not_wait_for_an_answer_that_is_held(paired: Callable[..., Pair]) -> None:
    pair = paired()
    pair.begin()
    pair.agent.send("a child has died")
    assert pair.heard(1) == ["1:a child has died"]


@pytest.mark.parametrize("loses", ["requests", "answers"])
def test_lost_calls_cost_neither_a_line_nor_the_session_within_the_lease(
    paired: Callable[..., Pair], loses: str
) -> None:
    pair = paired()
    pair.begin()
    (way,) = pair.ways
    way.loses = loses
    pair.head.order(1, "x")
    deadline, sent = SYSTEM_CLOCK.monotonic() + WAIT_SECS, list[str]()
    while way.num_lost < 2:
        assert SYSTEM_CLOCK.monotonic() < deadline, "no call was lost"
        sent.append(f"event {len(sent)}")
        pair.agent.send(sent[-1])
        pause(0.05)
    way.loses = ""
    assert pair.heard(len(sent)) == [f"1:{event}" for event in sent]
    assert pair.told(1) == [HeadOrder("x")]


def test_a_head_out_of_reach_fences_the_agent_which_attaches_again_with_nothing_of_before(
    paired: Callable[..., Pair],
) -> None:
    pair = paired()
    pair.begin()
    pair.ways[0].loses = "requests"
    pair.agent.send("never arrives")
    pair.clock.advance(LEASE_SECS)
    (fenced,) = pair.told(1)
    assert isinstance(fenced, HeadFenced), fenced
    assert pair.agent.lease_left() == float("inf")
    pair.agent.attach_again()
    assert pair.ways[0].is_closed
    assert isinstance(pair.told(1)[0], HeadWelcomed)
    assert pair.heard(2) == ["1-", "1+node1"]
    pair.agent.send("again")
    assert pair.heard(1) == ["1:again"]


def test_a_session_that_the_head_has_ended_fences_the_agent(paired: Callable[..., Pair]) -> None:
    pair = paired()
    pair.begin()
    with pair.head._condition:
        pair.head._end(pair.head._sessions[1], "the test has ended it")
    (fenced,) = pair.told(1)
    assert isinstance(fenced, HeadFenced) and "the test has ended it" in fenced.reason


def test_an_agent_whose_place_was_taken_is_refused_for_good(paired: Callable[..., Pair]) -> None:
    pair = paired()
    pair.begin()
    pair.head.attach(hello("a" * 32, host="other"))
    (refused,) = pair.told(1)
    assert isinstance(refused, HeadRefused) and "does another one have the same --index?" in str(refused.error)


def test_a_head_that_never_answers_is_given_up(paired: Callable[..., Pair]) -> None:
    pair = paired(give_up_secs=30.0)
    connect = pair.connect

    def lost() -> Link[HeadPort]:
        link = connect()
        pair.ways[-1].loses = "requests"
        return link

    pair.agent._connect = lost
    pair.clock.advance(30.0)
    pair.agent.start()
    (gone,) = pair.told(1)
    assert isinstance(gone, HeadGone) and gone.reason.startswith("the head was not reached for 30 s: ")


def test_another_configuration_is_refused_for_good(paired: Callable[..., Pair]) -> None:
    pair = paired(digest="beef")
    pair.agent.start()
    (refused,) = pair.told(1)
    assert isinstance(refused, HeadRefused) and type(refused.error) is ConfigError
    assert "beef" in str(refused.error)


def test_an_agent_that_closes_waits_until_its_last_words_have_arrived(paired: Callable[..., Pair]) -> None:
    pair = paired()
    pair.begin()
    ended = threading.Thread(target=pair.head.end, args=("end", WAIT_SECS))
    ended.start()
    assert pair.told(1) == [HeadOrder("end")]
    pair.agent.send("all children have ended")
    assert pair.agent.close(WAIT_SECS)
    ended.join(WAIT_SECS)
    assert not ended.is_alive(), "the head does not know that its last order has arrived"
    assert pair.heard(1) == ["1:all children have ended"]


def test_an_agent_that_closes_without_a_head_says_that_not_all_has_arrived(paired: Callable[..., Pair]) -> None:
    pair = paired()
    pair.begin()
    pair.ways[0].loses = "requests"
    pair.agent.send("lost")
    assert not pair.agent.close(0.1)


def test_a_defect_of_a_thread_is_told_to_the_main_loop(paired: Callable[..., Pair]) -> None:
    pair = paired()

    def broken() -> Link[HeadPort]:
        raise ZeroDivisionError("by zero")

    pair.agent._connect = broken
    pair.agent.start()
    (refused,) = pair.told(1)
    assert isinstance(refused, HeadRefused)
    assert str(refused.error) == "the exchange with the head failed: ZeroDivisionError: by zero"


def test_lines_cross_real_connections_that_break_again_and_again(paired: Callable[..., Pair]) -> None:
    pair = paired()
    serving = GrpcTransport(Keyring("token")).serve_head(pair.head, "127.0.0.1:0", calls=4)
    relay = Relay(serving.address)
    pair.agent._connect = lambda: GrpcTransport(Keyring("token")).head(relay.address)
    try:
        pair.begin()
        heard: list[str] = []
        obeyed: list[HeadNews] = []
        for part in range(5):
            for number in range(20):
                pair.agent.send(f"event {20 * part + number}")
                pair.head.order(1, f"order {20 * part + number}")
                if number == 10:
                    relay.cut()
            heard += pair.heard(20)
            obeyed += pair.told(20)
        assert heard == [f"1:event {number}" for number in range(100)]
        assert obeyed == [HeadOrder(f"order {number}") for number in range(100)]
        assert relay.num_callers > 1, "no connection was broken"
    finally:
        pair.agent.close()
        relay.close()
        serving.stop(wait_secs=WAIT_SECS)
