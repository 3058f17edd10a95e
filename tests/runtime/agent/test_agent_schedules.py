"""Drawn schedules of lost, repeated and overtaken messages between a head and one agent."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from hybridsync.core.errors import HybridSyncError, WaitTimeout
from hybridsync.interfaces.agents import AgentHello, AgentReport, AgentWelcome
from hybridsync.runtime.agent.agent_exchange import (
    AgentExchange,
    HeadAway,
    HeadFenced,
    HeadOrder,
    HeadWelcomed,
    ReceivedLines,
    SentLines,
    Stage,
)
from hybridsync.runtime.supervisor import agent_sessions
from hybridsync.runtime.supervisor.agent_sessions import AgentAttached, AgentEvent, AgentSessions
from tests.runtime.agents import LEASE_SECS, hello, sessions_of
from tests.telemetry.clocks import ManualClock


@dataclass
class Call:
    """A call of the agent: `copies` of its request are under way, and answers to them."""

    request: AgentHello | AgentReport
    sent_at: float
    copies: int = 1
    answers: list[Any] = field(default_factory=list)
    is_open: bool = True


class LossyPair:
    """A head, an agent and a network between them that loses, repeats and reorders."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.head = sessions_of(self.clock)
        self.num_sessions = 0
        self.agent = AgentExchange(hello, self.session(), self.clock.now, give_up_secs=1e9)
        self.calls: list[Call] = []
        self.sent: dict[str, list[str]] = {}  # events, by session
        self.ordered: dict[str, list[str]] = {}
        self.heard: dict[str, list[str]] = {}
        self.carried_out: dict[str, list[str]] = {}
        self.known = ""  # session, to the supervisor
        self.num_lines = 0

    def session(self) -> str:
        self.num_sessions += 1
        return f"{self.num_sessions:032x}"

    def line(self) -> str:
        self.num_lines += 1
        return str(self.num_lines)

    # --- what may happen ---

    def send(self, which: int) -> None:
        if self.agent.is_under_way:
            self.sent.setdefault(self.agent.hello.session, []).append(self.line())
            self.agent.send(str(self.num_lines))

    def order(self, which: int) -> None:
        if self.head.order(1, line := self.line()):
            self.ordered.setdefault(self.known, []).append(line)

    def attach(self, which: int) -> None:
        if self.agent.stage is Stage.ATTACHING:
            self.call(self.agent.hello)

    def poll(self, which: int) -> None:
        if self.agent.stage is Stage.ATTACHED:
            self.call(self.agent.poll())

    def deliver_events(self, which: int) -> None:
        if self.agent.stage is Stage.ATTACHED:
            self.call(self.agent.delivery())

    def call(self, request: AgentHello | AgentReport) -> None:
        self.calls.append(Call(request, self.clock.now))

    def arrive(self, which: int) -> None:
        if under_way := [call for call in self.calls if call.copies]:
            call = under_way[which % len(under_way)]
            call.copies -= 1
            call.answers.append(self.answer(call.request))

    def answer(self, request: AgentHello | AgentReport) -> Any:
        try:
            if isinstance(request, AgentHello):
                return self.head.attach(request)
            return self.head.exchange(dataclasses.replace(request, hold_secs=0.0))
        except HybridSyncError as error:
            return error

    def repeat(self, which: int) -> None:
        if self.calls:
            self.calls[which % len(self.calls)].copies += 1

    def lose(self, which: int) -> None:
        if under_way := [call for call in self.calls if call.copies]:
            under_way[which % len(under_way)].copies -= 1

    def return_answer(self, which: int) -> None:
        if answered := [call for call in self.calls if call.answers and call.is_open]:
            call = answered[which % len(answered)]
            call.is_open = False
            self.hear(call, call.answers[-1])

    def hear(self, call: Call, answer: Any) -> None:
        request = call.request
        if isinstance(answer, HybridSyncError):
            self.agent.failed(request.session, answer, self.clock.now)
        elif isinstance(answer, AgentWelcome):
            self.agent.attached(request.session, answer, call.sent_at)
        else:
            assert isinstance(request, AgentReport)
            self.agent.answered(request, answer, call.sent_at)

    def time_out(self, which: int) -> None:
        if waiting := [call for call in self.calls if call.is_open]:
            call = waiting[which % len(waiting)]
            call.is_open = False
            self.agent.failed(call.request.session, WaitTimeout("no answer"), self.clock.now)

    def advance(self, which: int) -> None:
        self.clock.advance((*[0.05] * 20, 1.0, LEASE_SECS / 3, LEASE_SECS)[which % 23])

    def expire(self, which: int) -> None:
        self.head.expire()

    def take_at_head(self, which: int) -> None:
        for _, news in self.head.take():
            if isinstance(news, AgentAttached):
                assert not self.known, "a session began before the former one was over"
                self.known = news.hello.session
            elif isinstance(news, AgentEvent):
                self.heard.setdefault(self.known, []).append(news.line)
            else:
                assert self.known, "a session ended that had not begun"
                self.known = ""

    def take_at_agent(self, which: int) -> None:
        self.agent.check_lease(self.clock.now)
        for news in self.agent.take():
            if isinstance(news, HeadOrder):
                self.carried_out.setdefault(self.agent.hello.session, []).append(news.line)
            elif isinstance(news, HeadFenced):
                self.agent.attach_again(self.session())
            else:
                assert isinstance(news, (HeadWelcomed, HeadAway)), news

    # --- what must hold ---

    def check(self) -> None:
        for whole, arrived in ((self.sent, self.heard), (self.ordered, self.carried_out)):
            for session, lines in arrived.items():
                assert lines == whole[session][: len(lines)]
        if self.agent.lease_left(self.clock.now) > 0 and self.agent.stage is Stage.ATTACHED:
            self.head.expire()
            current = self.head._sessions.get(1)
            assert current is not None, "the head's lease has ended, but not the agent's"
            assert current.hello.session == self.agent.hello.session

    def settle(self) -> None:
        """Let everything arrive, in time."""
        for _ in range(50):
            for step in (self.take_at_agent, self.attach, self.deliver_events, self.poll):
                step(0)
                while any(call.copies for call in self.calls):
                    self.arrive(0)
                while any(call.answers and call.is_open for call in self.calls):
                    self.return_answer(0)
                self.take_at_agent(0)
                self.take_at_head(0)
                self.check()
            if self.agent.stage is Stage.ATTACHED and self.agent.is_settled and not self.head._unheard():
                return
        raise AssertionError(f"the agent is {self.agent.stage.name}, and not all lines have arrived")


STEPS: dict[str, Callable[[LossyPair, int], None]] = {
    name: getattr(LossyPair, name)
    for name in (
        *("send", "order", "attach", "poll", "deliver_events", "arrive", "repeat", "lose", "return_answer"),
        *("time_out", "advance", "expire", "take_at_head", "take_at_agent"),
    )
}
OFTEN = (
    "send",
    "order",
    "attach",
    "poll",
    "deliver_events",
    "arrive",
    "return_answer",
    "take_at_agent",
    "take_at_head",
)
"""Steps without which nothing goes on; they are drawn four times as often as the others."""


def run(seed: int) -> None:
    """Take 600 steps that are drawn, then let everything arrive; a failure is found again by its seed."""
    rng, pair = random.Random(seed), LossyPair()
    for step in (pair.attach, pair.arrive, pair.return_answer, pair.take_at_agent, pair.take_at_head):
        step(0)
    names = [*STEPS, *OFTEN, *OFTEN, *OFTEN]
    for _ in range(600):
        STEPS[rng.choice(names)](pair, rng.randrange(1000))
        pair.check()
    pair.settle()
    session = pair.agent.hello.session
    assert pair.heard.get(session, []) == pair.sent.get(session, [])
    assert pair.carried_out.get(session, []) == pair.ordered.get(session, [])


@pytest.mark.parametrize("part", range(4))
def test_lines_arrive_once_and_in_order_within_a_session_whatever_the_network_does(part: int) -> None:
    for seed in range(100 * part, 100 * (part + 1)):
        run(seed)


def test_the_schedules_come_to_all_that_may_happen() -> None:
    pairs: list[LossyPair] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LossyPair, "settle", lambda self: pairs.append(self))
        for seed in range(50):
            with contextlib.suppress(AssertionError):  # what has not arrived yet
                run(seed)
    assert sum(pair.num_sessions > 1 for pair in pairs) > 20
    assert sum(len(pair.heard) > 1 and len(pair.carried_out) > 1 for pair in pairs) > 10


# --- the schedules find what is broken ---


def takes_repeats(patch: pytest.MonkeyPatch) -> None:
    def take(self: ReceivedLines, first: int, lines: tuple[str, ...], most: int = 1000) -> list[str]:
        self.count = max(self.count, first + len(lines))
        return [*lines]

    patch.setattr(ReceivedLines, "take", take)


def forgets_what_was_sent(patch: pytest.MonkeyPatch) -> None:
    def batch(self: SentLines) -> tuple[int, tuple[str, ...]]:
        lines = tuple(self._waiting)
        self.acknowledge(self.count)
        return self.count - len(lines), lines

    patch.setattr(SentLines, "batch", batch)


def counts_the_lease_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    hear = LossyPair.hear

    def late(self: LossyPair, call: Call, answer: Any) -> None:
        call.sent_at = self.clock.now
        hear(self, call, answer)

    patch.setattr(LossyPair, "hear", late)


def renews_no_lease(patch: pytest.MonkeyPatch) -> None:
    exchange = AgentSessions.exchange

    def forgetful(self: AgentSessions, report: AgentReport) -> Any:
        session = self._sessions.get(report.index)
        before = session.heard_at if session else 0.0
        reply = exchange(self, report)
        if session:
            session.heard_at = before
        return reply

    patch.setattr(AgentSessions, "exchange", forgetful)


def tells_of_no_end(patch: pytest.MonkeyPatch) -> None:
    def end(self: AgentSessions, session: Any, reason: str) -> None:
        del self._sessions[session.hello.index]
        self._over.setdefault(session.hello.index, agent_sessions.deque()).append((session.hello.session, reason))

    patch.setattr(AgentSessions, "_end", end)


def lets_a_late_hello_replace(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AgentSessions, "_refuse_ended", lambda self, index, session: None)


def orders_whoever_is_attached(patch: pytest.MonkeyPatch) -> None:
    def order(self: AgentSessions, index: int, line: str) -> bool:
        session = self._sessions.get(index)
        if session is not None:
            session.orders.add(line)
        return session is not None

    patch.setattr(AgentSessions, "order", order)


def keeps_orders_of_a_former_session(patch: pytest.MonkeyPatch) -> None:
    def fence(self: AgentExchange, reason: str) -> None:
        self.stage = Stage.FENCED
        self._news.insert(0, HeadFenced(reason))

    patch.setattr(AgentExchange, "_fence", fence)


@pytest.mark.parametrize(
    "plant",
    [
        takes_repeats,
        forgets_what_was_sent,
        counts_the_lease_from_the_answer,
        renews_no_lease,
        tells_of_no_end,
        lets_a_late_hello_replace,
        orders_whoever_is_attached,
        keeps_orders_of_a_former_session,
    ],
)
def test_the_schedules_find_a_planted_fault(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, HybridSyncError)):
        for seed in range(200):
            run(seed)
