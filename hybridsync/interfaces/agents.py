"""Messages between the head of a run and the agents of its further hosts: plain values, as in `messages.py`.

The head's supervisor decides what runs where. The agent of a host starts, watches and kills its processes by these
orders. Orders go to the agent and events to the head as numbered lines of text, each exactly once and in order. Only
the two ends interpret the lines.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_LINES = 1000
"""Lines that one message has at most."""
MOST_LINE_CHARS = 64 << 10
"""Characters that one line has at most; all are ASCII, so they are its bytes, too."""
MOST_POLL_SECS = 5.0
"""How long a head may hold an answer: each occupies a thread of it."""


@dataclass(frozen=True)
class AgentHello:
    """The first words of a host's agent to the head.

    Args:
      host: name of the host, for logs.
      index: index of the host; the head's own is 0, and others count from 1.
      address: address at which the host's processes serve.
      slots: maximum number of workers on the host.
      version: version of the package.
      config_digest: digest of the run's configuration, as this host has it.
      session: 32 hexadecimal digits, drawn for each attachment.
      num_hosts: number of hosts of the run, as this host was told; 0 where it does not say.
    """

    host: str
    index: int
    address: str
    slots: int
    version: str
    config_digest: str
    session: str
    num_hosts: int = 0


@dataclass(frozen=True)
class AgentWelcome:
    """The head's answer to an agent that it takes in.

    Args:
      lease_secs: seconds that the attachment lasts without an exchange. The agent counts from when it sent its last
        answered message, the head from when it received it: so the agent's count ends first.
    """

    lease_secs: float


@dataclass(frozen=True)
class AgentReport:
    """An agent's side of one exchange.

    Args:
      index: index of the host.
      session: session of the attachment.
      first: number of the first of `events`; they count from 0 in each session.
      events: lines for the head.
      seen: number of the session's orders that have arrived so far.
      hold_secs: seconds that the head may hold its answer while it has no orders; 0 to `MOST_POLL_SECS`.
    """

    index: int
    session: str
    first: int
    events: tuple[str, ...]
    seen: int
    hold_secs: float


@dataclass(frozen=True)
class AgentReply:
    """The head's side of one exchange.

    Args:
      heard: number of the session's events that have arrived so far.
      first: number of the first of `orders`; they count from 0 in each session.
      orders: lines for the agent that it has not reported as seen.
    """

    heard: int
    first: int
    orders: tuple[str, ...]
