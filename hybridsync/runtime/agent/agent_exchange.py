"""The agent's side of the exchange with the head, without threads, clock or IO: numbers, lease, what becomes of errors.

An exchange is attaching, then attached. When its lease is over, or the head no longer knows its session, it is fenced:
the agent kills what it has started and attaches again, with a new session in which nothing of the former is left. It
is over when the head refuses the agent, or is away for too long. Results of calls of a former session are passed over.

Orders and events are numbered lines of text, so that each arrives once and in order, whatever is lost, repeated or
overtaken. The sender keeps each line until the receiver has acknowledged it. The receiver takes what continues its
count.

>>> sent, received = SentLines("orders"), ReceivedLines("orders")
>>> sent.add("a"); sent.add("b")
>>> received.take(*sent.batch()), received.take(*sent.batch())  # its answer was lost: the batch is repeated
(['a', 'b'], [])
>>> sent.acknowledge(received.count); sent.batch()
(2, ())
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hybridsync.core.errors import (
    AgentReplaced,
    HandshakeRefused,
    HybridSyncError,
    InvalidMessage,
    RoleLost,
    StaleAgent,
    WaitTimeout,
)
from hybridsync.interfaces.agents import (
    MOST_LINE_CHARS,
    MOST_LINES,
    MOST_POLL_SECS,
    AgentHello,
    AgentReply,
    AgentReport,
    AgentWelcome,
)

MOST_BATCH_CHARS = 1 << 20
"""Characters of the lines of one message: a quarter of what gRPC lets through."""


class SentLines:
    """Keeps lines until the other end has them.

    Args:
      what: the lines are, for errors: "orders".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._waiting: deque[str] = deque()
        self.acknowledged = 0

    @property
    def count(self) -> int:
        """Return the number of lines added so far."""
        return self.acknowledged + len(self._waiting)

    def add(self, line: str) -> None:
        """Send a line after all others.

        Raises:
          InvalidMessage: it is too long, or not plain ASCII; JSON as `json.dumps` writes it is.
        """
        if len(line) > MOST_LINE_CHARS:
            raise InvalidMessage(
                f"a line of the {self._what} has {len(line)} characters, above the {MOST_LINE_CHARS} of a line; "
                "shorten it"
            )
        if not (line.isascii() and line.isprintable()):
            raise InvalidMessage(f"a line of the {self._what} is {line[:80]!r}...; write it as JSON of ASCII alone")
        self._waiting.append(line)

    def check(self, count: int) -> None:
        """Refuse an acknowledgement of lines that were never sent.

        Raises:
          InvalidMessage: `count` is negative, or above the number of lines.
        """
        if not 0 <= count <= self.count:
            raise InvalidMessage(
                f"{count} {self._what} are said to have arrived, but {self.count} were sent; count those of this "
                "session"
            )

    def acknowledge(self, count: int) -> None:
        """Forget the first `count` lines of all. An older acknowledgement, which was overtaken, changes nothing."""
        while self.acknowledged < count:
            self._waiting.popleft()
            self.acknowledged += 1

    def batch(self) -> tuple[int, tuple[str, ...]]:
        """Return the number of the first line that was not acknowledged, and the lines from there on that fit."""
        lines, chars = [], 0
        for line in self._waiting:
            chars += len(line)
            if lines and (chars > MOST_BATCH_CHARS or len(lines) == MOST_LINES):
                break
            lines.append(line)
        return self.acknowledged, tuple(lines)


class ReceivedLines:
    """Counts the lines that have arrived.

    Args:
      what: the lines are, for errors: "events".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.count = 0

    def check(self, first: int) -> None:
        """Refuse a batch that begins behind what has not arrived yet.

        Raises:
          InvalidMessage: the batch begins after such a gap, or its number is negative.
        """
        if not 0 <= first <= self.count:
            raise InvalidMessage(
                f"{self._what} from number {first} on have arrived, but number {self.count} is the next one; send "
                "those that were not acknowledged"
            )

    def take(self, first: int, lines: tuple[str, ...], most: int = MOST_LINES) -> list[str]:
        """Return those lines that are new, up to `most` of them, and count them; the batch passed `check`."""
        new = [*lines[self.count - first :][:most]]
        self.count += len(new)
        return new


_POLLS_PER_LEASE = 3.0
"""A poll is at most this part of a lease, so that the loss of one answer does not end it."""


@dataclass(frozen=True)
class HeadWelcomed:
    """The head has taken the agent in."""

    welcome: AgentWelcome


@dataclass(frozen=True)
class HeadOrder:
    """The head has sent an order."""

    line: str


@dataclass(frozen=True)
class HeadFenced:
    """The session is over: kill all that runs, then attach again.

    Attributes:
      reason: reason for the end of the session.
      untaken: orders that arrived, and come too late to be carried out.
    """

    reason: str
    untaken: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeadAway:
    """The head has not been reached for a while, and is tried further: tell the user why."""

    reason: str


@dataclass(frozen=True)
class HeadGone:
    """The head was not reached for too long: kill all that runs, and end."""

    reason: str


@dataclass(frozen=True)
class HeadRefused:
    """The head refuses this agent for good: kill all that runs, and end with the error."""

    error: HybridSyncError


HeadNews = HeadWelcomed | HeadOrder | HeadFenced | HeadAway | HeadGone | HeadRefused


MOST_REFUSED = 5
"""Refused handshakes since it was last attached, by which an agent that is not attached knows that it never will be."""


TELL_SECS = 10.0
"""How long the head may be away before the user is told of it: at a start, the head often comes a moment later."""


class Stage(enum.Enum):
    """Names where an exchange stands."""

    ATTACHING = enum.auto()
    ATTACHED = enum.auto()
    FENCED = enum.auto()
    OVER = enum.auto()


class AgentExchange:
    """Keeps one agent's account of what it sent and received.

    Args:
      hello_of: the first words of the agent in a session.
      session: id of the first session.
      now: monotonic seconds.
      give_up_secs: seconds that the head may be away before the agent ends.
    """

    def __init__(self, hello_of: Callable[[str], AgentHello], session: str, now: float, give_up_secs: float) -> None:
        self._hello_of, self._give_up_secs = hello_of, give_up_secs
        self._reached_at = now
        self._num_refused, self._was_attached = 0, False
        self._is_told = False  # of the head's absence
        self._has_failed = False  # the last call
        self._news: list[HeadNews] = []
        self.stage = Stage.OVER
        self._begin(session)

    def _begin(self, session: str) -> None:
        self.hello = self._hello_of(session)
        self.stage = Stage.ATTACHING
        self._events, self._orders = SentLines("events"), ReceivedLines("orders")
        self._told = 0  # orders that the head knows to have arrived
        self._sent_at = self._lease_secs = math.inf

    # --- the main loop ---

    def take(self) -> list[HeadNews]:
        """Return what has happened since the last call, in order; nothing stands before the end of a session."""
        taken, self._news = self._news, []
        return taken

    def send(self, line: str) -> None:
        """Tell the head of something; it is dropped if there is no session.

        Raises:
          InvalidMessage: the line is too long, or not plain ASCII.
        """
        if self.is_under_way:
            self._events.add(line)

    def attach_again(self, session: str) -> None:
        """Begin a new session, after a fence; nothing of the former one runs any more."""
        assert self.stage is Stage.FENCED, f"a session began while the former one was {self.stage.name}"
        self._begin(session)

    def lease_left(self, now: float) -> float:
        """Return how many seconds the lease lasts; without end where there is none."""
        return self._sent_at + self._lease_secs - now if self.stage is Stage.ATTACHED else math.inf

    def check_lease(self, now: float) -> bool:
        """Fence the session if its lease is over; returns whether it was."""
        if self.lease_left(now) > 0:
            return False
        secs = f"{self._lease_secs:g} s, the time of the lease"
        self._fence(f"the head has answered nothing that was sent in the last {secs}")
        return True

    # --- what is sent ---

    @property
    def is_under_way(self) -> bool:
        """Whether a session is attached, or about to be."""
        return self.stage in (Stage.ATTACHING, Stage.ATTACHED)

    @property
    def has_events(self) -> bool:
        """Whether the head has not yet acknowledged all events."""
        return self._events.count > self._events.acknowledged

    @property
    def is_settled(self) -> bool:
        """Whether either end knows that the other has all lines."""
        return not self.has_events and self._told == self._orders.count

    def poll(self) -> AgentReport:
        """Return the report that waits for orders."""
        # An answer renews the lease. Where calls fail, the next moment in which one arrives may be over before a held
        # answer comes.
        hold_secs = 0.0 if self._has_failed else min(MOST_POLL_SECS, self._lease_secs / _POLLS_PER_LEASE)
        return self._report(self._events.acknowledged, (), hold_secs)

    def delivery(self) -> AgentReport:
        """Return the report that brings events, as many as fit."""
        return self._report(*self._events.batch(), 0.0)

    def _report(self, first: int, events: tuple[str, ...], hold_secs: float) -> AgentReport:
        return AgentReport(
            self.hello.index, self.hello.session, first, events=events, seen=self._orders.count, hold_secs=hold_secs
        )

    # --- its results ---

    def attached(self, session: str, welcome: AgentWelcome, sent_at: float) -> None:
        """Hear that the head has taken the agent in.

        Args:
          session: session that attached.
          welcome: the head's answer.
          sent_at: monotonic seconds before the call, which the lease is counted from.
        """
        if (session, self.stage) == (self.hello.session, Stage.ATTACHING):
            self.stage, self._lease_secs, self._was_attached = Stage.ATTACHED, welcome.lease_secs, True
            self._sent_at = self._reached_at = sent_at
            self._is_told = self._has_failed = False
            self._news.append(HeadWelcomed(welcome))

    def answered(self, report: AgentReport, reply: AgentReply, sent_at: float) -> bool:
        """Take in an answer; calls may overtake each other.

        Args:
          report: report that was answered.
          reply: the head's answer.
          sent_at: monotonic seconds before the call.

        Returns:
          whether there is something to take.

        Raises:
          InvalidMessage: the head acknowledges what was not sent, or leaves orders out.
        """
        if (report.session, self.stage) != (self.hello.session, Stage.ATTACHED):
            return False
        self._has_failed = False
        self._events.check(reply.heard)
        self._orders.check(reply.first)
        self._events.acknowledge(reply.heard)
        self._told = max(self._told, report.seen)
        self._sent_at, self._reached_at = max(self._sent_at, sent_at), max(self._reached_at, sent_at)
        orders = self._orders.take(reply.first, reply.orders)
        self._news += map(HeadOrder, orders)
        return bool(orders)

    def failed(self, session: str, error: HybridSyncError, now: float) -> bool:
        """Take in that a call has failed.

        Args:
          session: session that called.
          error: error of the call.
          now: monotonic seconds.

        Returns:
          whether there is something to take; False where the call is to be tried again.
        """
        if session != self.hello.session or not self.is_under_way:
            return False
        self._has_failed = True
        if isinstance(error, StaleAgent) and not isinstance(error, AgentReplaced):
            self._reached_at = now
            self._fence(str(error))
        elif not isinstance(error, (RoleLost, WaitTimeout)) or self._is_no_host_of_it(error):
            self._end(HeadRefused(error))
        elif self.check_lease(now):
            pass
        elif now - self._reached_at >= self._give_up_secs:
            self._end(HeadGone(f"the head was not reached for {self._give_up_secs:g} s: {error}"))
        elif now - self._reached_at >= TELL_SECS and self.stage is Stage.ATTACHING and not self._is_told:
            self._is_told = True
            secs = f"{now - self._reached_at:.0f} s, and is tried for {self._give_up_secs:g} s"
            self._news.append(HeadAway(f"the head was not reached for {secs}: {error}"))
        else:
            return False
        return True

    def _is_no_host_of_it(self, error: HybridSyncError) -> bool:
        """Return whether the head and this host will not agree on TLS: a head that starts or ends refuses few."""
        # A busy machine lets some attempts run out of time between them: these prove nothing.
        self._num_refused += isinstance(error, HandshakeRefused) and not self._was_attached
        return self._num_refused >= MOST_REFUSED

    def _fence(self, reason: str) -> None:
        self.stage = Stage.FENCED
        untaken = tuple(news.line for news in self._news if isinstance(news, HeadOrder))
        self._news = [HeadFenced(reason, untaken)]  # an order of a session that is over is not carried out

    def _end(self, news: HeadGone | HeadRefused) -> None:
        self.stage = Stage.OVER
        self._news = [news]
