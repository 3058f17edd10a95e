"""The hosts of a run, seen from its supervisor: this one, the head, and those whose agents attach to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hybridsync.cluster.role_assignment import HEAD
from hybridsync.core.clock import SYSTEM_CLOCK, Clock
from hybridsync.core.errors import InvalidMessage, WaitTimeout
from hybridsync.runtime.agent.host_agent import HostAgent
from hybridsync.runtime.agent.host_messages import (
    AwaitEnd,
    ChiefServes,
    EndRun,
    Event,
    GiveKeys,
    KillRole,
    Leaving,
    Order,
    StartRole,
    event_of,
    to_line,
)
from hybridsync.runtime.supervisor.agent_sessions import AgentAttached, AgentEnded, AgentSessions, SessionNews


@dataclass(frozen=True)
class HostJoined:
    """Tells that a host's agent has attached; nothing runs there yet."""

    name: str
    slots: int


@dataclass(frozen=True)
class HostLost:
    """Tells that a host's agent is gone, and all that ran there with it."""

    reason: str


HostEvent = Event | HostJoined | HostLost


class RunHosts:
    """Passes orders to the hosts, and brings what they tell.

    Args:
      agent: agent of this host.
      slots: maximum number of workers on this host.
      num_hosts: number of hosts of the run.
      sessions: sessions of the other hosts' agents; None if there is no other host.
      clock: clock for how long a host has been away.
    """

    def __init__(
        self,
        agent: HostAgent,
        slots: int,
        num_hosts: int = 1,
        sessions: AgentSessions | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._agent, self._sessions, self._clock = agent, sessions, clock
        self._slots = {HEAD: slots}
        self._away_since = dict.fromkeys(range(1, num_hosts), clock.monotonic())
        self._chief_address = ""
        self._later: list[tuple[int, SessionNews]] = []  # of sessions that follow one whose end was reported last

    def slots(self) -> Mapping[int, int]:
        """Return how many workers each host that is there may have."""
        return self._slots

    def away_secs(self) -> Mapping[int, float]:
        """Return for how long the other hosts have been away."""
        now = self._clock.monotonic()
        return {host: now - since for host, since in self._away_since.items()}

    def start(self, host: int, order: StartRole) -> None:
        """Start a role."""
        if host == HEAD:
            self._agent.start(order)
        else:
            self._send(host, order)

    def kill(self, host: int, order: KillRole) -> None:
        """Kill a process."""
        if host == HEAD:
            self._agent.kill(order)
        else:
            self._send(host, order)

    def give_keys(self, host: int, order: GiveKeys) -> None:
        """Tell a role what it proves itself with from now on."""
        if host == HEAD:
            self._agent.give_keys(order)
        else:
            self._send(host, order)

    def chief_serves(self, address: str) -> None:
        """Tell all roles where the chief serves, on hosts that come later, too."""
        self._chief_address = address
        self._agent.chief_serves(ChiefServes(address))
        for host in self._slots:
            if host != HEAD:
                self._send(host, ChiefServes(address))

    def await_end(self) -> None:
        """Tell the other hosts that the run is being saved: they stay until its end, though a signal asks them too."""
        for host in self._slots:
            if host != HEAD:
                self._send(host, AwaitEnd())

    def wait(self, secs: float, wake_fd: int) -> list[tuple[int, HostEvent]]:
        """Wait until something happens, and return it with its host (see `HostAgent.wait`).

        A host that is lost and comes back at once is reported as lost first, and as back by the next call. Otherwise an
        order that is given while its loss is handled would reach the new session, and be given once more.
        """
        events: list[tuple[int, HostEvent]] = [
            (HEAD, event) for event in self._agent.wait(0.0 if self._later else secs, wake_fd)
        ]
        if self._sessions is None:
            return events
        self._sessions.expire()
        taken, self._later = [*self._later, *self._sessions.take()], []
        lost, silenced = set[int](), set[int]()
        for host, news in taken:
            if host in lost:
                self._later.append((host, news))
            elif isinstance(news, AgentAttached):
                events.append((host, self._attached(host, news)))
            elif isinstance(news, AgentEnded):
                events += self._lost(host, news.reason)
                lost.add(host)
            elif host not in silenced and (event := self._read(host, news.line)) is not None:
                events.append((host, event))
            else:
                silenced.add(host)
        return events

    def _read(self, host: int, line: str) -> Event | None:
        """Return the event of a line; None for the last words of a session, which ends with them."""
        assert self._sessions is not None
        try:
            event = event_of(line)
        except InvalidMessage as error:  # an agent that sends such lines is not a reason to end the run
            self._sessions.end_session(host, str(error))
            return None
        if isinstance(event, Leaving):
            self._sessions.end_session(host, event.reason)
            return None
        return event

    def _attached(self, host: int, news: AgentAttached) -> HostJoined:
        self._slots[host] = news.hello.slots
        del self._away_since[host]
        if self._chief_address:
            self._send(host, ChiefServes(self._chief_address))
        return HostJoined(news.hello.host, news.hello.slots)

    def _lost(self, host: int, reason: str) -> list[tuple[int, HostEvent]]:
        del self._slots[host]
        self._away_since[host] = self._clock.monotonic()
        return [(host, HostLost(reason))]

    def _send(self, host: int, order: Order) -> None:
        """Send an order; where the session is over, that is the next thing to be taken."""
        assert self._sessions is not None
        self._sessions.order(host, to_line(order))

    def refuse(self, host: int, reason: str) -> None:
        """End the session of a host that is no host of the run any more."""
        assert self._sessions is not None, "there is no other host"
        self._sessions.end_session(host, reason)

    def end(self, exit_code: int, secs: float) -> str:
        """Tell the other hosts that the run has ended; returns which have not heard it in time, "" for none."""
        if self._sessions is None:
            return ""
        try:
            self._sessions.end(to_line(EndRun(exit_code)), secs)
        except WaitTimeout as error:
            return str(error)
        return ""
