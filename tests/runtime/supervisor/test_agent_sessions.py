"""What a head makes of its agents' messages, of their silence, and of what it receives twice, late or never."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import (
    AgentReplaced,
    ConfigError,
    HybridSyncError,
    InvalidMessage,
    StaleAgent,
    UnknownRole,
    VersionMismatch,
    WaitTimeout,
)
from hybridsync.interfaces.agents import MOST_LINE_CHARS, MOST_LINES, AgentReply, AgentReport, AgentWelcome
from hybridsync.runtime.supervisor.agent_sessions import MOST_UNTAKEN, AgentSessions
from tests.runtime.agents import (
    DIGEST,
    FIRST,
    LEASE_SECS,
    SECOND,
    THIRD,
    TOKEN,
    Wakes,
    hello,
    report,
    sessions_of,
    told,
)
from tests.telemetry.clocks import ManualClock

WAIT_SECS = 10.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def wakes() -> Wakes:
    return Wakes()


@pytest.fixture
def head(clock: ManualClock, wakes: Wakes) -> AgentSessions:
    return sessions_of(clock, wakes)


@pytest.fixture
def attached(head: AgentSessions) -> AgentSessions:
    """A head with host 1 attached, and taken as that."""
    head.attach(hello())
    assert told(head.take()) == ["1+node1"]
    return head


# --- attaching ---


def test_an_agent_is_taken_in_once_and_a_repeat_is_answered_the_same(head: AgentSessions, wakes: Wakes) -> None:
    assert head.attach(hello()) == head.attach(hello()) == AgentWelcome(LEASE_SECS)
    assert told(head.take()) == ["1+node1"] and head.attached() == {1: hello()}
    assert wakes.count == 1
    assert TOKEN not in repr(head.attach(hello()))


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"index": 0}, UnknownRole, r"there is no host 0 in this run: its further hosts are 1 to 2"),
        ({"index": 3}, UnknownRole, r"there is no host 3 in this run: its further hosts are 1 to 2"),
        ({"config_digest": "beef"}, ConfigError, rf"host 1 \(node1\) has the configuration beef, the head {DIGEST};"),
        ({"config_digest": ""}, ConfigError, r"has the configuration \(none\), the head"),
        ({"version": "9.9.1"}, VersionMismatch, r"host 1 \(node1\) runs hybridsync 9.9.1, the head 0"),
        ({"num_hosts": 2}, ConfigError, r"host 1 \(node1\) was told of 2 hosts, and the head of 3; give every host"),
        ({"slots": 0}, InvalidMessage, r"has 0 slots; have 1 to"),
        ({"slots": 2**62}, InvalidMessage, r"has 4611686018427387904 slots; have 1 to"),
        ({"address": ""}, InvalidMessage, r"has the address ''; name the host"),
        ({"session": "1" * 31}, InvalidMessage, r"draw 32 hexadecimal digits"),
        ({"session": "G" * 32}, InvalidMessage, r"draw 32 hexadecimal digits"),
    ],
)
def test_an_agent_that_does_not_belong_is_refused_with_both_values(
    head: AgentSessions, fields: dict[str, Any], kind: type[HybridSyncError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        head.attach(hello(**fields))
    assert head.take() == [] and head.attached() == {}


def test_a_run_of_one_host_takes_nobody_in(clock: ManualClock) -> None:
    with pytest.raises(UnknownRole, match=r"there is no host 1 in this run: it has one host;"):
        sessions_of(clock, num_hosts=1).attach(hello())


def test_one_session_has_one_hello(attached: AgentSessions) -> None:
    with pytest.raises(InvalidMessage, match=r"host 1 \(node1\) attaches with two hellos in one session"):
        attached.attach(hello(slots=3))
    assert attached.attached() == {1: hello()}


def test_a_new_session_takes_the_place_of_the_former_one_after_all_that_it_told(attached: AgentSessions) -> None:
    attached.exchange(report("a", "b"))
    attached.attach(hello(SECOND, host="other"))
    assert attached.attached() == {1: hello()}, "the supervisor has not heard of it yet"
    assert told(attached.take()) == ["1:a", "1:b", "1-", "1+other"]
    assert attached.attached() == {1: hello(SECOND, host="other")}
    with pytest.raises(AgentReplaced, match=r"host 1 \(node1\) was replaced: .* on other .*; host 1 .* has the "):
        attached.exchange(report("c", first=2))
    assert attached.take() == []


def test_a_late_copy_of_a_former_hello_takes_nobodys_place(attached: AgentSessions) -> None:
    attached.attach(hello(SECOND))
    with pytest.raises(AgentReplaced):
        attached.attach(hello())
    assert attached.exchange(report("x", session=SECOND)).heard == 1
    assert told(attached.take()) == ["1-", "1+node1", "1:x"]


def test_a_session_that_came_and_went_untaken_is_not_told(attached: AgentSessions) -> None:
    attached.attach(hello(SECOND))
    attached.exchange(report("lost", session=SECOND))
    attached.attach(hello(THIRD))
    assert told(attached.take()) == ["1-", "1+node1"]
    assert attached.attached() == {1: hello(THIRD)}


# --- numbers ---


def test_events_are_taken_once_and_in_order_whatever_is_repeated(attached: AgentSessions, wakes: Wakes) -> None:
    assert attached.exchange(report("a", "b")) == AgentReply(2, 0, ())
    assert attached.exchange(report("a", "b", "c")).heard == 3  # its answer was lost
    assert attached.exchange(report("a")).heard == 3  # it was overtaken
    assert attached.exchange(report("d", first=3)).heard == 4
    assert told(attached.take()) == ["1:a", "1:b", "1:c", "1:d"]
    before = wakes.count
    attached.exchange(report("a", "b"))
    assert attached.take() == [] and wakes.count == before


@pytest.mark.parametrize("first", [1, -1, 2**63 - 1])
def test_events_behind_a_gap_are_refused_and_nothing_is_changed(
    attached: AgentSessions, clock: ManualClock, first: int
) -> None:
    clock.advance(LEASE_SECS / 2)
    with pytest.raises(InvalidMessage, match=rf"events from number {first} on have arrived, but number 0 is the next"):
        attached.exchange(report("b", first=first))
    assert attached.exchange(report("a")).heard == 1
    assert told(attached.take()) == ["1:a"]


def test_a_refused_exchange_renews_no_lease(attached: AgentSessions, clock: ManualClock) -> None:
    clock.advance(LEASE_SECS - 1)
    with pytest.raises(InvalidMessage):
        attached.exchange(report("b", first=7))
    clock.advance(1)
    attached.expire()
    assert told(attached.take()) == ["1-"]


def test_orders_are_kept_until_they_are_seen(attached: AgentSessions) -> None:
    assert attached.order(1, "x") and attached.order(1, "y")
    assert attached.exchange(report()) == AgentReply(0, 0, ("x", "y"))
    assert attached.exchange(report()) == AgentReply(0, 0, ("x", "y"))
    assert attached.exchange(report(seen=1)) == AgentReply(0, 1, ("y",))
    assert attached.exchange(report(seen=0)) == AgentReply(0, 1, ("y",)), "it was overtaken"
    assert attached.exchange(report(seen=2)) == AgentReply(0, 2, ())


@pytest.mark.parametrize("seen", [2, -1])
def test_orders_that_were_never_sent_cannot_be_seen(attached: AgentSessions, seen: int) -> None:
    attached.order(1, "x")
    with pytest.raises(InvalidMessage, match=rf"{seen} orders are said to have arrived, but 1 were sent"):
        attached.exchange(report("a", seen=seen))
    assert attached.take() == []


@pytest.mark.parametrize("line", ["ü", "a\nb", "\x1b[2J", "x" * (MOST_LINE_CHARS + 1)])
def test_a_line_that_the_agent_would_refuse_is_refused_here(attached: AgentSessions, line: str) -> None:
    with pytest.raises(InvalidMessage, match=r"a line of the orders"):
        attached.order(1, line)


def test_many_and_long_orders_go_in_several_messages(attached: AgentSessions) -> None:
    lines = [f"{number:05d}".ljust(MOST_LINE_CHARS, "x") for number in range(40)] + ["y"] * (MOST_LINES + 5)
    for line in lines:
        attached.order(1, line)
    found: list[str] = []
    while (reply := attached.exchange(report(seen=len(found)))).orders:
        assert len(reply.orders) <= MOST_LINES and sum(map(len, reply.orders)) <= 1 << 20
        found += reply.orders
    assert found == lines


def test_events_wait_with_the_agent_while_the_supervisor_does_not_take_them(attached: AgentSessions) -> None:
    assert attached.exchange(report(*["a"] * (MOST_UNTAKEN - 1))).heard == MOST_UNTAKEN - 1
    assert attached.exchange(report("b", "c", first=MOST_UNTAKEN - 1)).heard == MOST_UNTAKEN
    assert len(attached.take()) == MOST_UNTAKEN
    assert attached.exchange(report("c", first=MOST_UNTAKEN)).heard == MOST_UNTAKEN + 1
    assert told(attached.take()) == ["1:c"]


# --- orders and sessions ---


def test_an_order_never_reaches_a_session_that_the_supervisor_does_not_know(head: AgentSessions) -> None:
    head.attach(hello())
    assert not head.order(1, "early"), "its attachment was not taken"
    head.take()
    assert head.order(1, "start worker 3")
    head.attach(hello(SECOND))
    assert not head.order(1, "start worker 4"), "what ended is still to be taken"
    assert head.exchange(report(session=SECOND)).orders == ()
    head.take()
    assert head.order(1, "start worker 5") and head.exchange(report(session=SECOND)).orders == ("start worker 5",)


# --- leases ---


def test_a_silent_session_ends_with_its_lease(attached: AgentSessions, clock: ManualClock, wakes: Wakes) -> None:
    attached.exchange(report("a"))
    attached.take()
    clock.advance(LEASE_SECS - 0.001)
    attached.expire()
    assert attached.take() == []
    before = wakes.count
    clock.advance(0.001)
    attached.expire()
    assert wakes.count == before + 1
    assert told(attached.take()) == ["1-"] and attached.attached() == {}
    with pytest.raises(StaleAgent, match=r"host 1 \(node1\) was silent for 10 s, .*; end what runs under it, and att"):
        attached.exchange(report("b", first=1))
    assert attached.take() == []


def test_an_exchange_that_arrives_at_the_end_of_the_lease_is_refused_whoever_looked_first(
    attached: AgentSessions, clock: ManualClock
) -> None:
    clock.advance(LEASE_SECS)
    with pytest.raises(StaleAgent) as refused:
        attached.exchange(report("late"))
    assert type(refused.value) is StaleAgent, "nobody has its place: it may attach again"
    assert told(attached.take()) == ["1-"]


def test_each_exchange_and_each_repeat_of_the_hello_renews_the_lease(
    attached: AgentSessions, clock: ManualClock
) -> None:
    for renew in (lambda: attached.exchange(report()), lambda: attached.attach(hello())):
        for _ in range(3):
            clock.advance(LEASE_SECS - 1)
            renew()
    attached.expire()
    assert attached.take() == [] and attached.attached() == {1: hello()}


def test_a_host_that_was_silent_comes_back_with_another_session_only(
    attached: AgentSessions, clock: ManualClock
) -> None:
    clock.advance(LEASE_SECS)
    with pytest.raises(StaleAgent, match=r"was silent for 10 s"):
        attached.attach(hello())
    attached.attach(hello(SECOND))
    assert told(attached.take()) == ["1-", "1+node1"]


def test_one_hosts_silence_is_not_anothers(attached: AgentSessions, clock: ManualClock) -> None:
    clock.advance(LEASE_SECS - 1)
    attached.attach(hello(SECOND, index=2))
    clock.advance(1)
    attached.expire()
    assert told(attached.take()) == ["2+node2", "1-"]
    assert attached.exchange(report("a", session=SECOND, index=2)).heard == 1


@pytest.mark.parametrize(("session", "index"), [(SECOND, 1), (FIRST, 2), ("", 1), (FIRST, 99), (FIRST, -1)])
def test_a_session_that_the_head_does_not_know_is_refused(attached: AgentSessions, session: str, index: int) -> None:
    with pytest.raises(StaleAgent, match=rf"host {index} has no session '{session}' here"):
        attached.exchange(report("a", session=session, index=index))
    assert attached.take() == []


# --- waits ---


@pytest.mark.parametrize("secs", [-1.0, 5.1])
def test_an_answer_waits_for_no_longer_than_it_may(attached: AgentSessions, secs: float) -> None:
    with pytest.raises(InvalidMessage, match=r"but an answer waits for 5 s at most; ask again instead"):
        attached.exchange(AgentReport(1, FIRST, 0, (), 0, secs))


class PollThread:
    """A poll by a thread of its own, which the head holds."""

    def __init__(self, head: AgentSessions, secs: float = 5.0) -> None:
        self.answer: AgentReply | HybridSyncError | None = None
        self._head, self._secs = head, secs
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        try:
            self.answer = self._head.exchange(AgentReport(1, FIRST, 0, (), 0, self._secs))
        except HybridSyncError as error:
            self.answer = error

    def join(self) -> AgentReply | HybridSyncError | None:
        self._thread.join(WAIT_SECS)
        return self.answer


@pytest.fixture
def waiting() -> AgentSessions:
    head = sessions_of(SYSTEM_CLOCK)
    head.attach(hello())
    head.take()
    return head


def until_held(head: AgentSessions, polls: int = 1) -> None:
    with head._condition:
        assert head._condition.wait_for(lambda: head._sessions[1].polls == polls, WAIT_SECS), "no poll has arrived"


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (lambda head: head.order(1, "x"), AgentReply(0, 0, ("x",))),
        (lambda head: PollThread(head), AgentReply(0, 0, ())),
    ],
    ids=["an order", "a newer poll"],
)
def test_a_held_answer_is_given_at_once_when_there_is_something_to_say(
    attached: AgentSessions, change: Callable[[AgentSessions], object], answer: AgentReply
) -> None:
    poll = PollThread(attached)
    until_held(attached)
    change(attached)
    assert poll.join() == answer, "by a clock that stands still no answer is due"
    attached.order(1, "y")  # and ends the newer poll


def test_a_held_answer_becomes_a_refusal_when_its_session_ends(waiting: AgentSessions) -> None:
    poll = PollThread(waiting)
    until_held(waiting)
    waiting.attach(hello(SECOND))
    assert isinstance(poll.join(), AgentReplaced)


def test_an_event_is_acknowledged_while_a_poll_is_held_and_the_poll_goes_on(attached: AgentSessions) -> None:
    poll = PollThread(attached)
    until_held(attached)
    assert attached.exchange(report("a")).heard == 1
    assert poll.answer is None
    attached.order(1, "x")
    assert poll.join() == AgentReply(1, 0, ("x",))


def test_an_answer_with_nothing_to_say_comes_when_its_time_is_over(waiting: AgentSessions) -> None:
    assert PollThread(waiting, secs=0.05).join() == AgentReply(0, 0, ())


# --- the end ---


def test_the_last_order_waits_until_everybody_has_seen_it(waiting: AgentSessions) -> None:
    poll = PollThread(waiting)
    until_held(waiting)
    ended = threading.Thread(target=waiting.end, args=("end", WAIT_SECS))
    ended.start()
    assert poll.join() == AgentReply(0, 0, ("end",))
    assert ended.is_alive(), "it was sent, and may be lost"
    waiting.exchange(report(seen=1))
    ended.join(WAIT_SECS)
    assert not ended.is_alive()


def test_who_has_not_taken_the_last_order_is_named_until_it_is_known_to_be_gone(clock: ManualClock) -> None:
    head = sessions_of(clock)
    head.end("end", secs=0.0)  # nobody is attached
    head.attach(hello())
    head.attach(hello(SECOND, index=2))
    head.exchange(report(seen=1))
    with pytest.raises(WaitTimeout, match=r"the last order was not taken within 0 s by host 1 \(node1\), host 2 "):
        head.end("end again", secs=0.0)
    clock.advance(LEASE_SECS)
    head.expire()
    with pytest.raises(WaitTimeout, match=r"by host 1 \(node1\), host 2 "):
        head.end("end again", secs=0.0)  # they may attach again at any moment
    clock.advance(LEASE_SECS)
    head.end("end again", secs=0.0)


def test_a_host_that_leaves_is_not_waited_for_at_the_end(attached: AgentSessions) -> None:
    attached.end_session(1, "its agent was ended by SIGTERM")
    attached.end("end", secs=0.0)


def test_a_host_whose_lease_ends_with_the_run_hears_of_the_end_when_it_attaches_again(waiting: AgentSessions) -> None:
    waiting._sessions[1].heard_at -= LEASE_SECS
    ended = threading.Thread(target=waiting.end, args=("end", WAIT_SECS))
    waiting.expire()
    ended.start()
    with waiting._condition:
        assert waiting._condition.wait_for(lambda: waiting._last == "end", WAIT_SECS), "the head has gone"
    waiting.attach(hello(SECOND))
    assert waiting.exchange(report(session=SECOND)).orders == ("end",)
    assert ended.is_alive(), "the head goes before the host has heard of the end"
    waiting.exchange(report(session=SECOND, seen=1))
    ended.join(WAIT_SECS)
    assert not ended.is_alive()


def test_who_attaches_after_the_end_gets_the_last_order(attached: AgentSessions) -> None:
    with pytest.raises(WaitTimeout, match=r"host 1 \(node1\)"):
        attached.end("end", secs=0.0)
    attached.attach(hello(SECOND))
    assert attached.exchange(report(session=SECOND)).orders == ("end",)
