"""The hosts of a run as its supervisor sees them: who is there, what is told in which order, whom an order reaches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hybridsync.core.errors import StaleAgent
from hybridsync.interfaces.agents import AgentReport
from hybridsync.runtime.agent.host_agent import HostAgent
from hybridsync.runtime.agent.host_messages import (
    ChiefServes,
    Ended,
    EndRun,
    Event,
    KillRole,
    Leaving,
    NotStarted,
    Order,
    Reported,
    Started,
    StartRole,
    order_of,
    to_line,
)
from hybridsync.runtime.role.role_pipe import RoleSpec
from hybridsync.runtime.supervisor.agent_sessions import AgentSessions
from hybridsync.runtime.supervisor.run_hosts import HostJoined, HostLost, RunHosts
from tests.runtime.agents import FIRST, LEASE_SECS, SECOND, hello, report, sessions_of
from tests.telemetry.clocks import ManualClock

STARTED = Started("worker", 2, 0, 77, "start")
ENDED = Ended("worker", 2, 77, -9, 1.0)
KILL = KillRole("worker", 2, 77)


def start_of(role_id: int) -> StartRole:
    spec = RoleSpec("worker", role_id, 0, "10.0.0.0:1", "/run", 4, 1, "", "host", 1)
    return StartRole(spec, "start")


class OwnAgent(HostAgent):
    """Be the agent of the head's host, as far as it is told something."""

    def __init__(self) -> None:
        self.told: list[Order] = []
        self.events: list[Event] = []
        self.waited_secs: list[float] = []

    def start(self, order: StartRole) -> None:
        self.told.append(order)

    def kill(self, order: KillRole) -> None:
        self.told.append(order)

    def chief_serves(self, order: ChiefServes) -> None:
        self.told.append(order)

    def wait(self, secs: float, wake_fd: int) -> list[Event]:
        self.waited_secs.append(secs)
        events, self.events = self.events, []
        return events


class Head:
    """The hosts of a run of three, and what their agents call."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.own = OwnAgent()
        self.sessions: AgentSessions = sessions_of(self.clock)
        self.hosts = RunHosts(self.own, 2, 3, self.sessions, self.clock)

    def wait(self) -> list[tuple[int, object]]:
        return list(self.hosts.wait(1.0, -1))

    def orders(self, session: str = FIRST, index: int = 1) -> list[Order]:
        """Return all orders that this session was given."""
        return [order_of(line) for line in self.sessions.exchange(report(session=session, index=index)).orders]


@pytest.fixture
def head() -> Head:
    return Head()


def test_hosts_are_there_from_their_first_words_until_they_are_lost(head: Head) -> None:
    assert dict(head.hosts.slots()) == {0: 2}
    head.clock.advance(3.0)
    assert dict(head.hosts.away_secs()) == {1: 3.0, 2: 3.0}
    head.sessions.attach(hello(slots=5))
    assert head.wait() == [(1, HostJoined("node1", 5))]
    assert dict(head.hosts.slots()) == {0: 2, 1: 5} and dict(head.hosts.away_secs()) == {2: 3.0}
    head.clock.advance(LEASE_SECS)
    ((index, lost),) = head.wait()
    assert index == 1 and isinstance(lost, HostLost) and "silent" in lost.reason
    head.clock.advance(1.0)
    assert dict(head.hosts.slots()) == {0: 2}
    assert dict(head.hosts.away_secs()) == {1: 1.0, 2: 3.0 + LEASE_SECS + 1.0}


def test_orders_go_to_the_host_that_they_name_and_events_come_with_theirs(head: Head) -> None:
    head.sessions.attach(hello())
    head.wait()
    head.hosts.start(0, start_of(0))
    head.hosts.start(1, start_of(2))
    head.hosts.kill(0, KILL)
    head.hosts.kill(1, KILL)
    assert head.own.told == [start_of(0), KILL]
    assert head.orders() == [start_of(2), KILL]
    head.own.events = [STARTED]
    head.sessions.exchange(report(to_line(ENDED)))
    assert head.wait() == [(0, STARTED), (1, ENDED)]


def test_where_the_chief_serves_is_told_to_those_who_are_there_and_to_those_who_come(head: Head) -> None:
    head.sessions.attach(hello())
    head.wait()
    head.hosts.chief_serves("10.0.0.0:9")
    assert head.own.told == [ChiefServes("10.0.0.0:9")]
    assert head.orders() == [ChiefServes("10.0.0.0:9")]
    head.sessions.attach(hello(SECOND, index=2))
    head.wait()
    assert head.orders(SECOND, 2) == [ChiefServes("10.0.0.0:9")]


def test_a_host_that_says_that_it_leaves_is_lost_once(head: Head) -> None:
    head.sessions.attach(hello())
    head.sessions.exchange(report(to_line(Leaving("its agent was ended by SIGTERM"))))
    assert [type(event) for _, event in head.wait()] == [HostJoined]
    assert head.wait() == [(1, HostLost("its agent was ended by SIGTERM"))]
    head.clock.advance(LEASE_SECS)
    assert head.wait() == [], "its session has ended as well, which is no news"
    head.sessions.attach(hello(SECOND))
    assert head.wait() == [(1, HostJoined("node1", 4))]


def test_what_is_ordered_while_a_loss_is_heeded_waits_for_the_host_to_be_told_of_as_back(head: Head) -> None:
    head.sessions.attach(hello())
    head.sessions.exchange(report(to_line(STARTED)))
    head.wait()
    head.sessions.exchange(report(to_line(ENDED), first=1))
    head.sessions.attach(hello(SECOND))  # its agent was killed and started again, between two looks
    (_, ended), (_, lost) = head.wait()
    assert ended == ENDED and isinstance(lost, HostLost)
    assert 1 not in head.hosts.slots(), "a role would be ordered at the end of the former one, and at the loss again"
    assert head.wait() == [(1, HostJoined("node1", 4))]
    assert head.own.waited_secs[-1] == 0.0, "what is known already is waited for"
    head.hosts.start(1, start_of(2))
    assert head.orders(SECOND) == [start_of(2)]


def test_an_order_for_a_session_that_is_over_reaches_nobody(head: Head) -> None:
    head.sessions.attach(hello())
    head.wait()
    head.sessions.attach(hello(SECOND))
    head.hosts.start(1, start_of(2))
    assert head.orders(SECOND) == []


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "Sung"}',
        "[" * 30_000,
        to_line(replace(ENDED, code=-40)),
        to_line(ENDED).replace(f'"pid": {ENDED.pid}', '"pid": "seven"'),
        to_line(replace(STARTED, pid=1 << 70)),  # the chief could not be told
        to_line(replace(STARTED, restart_count=-1)),
        to_line(replace(ENDED, unit=1 << 70)),
        to_line(replace(ENDED, lived_secs=float("nan"))),
        to_line(Reported("worker", 2, 77, {"error": "it failed"})),
        to_line(Reported("worker", 2, 77, {"error": "it failed", "exit_code": "1"})),
        to_line(Reported("worker", 2, 77, {"joined": ["10.0.0.0:1"]})),
    ],
)
def test_an_agent_that_says_what_is_no_event_loses_its_session_and_nobody_else_does(head: Head, line: str) -> None:
    head.sessions.attach(hello())
    head.sessions.exchange(AgentReport(1, FIRST, 0, (line, to_line(STARTED)), 0, 0.0))
    assert [type(event) for _, event in head.wait()] == [HostJoined]
    ((host, lost),) = head.wait()
    assert host == 1 and isinstance(lost, HostLost) and "no event of a host's agent" in lost.reason
    with pytest.raises(StaleAgent):
        head.sessions.exchange(report(first=1))


def test_the_words_of_another_host_do_not_drive_the_head_s_terminal(head: Head) -> None:
    head.sessions.attach(hello())
    said = "\x1b]0;taken\x07\x1b[2J first\nsecond " + "x" * 9000
    failed = Reported("worker", 2, 77, {"error": said, "exit_code": 70})
    head.sessions.exchange(report(to_line(failed), to_line(NotStarted("worker", 3, said)), to_line(Leaving(said))))
    (_, joined), (_, reported), (_, not_started) = head.wait()
    ((_, lost),) = head.wait()
    assert isinstance(joined, HostJoined) and isinstance(reported, Reported)
    assert isinstance(not_started, NotStarted) and isinstance(lost, HostLost)
    for text in (reported.fields["error"], not_started.message, lost.reason):
        assert text.splitlines()[0] == r"\x1b]0;taken\x07\x1b[2J first" and "\x1b" not in text
        assert len(text) < 4100


def test_the_end_is_told_to_all_and_who_does_not_hear_it_is_named(head: Head) -> None:
    head.sessions.attach(hello())
    head.wait()
    assert "host 1 (node1)" in head.hosts.end(75, 0.0)
    assert head.orders() == [EndRun(75)]
    head.sessions.exchange(report(seen=1))
    assert head.hosts.end(75, 0.0) != "", "it was told again, and has not heard that"


def test_a_run_of_one_host_has_nobody_to_wait_for(tmp_path: Path) -> None:
    own = OwnAgent()
    own.events = [STARTED]
    hosts = RunHosts(own, 4)
    assert hosts.wait(1.0, -1) == [(0, STARTED)]
    assert dict(hosts.slots()) == {0: 4} and dict(hosts.away_secs()) == {}
    assert hosts.end(0, 0.0) == ""
