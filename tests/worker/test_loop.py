"""The worker loop: one phase after the other, each to its end or to its revocation, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from hybridsync.core.errors import PhaseRevoked, RoleLost, StaleIncarnation, StalePhase, WaitTimeout
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.interfaces.messages import LeaseReply, LeaseRequest, PhaseReply, PhaseRequest, RoleState, StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.protocols.modes import LOCKSTEP, SERVER
from hybridsync.worker import loop as worker_module
from hybridsync.worker.loop import WorkerLoop
from hybridsync.worker.stats import WorkerRecorder
from tests.roles import phase_of
from tests.telemetry.clocks import ManualClock

FIRST, SECOND = phase_of(1, "bsp"), phase_of(2, "asp")
HELD = StateVersion(FIRST.id, 8, 2, "f00d")


@dataclass(frozen=True)
class Leases:
    """The units that a worker was given in a phase."""

    phase_id: PhaseId
    ranges: tuple[tuple[int, int], ...] = ((4, 8),)


@dataclass
class Engine:
    """Does in each phase what a test says."""

    act: Callable[[Phase], None] = lambda phase: None
    ran: list[Phase] = field(default_factory=list)
    revoked: list[str] = field(default_factory=list)
    stream: Any = None

    def run(self, phase: Phase) -> None:
        self.ran.append(phase)
        self.act(phase)

    def revoke(self, phase_id: PhaseId, reason: str) -> None:
        self.revoked.append(reason)


class Chief:
    """Announces phases from a list, then says that the run is over."""

    def __init__(self, *phases: Phase | None) -> None:
        self.phases = list(phases)
        self.requests: list[PhaseRequest] = []

    def next_phase(self, request: PhaseRequest) -> PhaseReply:
        self.requests.append(request)
        if not self.phases:
            return PhaseReply(None, done=True)
        return PhaseReply(self.phases.pop(0))

    def lease(self, request: LeaseRequest) -> LeaseReply:
        return LeaseReply(((4, 8),), final=False)


class Replica:
    """What the worker holds between two phases."""

    state: StateVersion | None = None

    def held(self) -> StateVersion | None:
        return self.state


class Measuring:
    """Takes a second for each unit, and rests three."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.rests_until = clock, 0.0
        self.measured: list[tuple[int, float]] = []

    @property
    def rest_secs(self) -> float:
        return max(0.0, self.rests_until - self.clock.monotonic())

    def begin(self) -> None:
        self.rests_until = 0.0

    def measure(self, unit: int) -> None:
        self.measured.append((unit, self.clock.monotonic()))
        self.clock.advance(1.0)
        self.rests_until = self.clock.monotonic() + 3.0


class Worker:
    def __init__(self, *phases: Phase | None) -> None:
        self.chief, self.clock, self.replica = Chief(*phases), ManualClock(), Replica()
        self.sync, self.server = Engine(), Engine()
        self.recorder = WorkerRecorder(2, self.clock, keep_spans=False)
        self.recorder.incarnation = 5
        replica: Any = self.replica
        runners: dict[Any, Any] = {LOCKSTEP: self.sync, SERVER: self.server}
        self.measuring = Measuring(self.clock)
        measuring: Any = self.measuring
        chief: Any = self.chief
        self.loop = WorkerLoop(2, chief, runners, replica, self.recorder, self.clock, measuring)


def raising(error: Exception) -> Callable[[Phase], None]:
    def act(phase: Phase) -> None:
        raise error

    return act


def test_each_phase_is_run_by_the_engine_of_its_path_until_the_run_is_over():
    worker = Worker(None, FIRST, None, SECOND)
    worker.loop.run()
    assert (worker.sync.ran, worker.server.ran) == ([FIRST], [SECOND])
    afters = [request.after for request in worker.chief.requests]
    assert afters == [NO_PHASE, NO_PHASE, FIRST.id, FIRST.id, SECOND.id]
    assert {(request.worker, request.incarnation, request.failure) for request in worker.chief.requests} == {(2, 5, "")}


def test_a_worker_says_what_it_holds_when_it_is_back():
    worker = Worker(FIRST)
    worker.sync.act = lambda phase: setattr(worker.replica, "state", HELD)
    worker.loop.run()
    assert [request.held for request in worker.chief.requests] == [None, HELD]


@pytest.mark.parametrize(
    "error", [PhaseRevoked("worker 1 is gone"), RoleLost("no server"), StalePhase("over"), WaitTimeout("silence")]
)
def test_a_phase_that_others_broke_is_left_and_told_and_the_next_one_is_taken(error):
    worker = Worker(FIRST, SECOND)
    worker.sync.act = raising(error)
    worker.loop.run()
    told = [(request.after, request.failure) for request in worker.chief.requests]
    assert told == [(NO_PHASE, ""), (FIRST.id, f"{type(error).__name__}: {error}"), (SECOND.id, "")]


@pytest.mark.parametrize("error", [StaleIncarnation("replaced"), ZeroDivisionError("the task's own")])
def test_what_is_the_workers_own_end_is_passed_on(error):
    worker = Worker(FIRST, SECOND)
    worker.sync.act = raising(error)
    with pytest.raises(type(error)):
        worker.loop.run()
    assert worker.server.ran == []


def test_only_the_phase_under_way_can_be_revoked():
    worker = Worker(FIRST, SECOND)

    def hear(phase: Phase) -> None:
        worker.loop.revoke(FIRST.id, f"heard in {phase.id.number}")

    worker.loop.revoke(FIRST.id, "too early")
    worker.sync.act = worker.server.act = hear
    worker.loop.run()
    assert (worker.sync.revoked, worker.server.revoked) == (["heard in 1"], [])


def test_a_worker_says_where_it_is_to_a_chief_that_has_not_heard_of_it():
    worker = Worker(FIRST, SECOND)
    told: list[RoleState | None] = [worker.loop.role_state()]

    def take_units(phase: Phase) -> None:
        worker.server.stream = Leases(phase.id)
        worker.recorder.completed = 1
        told.append(worker.loop.role_state())

    worker.server.act = take_units
    worker.loop.run()
    told.append(worker.loop.role_state())
    assert told == [None, RoleState(SECOND, True, ((4, 8),), 1), RoleState(SECOND, False)]


def test_the_units_of_an_earlier_phase_are_not_told_under_the_name_of_the_next():
    """Both phases run on one engine, which has not begun with the second."""
    following = phase_of(3)
    worker = Worker(SECOND, following)
    told: list[RoleState | None] = []

    def take_units(phase: Phase) -> None:
        if phase == following:
            told.append(worker.loop.role_state())
        else:
            worker.server.stream = Leases(phase.id)

    worker.server.act = take_units
    worker.loop.run()
    assert told == [RoleState(following, True)]


def test_a_worker_that_is_left_out_measures_itself_when_it_is_told_and_says_how_long_it_rests():
    worker = Worker(None, SECOND)
    answers = [7, -1, -1, 8]
    announce = worker.chief.next_phase

    def next_phase(request: PhaseRequest) -> PhaseReply:
        if not answers:
            return announce(request)
        worker.chief.requests.append(request)
        worker.clock.advance(min(request.rest_secs, 2.0))
        return PhaseReply(None, probe=answers.pop(0))

    worker.chief.next_phase = next_phase
    began = worker.clock.monotonic()
    worker.loop.run()
    assert [(unit, at - began) for unit, at in worker.measuring.measured] == [(7, 0.0), (8, 4.0)]
    assert [request.rest_secs for request in worker.chief.requests] == [0.0, 3.0, 1.0, 0.0, 3.0, 3.0, 0.0]
    assert worker.server.ran == [SECOND]


def test_a_chief_that_never_announces_anything_is_not_asked_for_ever(monkeypatch):
    worker = Worker(*[None] * 9)
    monkeypatch.setattr(worker_module, "MEMBERS_SECS", 3.0)
    ask = worker.chief.next_phase

    def next_phase(request: PhaseRequest) -> PhaseReply:
        worker.clock.advance(1.0)
        return ask(request)

    worker.chief.next_phase = next_phase
    with pytest.raises(WaitTimeout, match="worker 2 waited 3 s for the phase after phase 0"):
        worker.loop.run()
