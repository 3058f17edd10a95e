"""Holds the head's side of the exchange with its agents: which are attached, their events, their orders. No IO.

An attachment is a session. It ends when its lease ends, or when another session takes its host's place. Its roles are
gone then: an agent kills its processes before it attaches again, and they die with it. So the supervisor hears of each
session in this order: attached, events, ended.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hybridsync import __version__
from hybridsync.chief.message_checks import check_version
from hybridsync.core.clock import SYSTEM_CLOCK, Clock, Waits
from hybridsync.core.errors import AgentReplaced, ConfigError, InvalidMessage, StaleAgent, UnknownRole, WaitTimeout
from hybridsync.core.plan import MOST_ENTRIES
from hybridsync.interfaces.agents import MOST_LINES, MOST_POLL_SECS, AgentHello, AgentReply, AgentReport, AgentWelcome
from hybridsync.runtime.agent.agent_exchange import ReceivedLines, SentLines

MOST_UNTAKEN = MOST_LINES
"""Events of a session that wait for the supervisor; the agent keeps more of them until there is room."""
_REMEMBERED = 64
"""Ended sessions of a host that the head remembers: a late copy of their first message replaces no agent."""


@dataclass(frozen=True)
class AgentAttached:
    """An agent has attached; nothing runs under it yet."""

    hello: AgentHello


@dataclass(frozen=True)
class AgentEvent:
    """An agent has told something."""

    line: str


@dataclass(frozen=True)
class AgentEnded:
    """A session is over, and all that ran under it."""

    reason: str


SessionNews = AgentAttached | AgentEvent | AgentEnded


@dataclass(eq=False)
class _Session:
    """One attachment of one host.

    Args:
      hello: first message of the session.
      heard_at: time at which its last message arrived, monotonic seconds.
      untaken: events of the session that wait for the supervisor.
      polls: number of answers that were held so far; the newest poll ends the waits of those before it.
    """

    hello: AgentHello
    heard_at: float
    orders: SentLines = field(default_factory=lambda: SentLines("orders"))
    events: ReceivedLines = field(default_factory=lambda: ReceivedLines("events"))
    untaken: int = 0
    polls: int = 0

    @property
    def who(self) -> str:
        return f"host {self.hello.index} ({self.hello.host})"


class AgentSessions:
    """Takes in the agents of a run's further hosts: `HeadPort` for them, and the supervisor's way to them.

    The condition's lock guards all fields. Only `exchange` and `end` wait, and give the lock up meanwhile.

    Args:
      num_hosts: number of hosts of the run; the head's is host 0, and agents have 1 to `num_hosts - 1`.
      config_digest: digest of the run's configuration.
      lease_secs: seconds that a session lasts without an exchange.
      wake: is called when there is something to take, by any thread and under the lock: it calls nothing of this.
      clock: clock for leases and waits.
      version: version of this package.
    """

    def __init__(
        self,
        num_hosts: int,
        config_digest: str,
        lease_secs: float,
        wake: Callable[[], None],
        clock: Clock = SYSTEM_CLOCK,
        version: str = __version__,
    ) -> None:
        self._num_hosts, self._config_digest, self._version = num_hosts, config_digest, version
        self._lease_secs, self._wake, self._clock = lease_secs, wake, clock
        self._condition = clock.condition()
        self._waits = Waits(clock, self._condition)
        self._sessions: dict[int, _Session] = {}
        self._known: dict[int, _Session] = {}  # to the supervisor, by what it has taken
        self._over: dict[int, deque[tuple[str, str]]] = {}
        self._silent: dict[int, tuple[str, float]] = {}  # hosts that were lost by silence: name, and when
        self._untaken: list[tuple[_Session, SessionNews]] = []
        self._last: str | None = None

    # --- what agents call ---

    def attach(self, hello: AgentHello) -> AgentWelcome:
        """See `HeadPort.attach`."""
        check_hello(hello, self._num_hosts, self._config_digest, self._version)
        with self._condition:
            self.expire()
            current = self._sessions.get(hello.index)
            if current is None or current.hello.session != hello.session:
                self._refuse_ended(hello.index, hello.session)
                self._begin(hello, current)
            elif current.hello != hello:
                raise InvalidMessage(f"{current.who} attaches with two hellos in one session; draw another session")
            else:
                current.heard_at = self._clock.monotonic()
        return AgentWelcome(self._lease_secs)

    def exchange(self, report: AgentReport) -> AgentReply:
        """See `HeadPort.exchange`."""
        check_report(report)
        with self._condition:
            self.expire()
            session = self._session_of(report)
            session.orders.check(report.seen)
            session.events.check(report.first)
            session.heard_at = self._clock.monotonic()
            session.orders.acknowledge(report.seen)
            session.polls += report.hold_secs > 0
            poll = session.polls
            self._condition.notify_all()
            answer = self._waits.poll(lambda: self._answer(session, report, poll), report.hold_secs)
            return answer or AgentReply(session.events.count, *session.orders.batch())

    # --- what the supervisor calls ---

    def take(self) -> list[tuple[int, SessionNews]]:
        """Return what has happened since the last call, in order, each with the index of its host."""
        with self._condition:
            taken, self._untaken = self._untaken, []
            for session, news in taken:
                session.untaken = 0
                if isinstance(news, AgentAttached):
                    self._known[session.hello.index] = session
                elif isinstance(news, AgentEnded):
                    del self._known[session.hello.index]
            self._condition.notify_all()  # there is room for events again
            return [(session.hello.index, news) for session, news in taken]

    def attached(self) -> Mapping[int, AgentHello]:
        """Return who is attached as far as was taken, by the index of the host."""
        with self._condition:
            return {index: session.hello for index, session in sorted(self._known.items())}

    def order(self, index: int, line: str) -> bool:
        """Send a line to the session of a host that was taken as attached.

        Returns:
          whether it is sent; False where that session is over, whether its end has been taken or not. An order never
          reaches a later session of the host, in which other things run.

        Raises:
          InvalidMessage: the line is too long, or not plain ASCII.
        """
        with self._condition:
            session = self._known.get(index)
            if session is None or self._sessions.get(index) is not session:
                return False
            session.orders.add(line)
            self._condition.notify_all()
            return True

    def expire(self) -> None:
        """End the sessions whose leases are over; a message of an agent does the same before it is heard."""
        with self._condition:
            now = self._clock.monotonic()
            for session in [*self._sessions.values()]:
                if now - session.heard_at >= self._lease_secs:
                    self._silent[session.hello.index] = session.who, now
                    self._end(session, f"{session.who} was silent for {self._lease_secs:g} s, the time of its lease")

    def end_session(self, index: int, reason: str) -> None:
        """End the session of a host that leaves, or says what no agent says; its later messages are refused."""
        with self._condition:
            session = self._known.get(index)
            if session is not None and self._sessions.get(index) is session:
                self._end(session, reason)

    def end(self, line: str, secs: float) -> None:
        """Send a last line to each agent, and wait until all have it; an agent that attaches later gets it first.

        A host that was lost by silence less than a lease ago is waited for, too: its agent probably lives, and is about
        to attach again. Without a head it would look for one for minutes, and end as after a fault.

        Args:
          line: text of the last line, as in `order`.
          secs: longest wait in seconds, for all agents together.

        Raises:
          WaitTimeout: an agent has not taken the line in time.
          InvalidMessage: the line is too long, or not plain ASCII.
        """
        with self._condition:
            for session in self._sessions.values():
                session.orders.add(line)
            self._last = line
            self._condition.notify_all()
            if not self._waits.wait_until(lambda: not self._unheard(), secs):
                missing = ", ".join(self._unheard())
                raise WaitTimeout(f"the last order was not taken within {secs:g} s by {missing}; end the agents there")

    # --- under the lock ---

    def _begin(self, hello: AgentHello, former: _Session | None) -> None:
        if former is not None:
            self._end(
                former, f"{former.who} was replaced: an agent on {hello.host} has attached for host {hello.index}"
            )
        self._silent.pop(hello.index, None)
        session = self._sessions[hello.index] = _Session(hello, self._clock.monotonic())
        if self._last is not None:
            session.orders.add(self._last)
        self._tell(session, AgentAttached(hello))

    def _end(self, session: _Session, reason: str) -> None:
        index = session.hello.index
        del self._sessions[index]
        self._over.setdefault(index, deque(maxlen=_REMEMBERED)).append((session.hello.session, reason))
        if self._known.get(index) is session:
            self._tell(session, AgentEnded(reason))
        else:  # the supervisor has never heard of it
            self._untaken = [told for told in self._untaken if told[0] is not session]
        self._condition.notify_all()

    def _tell(self, session: _Session, news: SessionNews) -> None:
        self._untaken.append((session, news))
        self._wake()

    def _session_of(self, report: AgentReport) -> _Session:
        self._refuse_ended(report.index, report.session)
        session = self._sessions.get(report.index)
        if session is None or session.hello.session != report.session:
            raise StaleAgent(
                f"host {report.index} has no session {report.session[:32]!r} here; end what runs under it, and attach "
                "again"
            )
        return session

    def _refuse_ended(self, index: int, session: str) -> None:
        """Refuse a session that is over."""
        for former, reason in self._over.get(index, ()):
            if former == session and (other := self._sessions.get(index)) is not None:
                raise AgentReplaced(
                    f"{reason}; {other.who} has the place now, and this agent ends: does another one have the same "
                    "--index?"
                )
            if former == session:
                raise StaleAgent(f"{reason}; end what runs under it, and attach again")

    def _answer(self, session: _Session, report: AgentReport, poll: int) -> AgentReply | None:
        """Return what there is to say to a report now; None where it may wait."""
        self._session_of(report)  # it may have ended meanwhile
        for line in session.events.take(report.first, report.events, MOST_UNTAKEN - session.untaken):
            session.untaken += 1
            self._tell(session, AgentEvent(line))
        heard, (first, orders) = session.events.count, session.orders.batch()
        if orders or (report.events and heard > report.first) or session.polls != poll:
            return AgentReply(heard, first, orders)
        return None

    def _unheard(self) -> list[str]:
        """Return who has not taken all orders, or was lost too short a time ago to be known as gone."""
        sessions, now = self._sessions.values(), self._clock.monotonic()
        waiting = [session.who for session in sessions if session.orders.count > session.orders.acknowledged]
        return waiting + [who for who, since in self._silent.values() if now - since < self._lease_secs]


_SESSION = re.compile(r"[0-9a-f]{32}")


def check_index(index: int, num_hosts: int) -> None:
    """Refuse an agent that the run has no place for.

    Raises:
      UnknownRole: its number is not one of a further host.
    """
    if not 1 <= index < num_hosts:
        hosts = f"its further hosts are 1 to {num_hosts - 1}" if num_hosts > 1 else "it has one host"
        raise UnknownRole(f"there is no host {index} in this run: {hosts}; start the agent with one of these numbers")


def check_hello(hello: AgentHello, num_hosts: int, config_digest: str, version: str) -> None:
    """Refuse an agent that cannot take part.

    Args:
      hello: the agent's first message.
      num_hosts: number of hosts of the run, the head included.
      config_digest: digest of the run's configuration.
      version: version of the head's package.

    Raises:
      UnknownRole: the run has no such host.
      VersionMismatch: its package is of another minor series.
      ConfigError: the agent has another configuration, or another number of hosts.
      InvalidMessage: a number is out of range, or the session is not a session.
    """
    check_index(hello.index, num_hosts)
    who = f"the agent of host {hello.index} ({hello.host or 'of no name'})"
    check_version(who, hello.version, version, "the head")
    if hello.num_hosts not in (0, num_hosts):
        raise ConfigError(
            f"{who} was told of {hello.num_hosts} hosts, and the head of {num_hosts}; give every host the same --hosts"
        )
    if hello.config_digest != config_digest:
        raise ConfigError(
            f"{who} has the configuration {hello.config_digest or '(none)'}, the head {config_digest}; give every "
            "host the same configuration file and --set"
        )
    if not 1 <= hello.slots <= MOST_ENTRIES:
        raise InvalidMessage(f"{who} says that it has {hello.slots} slots; have 1 to {MOST_ENTRIES}")
    if not hello.host or not hello.address:
        raise InvalidMessage(f"{who} has the address {hello.address!r}; name the host, and where its processes serve")
    if not _SESSION.fullmatch(hello.session):
        raise InvalidMessage(f"{who} names the session {hello.session[:40]!r}; draw 32 hexadecimal digits")


def check_report(report: AgentReport) -> None:
    """Refuse an exchange that would wait for longer than one may.

    Raises:
      InvalidMessage: the exchange would wait for too long, or for less than no time.
    """
    if not 0 <= report.hold_secs <= MOST_POLL_SECS:
        raise InvalidMessage(
            f"the agent of host {report.index} lets the answer wait for {report.hold_secs:g} s, but an answer waits "
            f"for {MOST_POLL_SECS:g} s at most; ask again instead"
        )
