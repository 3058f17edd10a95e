"""A chief with all its roles registered, and what they say to it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunControl, RunState, RunStateSpec
from hybridsync.chief.service import ChiefService
from hybridsync.core.clock import SYSTEM_CLOCK, Clock
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.interfaces.messages import (
    LeaseReply,
    LeaseRequest,
    PhaseReply,
    PhaseRequest,
    RoleEvent,
    Snapshot,
    StateVersion,
)
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Report, ReportReply
from tests.roles import hello, phase_of

WORKLOAD = 20
LONG_SECS = 30.0
"""Far longer than any answer of these tests may take."""
SERVER = "server:0"
"""Where `hello(0, role="server")` says that it serves."""


class Chief:
    """The state of a run, the service for its roles, and its controller's turns."""

    def __init__(self, state: RunState) -> None:
        self.state, self.service, self.control = state, ChiefService(state), RunControl(state)


class WatchedChief(Chief):
    """A chief whose evictions are written down."""

    def __init__(self, ledger: Ledger, num_workers: int, clock: Clock = SYSTEM_CLOCK, **spec: Any) -> None:
        self.evicted: list[RoleEvent] = []
        super().__init__(
            RunState(ledger, num_workers, "schema", clock, RunStateSpec(evict=self.evicted.append, **spec))
        )


def make_chief(
    num_workers: int = 4, workload: int = WORKLOAD, clock: Clock = SYSTEM_CLOCK, lease_secs: float = math.inf
) -> WatchedChief:
    chief = WatchedChief(Ledger(workload), num_workers, clock=clock, lease_secs=lease_secs)
    for worker in range(num_workers):
        chief.service.register(hello(worker, pid=100 + worker))
    chief.service.register(hello(0, role="server", pid=99))
    return chief


def begin(chief: Chief, spec: str = "asp", end: int = WORKLOAD, number: int = 1, **fields: Any) -> Phase:
    fields = {"members": tuple(range(chief.state.members.num_workers)), **fields}
    phase = phase_of(number, spec, end=end, **fields)
    with chief.control.turn() as state:
        state.begin(phase)
        state.open_leases()
    return phase


def lease(
    chief: Chief, phase: Phase, worker: int = 0, known: int = 0, completed: int = 0, incarnation: int = 1
) -> LeaseReply:
    return chief.service.lease(LeaseRequest(worker, incarnation, phase.id, known, completed))


def enter(
    chief: Chief,
    worker: int,
    after: PhaseId = NO_PHASE,
    held: StateVersion | None = None,
    incarnation: int = 1,
    failure: str = "",
) -> PhaseReply:
    return chief.service.next_phase(PhaseRequest(worker, incarnation, after, held, failure))


def enter_all(chief: Chief, phase: Phase, workers: Iterable[int] = range(4)) -> None:
    for worker in workers:
        assert enter(chief, worker).phase == phase


def served(chief: Chief, phase: Phase, *applied: tuple[int, int], **fields: Any) -> ReportReply:
    return chief.service.report(Report("server", 0, 1, phase.id, applied=applied, **fields))


def units_of(reply: LeaseReply) -> list[int]:
    return [unit for start, stop in reply.ranges for unit in range(start, stop)]


def collect(chief: Chief, phase: Phase, worker: int, incarnation: int = 1) -> list[int]:
    """Lease as one worker until there is nothing more to get for now."""
    units: list[int] = []
    while new := units_of(lease(chief, phase, worker, len(units), len(units), incarnation)):
        units += new
    return units


def worker_died(chief: Chief, worker: int) -> None:
    chief.service.role_lost(RoleEvent("worker", worker, 100 + worker, "exit code -9", 0.0))


def snapshot_of(phase: Phase, *applied: tuple[int, int], dropped: tuple[tuple[int, int], ...] = ()) -> Snapshot:
    units = sum(stop - start for start, stop in applied)
    return Snapshot(1, StateVersion(phase.id, units, units, "f00d"), applied, dropped, 0, 0.0, 0.0)
