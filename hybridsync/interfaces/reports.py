"""Heartbeats of roles and the chief's answers to them: plain values, as in `messages.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from hybridsync.core.plan import MOST_ENTRIES, PhaseId
from hybridsync.core.units import Range

READING, COMPILING, COMPUTING, WAITING = "read", "compile", "compute", "average"
"""Values of `doing` of a worker: it reads the data of a unit, compiles a program, computes a unit, or waits for others
(in a step, at a group round, with a held push, for units, for a phase). `READING` is the name of a span as well."""
ENTERING = "enter"
"""Value of `doing` of a server that fetches the state of the next phase."""

SEND = "send"
"""The span of a worker's own part in a collective or an average, before anybody waits for anybody."""

BESIDE = "transfer"
"""Begins the category of the spans of what goes on beside a worker's training: tracks of their own, and no time of the
worker."""


@dataclass(frozen=True)
class Span:
    """One stretch of a role's time for the timeline: monotonic start and length in seconds."""

    name: str
    category: str
    start: float
    secs: float
    phase: int
    units: int


@dataclass(frozen=True)
class Exchange:
    """A role's heartbeat and the chief's answer, stamped by both monotonic clocks in seconds.

    Args:
      sent: time by the role's clock.
      received: time by the chief's clock.
      replied: time by the chief's clock.
      returned: time by the role's clock.
    """

    sent: float
    received: float
    replied: float
    returned: float

    @property
    def round_trip(self) -> float:
        """Seconds on the way, there and back, without what the chief took."""
        return (self.returned - self.sent) - (self.replied - self.received)

    @property
    def offset(self) -> float:
        """Seconds to add to the role's clock to have the chief's; wrong by half the round trip at most."""
        return ((self.received - self.sent) + (self.replied - self.returned)) / 2


@dataclass(frozen=True)
class Report:
    """A role's heartbeat, with what it did since the last one.

    Args:
      phase_id: phase the role is in (`NO_PHASE` between phases).
      completed: units of the role's stream that are done (workers), else 0.
      sequence: updates applied (servers), else 0.
      applied: units applied since the last report (servers, and a mesh's first member); repeating some is harmless.
      dropped: (unit, reason) finally dropped since the last report (likewise).
      staleness: staleness of each update since the last report (servers).
      num_losses, loss_sum: number of unit losses, and their sum.
      compute_secs, wait_secs, compile_secs: time of local computation, of waiting for others or for a transfer, and of
        compiling in that interval.
      read_secs: time in that interval in which the training thread read the data of its units, or waited for what is
        read ahead; no part of `compute_secs`.
      spans: measured spans for the timeline.
      doing: activity of a worker's training thread (`READING`, `COMPILING`, `COMPUTING`, `WAITING`) or of a server
        (`ENTERING`); "" for any other.
      hold_secs: seconds that the chief may keep its answer back while it has no news: a long poll.
      exchange: stamps of the last heartbeat that was answered, by which the chief knows this host's clock.
      unit_secs: seconds that each unit since the last report took the worker itself, reading its data included, without
        waiting for others; () if no detector judges the worker by them.
      doing_secs: seconds for which the training thread has been at what it is `doing`, by the worker's own clock. Time
        before the worker's process last stood still (SIGSTOP, no processor) does not count.
      sent_bytes, received_bytes: bytes of gradients and states in that interval, as they travel (workers).
      peak_secs: seconds that the interval's units would have taken at the peak of the worker's devices; 0 for unknown.
      usual_secs: seconds that the worker's recent units took it to compute, in this phase; 0 before the first one
        ended.
    """

    role: str
    id: int
    incarnation: int
    phase_id: PhaseId
    completed: int = 0
    sequence: int = 0
    applied: tuple[Range, ...] = ()
    dropped: tuple[tuple[int, str], ...] = ()
    staleness: tuple[int, ...] = ()
    num_losses: int = 0
    loss_sum: float = 0.0
    compute_secs: float = 0.0
    wait_secs: float = 0.0
    compile_secs: float = 0.0
    first_applied: float = 0.0
    last_applied: float = 0.0
    spans: tuple[Span, ...] = ()
    doing: str = ""
    hold_secs: float = 0.0
    exchange: Exchange | None = None
    unit_secs: tuple[float, ...] = ()
    doing_secs: float = 0.0
    usual_secs: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    peak_secs: float = 0.0
    read_secs: float = 0.0

    def pieces(self, most: int = MOST_ENTRIES) -> Iterator[Report]:
        """Yield the report as several with at most `most` entries in each list; after an outage it may be long.

        The sums go with the first piece, and only the last one waits for news.

        >>> report = Report("worker", 0, 1, PhaseId(1, 7), staleness=(1, 2, 3), loss_sum=0.5)
        >>> [(piece.staleness, piece.loss_sum) for piece in report.pieces(most=2)]
        [((1, 2), 0.5), ((3,), 0.0)]
        """
        lists = {each.name: getattr(self, each.name) for each in fields(self) if each.default == ()}
        piece, starts = self, range(0, max(1, *map(len, lists.values())), most)
        for start in starts:
            cut = {name: entries[start : start + most] for name, entries in lists.items()}
            yield replace(piece, **cut, hold_secs=self.hold_secs if start == starts[-1] else 0.0)
            piece = replace(piece, num_losses=0, loss_sum=0.0, compute_secs=0.0, wait_secs=0.0, compile_secs=0.0)
            piece = replace(piece, sent_bytes=0, received_bytes=0, peak_secs=0.0, read_secs=0.0)


@dataclass(frozen=True)
class ReportReply:
    """The active phase; whether the role is to leave the phase that it reported from; `done` when the run is over.

    Args:
      received: time at which the chief had the report, monotonic seconds of its clock.
      replied: time at which it answered, which may be later than it could have.
    """

    phase_id: PhaseId
    revoked: bool
    done: bool = False
    received: float = 0.0
    replied: float = 0.0
