"""The program of a further host: passes orders of the run's supervisor to the host's agent, and events back.

It ends with the run. While the head is away, it kills the roles of this host when its lease is over, and attaches again
when the head is back. A restarted head therefore finds hosts on which no role runs.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from types import FrameType

from hybridsync.core.clock import SYSTEM_CLOCK, Clock
from hybridsync.core.errors import EXIT_COMPLETED, EXIT_FAILED, EXIT_PREEMPTED
from hybridsync.core.work_deadlines import UNWATCHED, Watching
from hybridsync.interfaces.agents import AgentHello
from hybridsync.interfaces.ports import HeadPort
from hybridsync.runtime.agent.agent_connection import AgentConnection
from hybridsync.runtime.agent.agent_exchange import (
    HeadAway,
    HeadFenced,
    HeadGone,
    HeadNews,
    HeadOrder,
    HeadRefused,
    HeadWelcomed,
)
from hybridsync.runtime.agent.host_agent import HostAgent, HostSpec
from hybridsync.runtime.agent.host_messages import (
    AwaitEnd,
    ChiefServes,
    EndRun,
    GiveKeys,
    KillRole,
    Leaving,
    StartRole,
    order_of,
    to_line,
)
from hybridsync.runtime.agent.role_addresses import RoleAddresses
from hybridsync.runtime.cluster_spec import LOOK_SECS
from hybridsync.runtime.end_signals import WARNINGS, WakePipe
from hybridsync.runtime.user_output import say
from hybridsync.transport.link import Link

TICK_SECS = 1.0
STAY_SECS = 2.0
"""How long an agent that a signal asks to leave waits for the head to say that the run is being saved.

A batch system that ends a job asks all of its hosts, at times that differ a little.
"""
LAST_WORDS_SECS = 3.0
TURN_SECS = 60.0
"""Limit of one turn of the main loop: a disk that hangs, a process that cannot be reaped."""


@dataclass(frozen=True)
class AgentSpec:
    """Describes how a further host takes part in a run.

    Attributes:
      roles: describes how roles are started on this host.
      address: address at whose ports the roles serve.
      give_up_secs: seconds that the head may be away.
      stay_secs: seconds that this host stays after a signal, if the head does not have the run saved.
    """

    roles: HostSpec
    address: str
    give_up_secs: float = LOOK_SECS
    stay_secs: float = STAY_SECS


class AgentProgram:
    """Serves as a further host of a run, until the run ends.

    Args:
      spec: describes how this host takes part.
      connect: makes a connection to the head.
      hello_of: returns the agent's first message in a session.
      look: is called every second: this host may have another certificate.
      say: shows a line to the user.
      clock: clock for `stay_secs`.
      watchdog: watchdog of this process. The connection's threads renew the lease whatever the main loop does, so a
        main loop that hangs ends the process, and its roles and its lease with it.
    """

    def __init__(
        self,
        spec: AgentSpec,
        connect: Callable[[], Link[HeadPort]],
        hello_of: Callable[[str], AgentHello],
        look: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = say,
        clock: Clock = SYSTEM_CLOCK,
        watchdog: Watching = UNWATCHED,
    ) -> None:
        self._spec, self._say, self._clock, self._watchdog = spec, say, clock, watchdog
        self._connect, self._hello_of, self._look = connect, hello_of, look
        self._signal = self._num_signals = 0
        self._leave_at = math.inf
        self._is_attached = self._awaits_end = False
        self._agent: HostAgent
        self._head: AgentConnection

    def run(self) -> int:
        """Attach, do as told, and return the run's exit code; 70 where the head is gone, 75 where a signal ends this.

        SIGTERM, SIGINT and warnings (see `end_signals`) take this host out of the run: its roles are killed, and the
        others go on. If the head is having the run saved, this host stays until that is done; a second SIGTERM or
        SIGINT does not wait.

        Raises:
          WorkdirError: the workdir cannot be written.
          HybridSyncError: the head refused this host.
        """
        with WakePipe(self._on_signal) as wake, closing(RoleAddresses(self._spec.address, num_hosts=2)) as addresses:
            self._agent = HostAgent(self._spec.roles, addresses, self._say)
            self._head = AgentConnection(self._connect, self._hello_of, wake.wake, self._spec.give_up_secs)
            self._head.start()
            try:
                return self._follow(wake.fd)
            finally:
                self._agent.close()
                self._head.close()

    def _follow(self, wake_fd: int) -> int:
        while True:
            with self._watchdog.work("a turn of the main loop", TURN_SECS):
                code = self._turn(wake_fd)
            if code is not None:
                return code

    def _turn(self, wake_fd: int) -> int | None:
        """Wait for what happens and heed it; returns the exit code where this program ends."""
        left_secs = self._leave_at - self._clock.monotonic()
        for event in self._agent.wait(max(0.0, min(TICK_SECS, left_secs, self._head.lease_left())), wake_fd):
            self._head.send(to_line(event))
        for news in self._head.take():
            code = self._heed(news)
            if code is not None:
                return code
        if self._signal and self._is_to_leave():
            return self._leave()
        self._look()
        return None

    def _is_to_leave(self) -> bool:
        """Return whether this host, which a signal has asked to leave, does so now."""
        if self._num_signals > 1 or not self._is_attached:
            return True
        now = self._clock.monotonic()
        self._leave_at = math.inf if self._awaits_end else min(self._leave_at, now + self._spec.stay_secs)
        return now >= self._leave_at

    def _heed(self, news: HeadNews) -> int | None:
        """Carry out what the head says; returns the exit code where it says that the run has ended.

        Raises:
          HybridSyncError: the head refused this host.
        """
        match news:
            case HeadWelcomed():
                self._is_attached = True
                self._say("attached to the head")
            case HeadOrder():
                return self._carry_out(news.line)
            case HeadFenced():
                for order in map(order_of, news.untaken):
                    if isinstance(order, EndRun):  # the head knows that it has arrived, and may be gone
                        return self._end(order)
                self._say(f"ending the roles of this host, which attaches again: {news.reason}")
                self._agent.end_roles()
                self._is_attached = self._awaits_end = False
                self._head.attach_again()
            case HeadAway():
                self._say(news.reason)
            case HeadGone():
                self._say(f"error: {news.reason}")
                return EXIT_FAILED
            case HeadRefused():
                raise news.error
        return None

    def _carry_out(self, line: str) -> int | None:
        order = order_of(line)
        match order:
            case StartRole():
                self._agent.start(order)
            case KillRole():
                self._agent.kill(order)
            case GiveKeys():
                self._agent.give_keys(order)
            case ChiefServes():
                self._agent.chief_serves(order)
            case AwaitEnd():
                self._awaits_end = True
            case EndRun():
                return self._end(order)
        return None

    def _end(self, order: EndRun) -> int:
        """End what is left of the run here; returns its exit code."""
        self._agent.end_roles()
        self._head.close(LAST_WORDS_SECS)  # the head waits until every host has heard it
        self._say("the run has completed" if order.exit_code == EXIT_COMPLETED else "the run has ended")
        return order.exit_code

    def _leave(self) -> int:
        """End what runs here, and say so, so that the head does not wait for the lease."""
        self._agent.end_roles()
        self._head.send(to_line(Leaving(f"its agent was ended by {signal.Signals(self._signal).name}")))
        self._head.close(LAST_WORDS_SECS)
        return EXIT_PREEMPTED

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        self._num_signals += number not in WARNINGS
