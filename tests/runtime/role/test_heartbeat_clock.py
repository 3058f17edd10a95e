"""A role's heartbeat: what it stamps, and how the chief learns of another host's clock by it."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import cast

from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunState, RunStateSpec
from hybridsync.core.clock import SYSTEM_CLOCK, SystemClock
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.interfaces.reports import Report, ReportReply, Span
from hybridsync.runtime.role.heartbeat import Heartbeat, ReconnectingChiefClient
from tests.chief.chiefs import Chief
from tests.roles import hello

AHEAD = 5000.0
SPANS = 3


@dataclass
class Ahead(SystemClock):
    """The clock of another host."""

    def monotonic(self) -> float:
        return super().monotonic() + AHEAD


def test_a_host_whose_clock_is_ahead_is_known_from_its_second_heartbeat_on() -> None:
    chief = Chief(RunState(Ledger(20), 1, "schema", SYSTEM_CLOCK, RunStateSpec(lease_secs=math.inf)))
    chief.service.register(hello(0))
    clock, enough = Ahead(), threading.Event()
    reports: list[float] = []

    def take_report() -> Report:
        now = clock.monotonic()
        reports.append(now)
        span = Span("compute", "worker", now, 0.0, 0, 1)
        return Report("worker", 0, 1, NO_PHASE, spans=(span,), first_applied=now)

    def heard(phase_id: PhaseId, reply: ReportReply) -> None:
        if len(reports) == SPANS:
            enough.set()

    began = SYSTEM_CLOCK.monotonic()
    way = cast("ReconnectingChiefClient", chief.service)  # what asks for no client is the same
    heartbeat = Heartbeat(
        way, take_report, 0.01, threading.Event(), lambda error: None, hold_secs=0.05, heard=heard, clock=clock
    )
    heartbeat.start()
    assert enough.wait(60), f"{len(reports)} of {SPANS} reports came"
    heartbeat.stop()
    took = SYSTEM_CLOCK.monotonic() - began  # more than any call: it is known no better than half of one
    first, *others = chief.state.take_reports().spans
    assert first[3] == 0.0, "nothing is known before an answer"
    assert len(others) >= SPANS - 1
    for _, _, (span,), offset in others:
        assert abs(offset + AHEAD) <= took / 2
        assert began - took / 2 <= span.start + offset <= began + 1.5 * took
