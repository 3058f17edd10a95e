"""What an agent makes of answers, refusals and silence of the head."""

from __future__ import annotations

import pytest

from hybridsync.core.errors import (
    AgentReplaced,
    ConfigError,
    HandshakeRefused,
    HybridSyncError,
    InvalidMessage,
    RoleLost,
    StaleAgent,
    WaitTimeout,
)
from hybridsync.interfaces.agents import AgentReply, AgentWelcome
from hybridsync.runtime.agent.agent_exchange import (
    MOST_REFUSED,
    TELL_SECS,
    AgentExchange,
    HeadAway,
    HeadFenced,
    HeadGone,
    HeadOrder,
    HeadRefused,
    HeadWelcomed,
    Stage,
)
from tests.runtime.agents import FIRST, LEASE_SECS, SECOND, hello

WELCOME = AgentWelcome(LEASE_SECS)
NOW, GIVE_UP_SECS = 100.0, 30.0


@pytest.fixture
def new() -> AgentExchange:
    return AgentExchange(hello, FIRST, NOW, GIVE_UP_SECS)


@pytest.fixture
def agent(new: AgentExchange) -> AgentExchange:
    """An agent that attached at `NOW`."""
    new.attached(FIRST, WELCOME, NOW)
    assert new.take() == [HeadWelcomed(WELCOME)]
    return new


def test_the_lease_is_counted_from_when_the_answered_message_was_sent(agent: AgentExchange) -> None:
    agent.answered(agent.poll(), AgentReply(0, 0, ()), sent_at=NOW + 4)
    agent.answered(agent.poll(), AgentReply(0, 0, ()), sent_at=NOW + 1)  # it was overtaken
    assert agent.lease_left(NOW + 5) == LEASE_SECS - 1
    assert not agent.check_lease(NOW + 13.99)
    assert agent.check_lease(NOW + 14)
    assert agent.take() == [
        HeadFenced("the head has answered nothing that was sent in the last 10 s, the time of the lease")
    ]
    assert agent.lease_left(NOW + 99) == float("inf") and not agent.check_lease(NOW + 99), "it is fenced once"


def test_a_poll_is_much_shorter_than_the_lease_and_than_what_a_head_holds(new: AgentExchange) -> None:
    new.attached(FIRST, AgentWelcome(3.0), NOW)
    assert new.poll().hold_secs == 1.0
    new.failed(FIRST, StaleAgent("over"), NOW)
    new.attach_again(SECOND)
    new.attached(SECOND, AgentWelcome(3000.0), NOW)
    assert new.poll().hold_secs == 5.0


def test_an_agent_whose_calls_fail_asks_for_an_answer_at_once(agent: AgentExchange) -> None:
    held = agent.poll().hold_secs
    assert held > 0.0
    agent.failed(agent.hello.session, RoleLost("the network flaps"), NOW + 1)
    assert agent.poll().hold_secs == 0.0, "the lease is renewed in the next short moment in which messages pass"
    agent.answered(agent.poll(), AgentReply(0, 0, ()), sent_at=NOW + 2)
    assert agent.poll().hold_secs == held


def test_nothing_of_a_session_that_is_over_is_left(agent: AgentExchange) -> None:
    agent.send("old event")
    late = agent.delivery()
    agent.answered(agent.poll(), AgentReply(0, 0, ("old order",)), NOW)
    assert agent.failed(FIRST, StaleAgent("silent"), NOW)
    agent.send("a child has ended")
    assert agent.take() == [HeadFenced("silent", ("old order",))], "an order of a session that is over is no order"
    agent.attach_again(SECOND)
    assert agent.hello == hello(SECOND) and not agent.has_events
    assert not agent.answered(late, AgentReply(1, 0, ("late",)), NOW)
    assert not agent.failed(FIRST, AgentReplaced("of the former session"), NOW)
    agent.attached(FIRST, WELCOME, NOW)
    assert agent.take() == [] and agent.stage is Stage.ATTACHING


@pytest.mark.parametrize("error", [RoleLost("away"), WaitTimeout("slow")])
def test_a_head_that_is_away_is_tried_again_until_it_is_given_up(new: AgentExchange, error: HybridSyncError) -> None:
    assert not new.failed(FIRST, error, NOW + TELL_SECS - 0.01)
    assert new.failed(FIRST, error, NOW + TELL_SECS)
    assert new.take() == [HeadAway(f"the head was not reached for 10 s, and is tried for 30 s: {error}")]
    assert not new.failed(FIRST, error, NOW + GIVE_UP_SECS - 0.01), "the user is told twice"
    assert new.failed(FIRST, error, NOW + GIVE_UP_SECS)
    assert new.take() == [HeadGone(f"the head was not reached for 30 s: {error}")]
    assert new.stage is Stage.OVER and not new.failed(FIRST, error, NOW + 99)


def test_the_lease_ends_before_the_head_is_given_up(agent: AgentExchange) -> None:
    assert not agent.failed(FIRST, RoleLost("away"), NOW + LEASE_SECS - 1)
    assert agent.failed(FIRST, RoleLost("away"), NOW + LEASE_SECS)
    assert isinstance(agent.take()[0], HeadFenced)
    agent.attach_again(SECOND)
    assert agent.failed(SECOND, RoleLost("away"), NOW + GIVE_UP_SECS - 1)
    assert isinstance(agent.take()[0], HeadAway)
    assert agent.failed(SECOND, RoleLost("away"), NOW + GIVE_UP_SECS)
    assert isinstance(agent.take()[0], HeadGone)


@pytest.mark.parametrize(
    "error", [ConfigError("other"), AgentReplaced("taken"), InvalidMessage("x"), HybridSyncError()]
)
def test_a_refusal_is_final(agent: AgentExchange, error: HybridSyncError) -> None:
    agent.answered(agent.poll(), AgentReply(0, 0, ("order",)), NOW)
    assert agent.failed(FIRST, error, NOW)
    assert agent.take() == [HeadRefused(error)] and agent.stage is Stage.OVER
    agent.send("dropped")
    assert not agent.has_events


def test_a_head_that_no_longer_knows_the_first_words_fences_too(new: AgentExchange) -> None:
    assert new.failed(FIRST, StaleAgent("over"), NOW)
    assert new.take() == [HeadFenced("over")]


@pytest.mark.parametrize("reply", [AgentReply(1, 0, ()), AgentReply(0, 1, ("x",)), AgentReply(-1, 0, ())])
def test_an_answer_that_cannot_be_is_refused(agent: AgentExchange, reply: AgentReply) -> None:
    with pytest.raises(InvalidMessage):
        agent.answered(agent.poll(), reply, NOW)
    assert agent.take() == []


def test_it_is_settled_when_each_end_knows_that_the_other_has_all_lines(agent: AgentExchange) -> None:
    assert agent.is_settled
    agent.answered(agent.poll(), AgentReply(0, 0, ("end",)), NOW)
    assert agent.take() == [HeadOrder("end")]
    assert not agent.is_settled, "the head does not know that the order has arrived"
    agent.send("last words")
    delivery = agent.delivery()
    agent.answered(delivery, AgentReply(0, 1, ()), NOW)
    assert not agent.is_settled
    agent.answered(delivery, AgentReply(1, 1, ()), NOW)
    assert agent.is_settled


def test_an_agent_that_is_no_host_of_the_head_ends_before_it_gives_up(new: AgentExchange) -> None:
    refused = HandshakeRefused("is TLS on at both ends?")
    assert not any(new.failed(FIRST, refused, NOW) for _ in range(MOST_REFUSED - 1))
    assert not new.failed(FIRST, RoleLost("no answer in time"), NOW)
    assert new.failed(FIRST, refused, NOW)
    assert new.take() == [HeadRefused(refused)] and new.stage is Stage.OVER


def test_a_host_that_was_attached_waits_for_its_head_whatever_refuses_it(agent: AgentExchange) -> None:
    refused = HandshakeRefused("is TLS on at both ends?")
    assert not any(agent.failed(FIRST, refused, NOW) for _ in range(3 * MOST_REFUSED))


def test_refusals_are_counted_anew_once_it_was_attached(agent: AgentExchange) -> None:
    refused = HandshakeRefused("is TLS on at both ends?")
    for session in (SECOND, FIRST):
        agent.failed(agent.hello.session, StaleAgent("over"), NOW)
        agent.take()
        agent.attach_again(session)
        assert not any(agent.failed(session, refused, NOW) for _ in range(MOST_REFUSED - 1))
        agent.attached(session, WELCOME, NOW)
