"""The program of a further host against a head in the same process: it does as told, ends with the run, and leaves."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.errors import ConfigError
from hybridsync.interfaces.agents import AgentHello
from hybridsync.interfaces.ports import HeadPort
from hybridsync.runtime.agent import agent_program
from hybridsync.runtime.agent.agent_connection import AgentConnection
from hybridsync.runtime.agent.agent_program import TURN_SECS, AgentProgram, AgentSpec
from hybridsync.runtime.agent.host_agent import HostSpec
from hybridsync.runtime.agent.host_messages import (
    AwaitEnd,
    ChiefServes,
    Ended,
    EndRun,
    KillRole,
    Leaving,
    Order,
    Started,
    StartRole,
    event_of,
    to_line,
)
from hybridsync.runtime.role.role_pipe import RoleSpec
from hybridsync.runtime.role.watchdog import Watchdog
from hybridsync.runtime.supervisor.agent_sessions import AgentAttached, AgentEnded, AgentEvent, AgentSessions
from hybridsync.transport.link import Link
from tests.runtime.agent.test_agent_connection import Way
from tests.runtime.agents import DIGEST, hello, sessions_of
from tests.telemetry.clocks import ManualClock

ROLE = Path(__file__).parents[1] / "fake_role.py"
WAIT_SECS, LEASE_SECS = 30.0, 60.0


class Lost(Way):
    """A way to a head that is not there."""

    def __init__(self, head: AgentSessions) -> None:
        super().__init__(head)
        self.loses = "requests"


class Head:
    """A head whose supervisor is a test: it runs beside the program, which needs the main thread.

    Attributes:
      clock: of the head's leases, which the test moves.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.said, self.news = folder, [], []
        self.clock = ManualClock()
        self.sessions: AgentSessions = sessions_of(self.clock, lease_secs=LEASE_SECS)
        self.ways: list[Way] = []
        self._error: BaseException | None = None

    def program(self, **options: Any) -> AgentProgram:
        roles = HostSpec((sys.executable, str(ROLE), json.dumps({})), self.folder / "logs")
        limits = {name: options.pop(name) for name in ("give_up_secs", "stay_secs") if name in options}
        spec = AgentSpec(roles, "127.0.0.1", **limits)

        def hello_of(session: str) -> AgentHello:
            return hello(session)

        return AgentProgram(spec, lambda: self._connect(), hello_of, **{"say": self.said.append, **options})

    def _connect(self) -> Link[HeadPort]:
        self.ways.append(Way(self.sessions))
        return Link(self.ways[-1], self.ways[-1].close)

    def lost(self) -> Link[HeadPort]:
        """Connect by a way to a head that is not there."""
        way = Lost(self.sessions)
        return Link(way, way.close)

    def run(self, story: Callable[[], None], **options: Any) -> int:
        """Run the program while a thread tells a story of its head; returns the exit code."""

        def tell() -> None:
            try:
                story()
            except BaseException as error:  # noqa: BLE001 raised again on the main thread
                self._error = error
                self.sessions.end(to_line(EndRun(99)), 0.0)

        teller = threading.Thread(target=tell)
        teller.start()
        try:
            return self.program(**options).run()
        finally:
            teller.join(WAIT_SECS)
            if self._error is not None:
                raise self._error

    def until(self, kind: type[Any], number: int = 1) -> Any:
        """Wait for the `number`-th news of a kind, and return it: of a session, or an event in one."""
        deadline = SYSTEM_CLOCK.monotonic() + WAIT_SECS
        while True:
            self.sessions.expire()
            for _, news in self.sessions.take():
                self.news.append(event_of(news.line) if isinstance(news, AgentEvent) else news)
            found = [news for news in self.news if isinstance(news, kind)]
            if len(found) >= number:
                return found[number - 1]
            assert SYSTEM_CLOCK.monotonic() < deadline, f"no {kind.__name__} after {self.news}"
            pause(0.01)

    def order(self, order: Order) -> None:
        assert self.sessions.order(1, to_line(order)), "the session is over"

    def start(self, restart_count: int = 0) -> None:
        spec = RoleSpec("worker", 2, restart_count, "10.0.0.0:1", str(self.folder), 4, 1, "", "host", 1)
        self.order(StartRole(spec, "start"))


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


@pytest.fixture
def lease_clock(head: Head, monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Return the clock of both ends' leases."""
    monkeypatch.setattr(agent_program, "AgentConnection", partial(AgentConnection, clock=head.clock))
    return head.clock


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("code", [0, 75, 70])
def test_it_starts_and_kills_as_told_and_ends_with_the_code_of_the_run(head: Head, code: int) -> None:
    pids = []

    def story() -> None:
        head.until(AgentAttached)
        head.order(ChiefServes("10.0.0.0:9"))
        head.start()
        pids.append(head.until(Started).pid)
        head.order(KillRole("worker", 2, pids[0]))
        assert head.until(Ended).code == -signal.SIGKILL
        head.start(1)
        pids.append(head.until(Started, 2).pid)
        head.sessions.end(to_line(EndRun(code)), WAIT_SECS)

    assert head.run(story) == code
    assert all(map(is_gone, pids))
    assert head.said[-1] == ("the run has completed" if code == 0 else "the run has ended")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_takes_its_host_out_of_the_run_and_the_head_hears_of_it(head: Head, number: signal.Signals) -> None:
    pids = []

    def story() -> None:
        head.until(AgentAttached)
        head.start()
        pids.append(head.until(Started).pid)
        os.kill(os.getpid(), number)
        assert head.until(Leaving) == Leaving(f"its agent was ended by {number.name}")
        assert is_gone(pids[0]), "it has said that nothing runs there any more"

    assert head.run(story, stay_secs=0.1) == 75


def test_a_host_that_is_asked_to_leave_while_the_run_is_saved_stays_until_its_end(head: Head) -> None:
    clock = ManualClock()

    def story() -> None:
        head.until(AgentAttached)
        os.kill(os.getpid(), signal.SIGTERM)  # as every process of the job
        head.order(AwaitEnd())
        head.start()
        head.until(Started)  # it has heard both
        clock.advance(60.0)
        head.order(KillRole("worker", 2, head.until(Started).pid))
        head.until(Ended)
        assert [news for news in head.news if isinstance(news, Leaving)] == []
        head.sessions.end(to_line(EndRun(75)), WAIT_SECS)

    assert head.run(story, clock=clock) == 75
    assert head.said[-1] == "the run has ended"


def test_a_second_signal_does_not_wait_for_the_save(head: Head) -> None:
    def story() -> None:
        head.until(AgentAttached)
        head.order(AwaitEnd())
        os.kill(os.getpid(), signal.SIGTERM)
        head.start()
        head.until(Started)
        os.kill(os.getpid(), signal.SIGINT)
        head.until(Leaving)

    assert head.run(story, clock=ManualClock()) == 75


def test_what_runs_is_ended_when_the_lease_is_over_and_the_host_attaches_again(
    head: Head, lease_clock: ManualClock
) -> None:
    def story() -> None:
        head.until(AgentAttached)
        head.start()
        pid = head.until(Started).pid
        head.ways[-1].loses = "requests"
        lease_clock.advance(LEASE_SECS)
        deadline = SYSTEM_CLOCK.monotonic() + WAIT_SECS
        while not [said for said in head.said if "ending" in said]:  # it knows without a word of the head
            assert SYSTEM_CLOCK.monotonic() < deadline, "its lease is over, and its role goes on"
            pause(0.01)
        head.until(AgentEnded)
        while not is_gone(pid):
            assert SYSTEM_CLOCK.monotonic() < deadline, "the head counts the host as lost, and its role goes on"
            pause(0.01)
        head.until(AgentAttached, 2)  # by a new connection
        assert head.news[-1] != head.news[0]
        head.start(1)
        head.until(Started, 2)
        head.sessions.end(to_line(EndRun(0)), WAIT_SECS)

    assert head.run(story) == 0
    (fenced,) = [said for said in head.said if "ending the roles of this host" in said]
    assert "the head has answered nothing that was sent in the last 60 s" in fenced
    assert head.said.count("attached to the head") == 2


def test_an_end_that_arrives_with_the_end_of_the_lease_is_heeded(head: Head, lease_clock: ManualClock) -> None:
    """The head has gone, because it knows that the word has arrived: nobody would say it again."""
    is_stuck, goes_on = threading.Event(), threading.Event()

    def says_slowly(text: str) -> None:
        head.said.append(text)
        is_stuck.set()
        assert goes_on.wait(WAIT_SECS)

    def story() -> None:
        assert is_stuck.wait(WAIT_SECS)  # the main loop, when it has attached; its threads go on
        head.sessions.end(to_line(EndRun(75)), WAIT_SECS)
        head._connect = head.lost
        head.ways[-1].loses = "requests"
        lease_clock.advance(LEASE_SECS)
        goes_on.set()

    assert head.run(story, say=says_slowly, give_up_secs=LEASE_SECS) == 75


def test_a_main_loop_that_hangs_ends_its_process_though_its_threads_renew_the_lease(head: Head) -> None:
    clock = ManualClock()
    watchdog = Watchdog("the agent of host 1", clock=clock)
    is_stuck, goes_on = threading.Event(), threading.Event()

    def hangs(text: str) -> None:
        is_stuck.set()
        assert goes_on.wait(WAIT_SECS)

    def overdue_after(secs: float) -> list[str]:
        found = []
        for _ in range(int(secs)):  # as often as it looks
            clock.advance(1.0)
            found = watchdog.find_overdue()
        return [each.name for each in found]

    def story() -> None:
        assert is_stuck.wait(WAIT_SECS)
        early, late = overdue_after(TURN_SECS - 2), overdue_after(4)
        goes_on.set()
        assert (early, late) == ([], ["a turn of the main loop"])
        head.sessions.end(to_line(EndRun(0)), WAIT_SECS)

    assert head.run(story, say=hangs, watchdog=watchdog) == 0


def test_a_head_that_stays_away_is_given_up(head: Head) -> None:
    head._connect = head.lost
    assert head.run(lambda: None, give_up_secs=0.3) == 70
    assert head.said[-1].startswith("error: the head was not reached for 0.3 s")


def test_a_refusal_is_raised_and_leaves_nothing_behind(head: Head) -> None:
    head.sessions = sessions_of(SYSTEM_CLOCK, config_digest=DIGEST[::-1])
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = set(children.read_text().split())
    with pytest.raises(ConfigError, match=r"has the configuration c0ffee, the head eeff0c"):
        head.run(lambda: None)
    assert set(children.read_text().split()) <= before
