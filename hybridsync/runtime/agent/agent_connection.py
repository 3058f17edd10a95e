"""An agent's connection to the head: one thread attaches and waits for orders, another one delivers events.

Two calls may be in progress at a time, so that no event waits for the answer that the head holds.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable

from hybridsync.core.clock import SYSTEM_CLOCK, Clock
from hybridsync.core.errors import HybridSyncError, RoleLost, described
from hybridsync.interfaces.agents import AgentHello, AgentReport
from hybridsync.interfaces.ports import HeadPort
from hybridsync.runtime.agent.agent_exchange import AgentExchange, HeadNews, Stage
from hybridsync.transport.link import Link

FIRST_PAUSE_SECS, LAST_PAUSE_SECS = 0.05, 1.0
"""The pause between two tries at a head doubles from the first to the last."""
STOP_SECS = 5.0


class AgentConnection:
    """Exchanges events for orders with the head, across lost messages and a head that is away for a while.

    The main loop calls `take` when it was woken, and when `lease_left` is over. It kills all that it has started on
    `HeadFenced`, and calls `attach_again` then; on `HeadGone` and `HeadRefused` it kills it and ends. The condition's
    lock guards all fields; no call to the head is made under it.

    Args:
      connect: makes a connection to the head, one for each session; every call on it has a deadline.
      hello_of: returns the agent's first message in a session.
      wake: is called when there is something to take, by another thread.
      give_up_secs: seconds that the head may be away before the agent ends.
      clock: clock for the lease.
    """

    def __init__(
        self,
        connect: Callable[[], Link[HeadPort]],
        hello_of: Callable[[str], AgentHello],
        wake: Callable[[], None],
        give_up_secs: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._connect, self._wake, self._clock = connect, wake, clock
        self._exchange = AgentExchange(hello_of, secrets.token_hex(16), clock.monotonic(), give_up_secs)
        self._condition = threading.Condition()
        self._link: Link[HeadPort] | None = None  # of the session
        self._closing = self._closed = False
        self._threads = [
            threading.Thread(target=self._run, args=(body,), name=name, daemon=True)
            for name, body in (("head-orders", self._wait_for_orders), ("head-events", self._deliver_events))
        ]

    def start(self) -> None:
        """Begin to attach."""
        for thread in self._threads:
            thread.start()

    def send(self, line: str) -> None:
        """Tell the head of something; it is dropped if there is no session.

        Raises:
          InvalidMessage: the line is too long, or not plain ASCII.
        """
        with self._condition:
            self._exchange.send(line)
            self._condition.notify_all()

    def take(self) -> list[HeadNews]:
        """Return what has happened since the last call, in order; a lease that is over fences now."""
        with self._condition:
            self._exchange.check_lease(self._clock.monotonic())
            return self._exchange.take()

    def lease_left(self) -> float:
        """Return in how many seconds to call `take` at the latest; without end where there is no lease."""
        with self._condition:
            return self._exchange.lease_left(self._clock.monotonic())

    def attach_again(self) -> None:
        """Begin a new session, after `HeadFenced`; nothing that was started before runs any more."""
        with self._condition:
            former, self._link = self._link, None
            self._exchange.attach_again(secrets.token_hex(16))
            self._condition.notify_all()
        if former is not None:
            former.close()  # a call that hangs there would keep the new session waiting

    def close(self, secs: float = 0.0) -> bool:
        """End the exchange; returns whether each end knows that the other has all lines.

        Args:
          secs: longest wait, in seconds.
        """
        with self._condition:
            self._closing = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._is_settled or self._exchange.stage is not Stage.ATTACHED, secs)
            settled, link = self._is_settled, self._link
            self._closed, self._link = True, None
            self._condition.notify_all()
        if link is not None:
            link.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(STOP_SECS)
        return settled

    @property
    def _is_settled(self) -> bool:
        return self._exchange.stage is Stage.ATTACHED and self._exchange.is_settled

    # --- the threads ---

    def _run(self, body: Callable[[], None]) -> None:
        try:
            body()
        except Exception as error:  # noqa: BLE001 the agent ends by it: the head hears no more of it
            failure = HybridSyncError(f"the exchange with the head failed: {described(error)}")
            failure.__cause__ = error
            self._fail(self._exchange.hello.session, failure)

    def _wait_for_orders(self) -> None:
        pause_secs = FIRST_PAUSE_SECS
        while True:
            with self._condition:
                self._condition.wait_for(
                    lambda: self._closed or self._exchange.stage in (Stage.ATTACHING, Stage.ATTACHED)
                )
                if self._closed:
                    return
                hello, stage, poll = self._exchange.hello, self._exchange.stage, self._exchange.poll()
            done = self._attach(hello) if stage is Stage.ATTACHING else self._make(poll)
            pause_secs = FIRST_PAUSE_SECS if done else self._pause(hello.session, pause_secs)

    def _deliver_events(self) -> None:
        pause_secs = FIRST_PAUSE_SECS
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closed or self._has_delivery)
                if self._closed:
                    return
                delivery = self._exchange.delivery()
            pause_secs = FIRST_PAUSE_SECS if self._make(delivery) else self._pause(delivery.session, pause_secs)

    @property
    def _has_delivery(self) -> bool:
        exchange = self._exchange
        return exchange.stage is Stage.ATTACHED and (exchange.has_events or (self._closing and not exchange.is_settled))

    def _pause(self, session: str, secs: float) -> float:
        """Wait before the next try, unless there is another session to try; returns the next pause."""
        with self._condition:
            self._condition.wait_for(lambda: self._closed or self._exchange.hello.session != session, secs)
        return min(2 * secs, LAST_PAUSE_SECS)

    def _attach(self, hello: AgentHello) -> bool:
        sent_at = self._clock.monotonic()
        try:
            welcome = self._head_of(hello.session).attach(hello)
        except HybridSyncError as error:
            return self._fail(hello.session, error)
        with self._condition:
            self._exchange.attached(hello.session, welcome, sent_at)
            self._condition.notify_all()
        self._wake()
        return True

    def _make(self, report: AgentReport) -> bool:
        sent_at = self._clock.monotonic()
        try:
            reply = self._head_of(report.session).exchange(report)
            with self._condition:
                has_news = self._exchange.answered(report, reply, sent_at)
                self._condition.notify_all()
        except HybridSyncError as error:
            return self._fail(report.session, error)
        if has_news:
            self._wake()
        return report.hold_secs > 0 or reply.heard > report.first or not report.events

    def _head_of(self, session: str) -> HeadPort:
        """Return the head, by the link that this session has.

        Raises:
          RoleLost: the session is over, or the connection closed.
        """
        with self._condition:
            self._check(session)
            if self._link is not None:
                return self._link.port
        link = self._connect()  # by the thread that attaches; the other one calls only then
        with self._condition:
            try:
                self._check(session)
            except RoleLost:
                link.close()
                raise
            self._link = link
            return link.port

    def _check(self, session: str) -> None:
        if self._closed or session != self._exchange.hello.session:
            raise RoleLost("the head was not called: the session is over")

    def _fail(self, session: str, error: HybridSyncError) -> bool:
        with self._condition:
            has_news = self._exchange.failed(session, error, self._clock.monotonic())
            self._condition.notify_all()
        if has_news:
            self._wake()
        return has_news
