"""How a run follows the machine: command by command, past a broken phase, and to the end that a signal asks for."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest

from hybridsync.config import RunConfig
from hybridsync.core.errors import EXIT_FAILED, CheckpointError, HybridSyncError, PhaseBroken, Preempted
from hybridsync.phases.controller import Controller
from hybridsync.phases.run_context import ControllerState, Start
from hybridsync.phases.state_machine import (
    Captured,
    Command,
    CommitFailed,
    Committed,
    Drained,
    EndPhase,
    Entered,
    Event,
    Gathered,
    Reserved,
)
from tests.phases.contexts import ChiefDouble, context_of
from tests.roles import Start as StartingState

WORKLOAD = 64
Outcome = Event | BaseException | None


class FakeMembers:
    """Some workers are left."""

    def all_quarantined(self) -> HybridSyncError | None:
        return None


class FakeControl(ChiefDouble):
    """A chief that hears how the run ends."""

    num_applied = WORKLOAD
    stop_reason: str | None = None
    refusal = ""

    def __init__(self) -> None:
        self.members = FakeMembers()
        self.failed: HybridSyncError | None = None
        self.preempted, self.broken = False, ""

    def preempt(self) -> None:
        self.preempted = True

    def break_phase(self, reason: str) -> None:
        self.broken = reason

    def fail(self, error: HybridSyncError) -> None:
        self.failed = error

    def finish(self) -> None: ...


class Reporter:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ends: list[str] = []

    def tick(self) -> None: ...

    def show_line(self, text: str) -> None:
        self.lines.append(text)

    def finish(self, how: str, error: str | None) -> tuple[str, str | None]:
        self.ends.append(how)
        return how, error


class Saving:
    training = threading.Event()

    def collect(self, *, all_of_them: bool) -> None: ...


class Committer:
    closed = False

    def close(self) -> None:
        self.closed = True


class LaidOut(BaseException):
    """Ends a controller where a test has laid out no more."""


class Stages:
    """Stages that do what a test has laid out, and note what they were asked; they are each one stage as well."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self._outcomes = deque(outcomes)
        self.asked: list[str] = []
        self.run = self.commit = self
        self.is_under_way, self.covers_newest = False, False

    def _next(self, asked: str) -> Any:
        self.asked.append(asked)
        if not self._outcomes:
            raise LaidOut
        outcome = self._outcomes.popleft()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def execute(self, command: Command) -> Any:
        return self._next(command.name)

    def watch(self) -> Any:
        return self._next("watch")

    def submit(self) -> None:
        self.asked.append("submit")
        self.is_under_way = self.covers_newest = True

    def await_commit(self) -> Any:
        event = self._next("await_commit")
        self.is_under_way, self.covers_newest = False, isinstance(event, Committed)
        return event

    @property
    def gather(self) -> Any:
        return Gathering(self)


class Gathering:
    def __init__(self, stages: Stages) -> None:
        self._stages = stages

    def gather(self) -> None:
        self._stages.asked.append("gather")


class Harness:
    """A controller whose stages do what `outcomes` say."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.stages, self.control, self.committer = Stages([*outcomes]), FakeControl(), Committer()
        snapshot = StartingState().snapshot
        self.state = ControllerState(snapshot, "chief", "start")
        self.reporter = Reporter()
        parts: Any = (self.control, self.stages, Saving(), self.committer, self.reporter, Roles())
        control, stages, saving, committer, reporter, arrivals = parts
        config = RunConfig(workload=WORKLOAD, plan="asp")
        self.controller = Controller(
            context_of(config=config, control=control, state=self.state, saving=saving, reporter=reporter),
            Start(snapshot, "chief", "start", 0, True),
            stages,
            arrivals=arrivals,
            rejoining=None,
            committer=committer,
            forget=lambda sequence: None,
            stage_secs=1.0,
        )


class Roles:
    def await_all(self) -> None: ...


LAST = (EndPhase(last=True), Drained(last=True), Captured(last=True), None, Committed(), None)
"""How the last phase of a run ends: watched, drained, captured, submitted, committed, finished."""


def test_a_run_of_one_phase_carries_out_every_command_in_the_machines_order():
    harness = Harness(Reserved(1), Entered(), None, *LAST)
    assert harness.controller.run() == ("completed", None)
    assert harness.stages.asked == [
        *("RESERVE", "ANNOUNCE", "RESUME_LEASES"),
        *("watch", "STOP_LEASES", "CAPTURE", "COMMIT", "AWAIT_COMMIT", "FINISH"),
    ]
    assert harness.committer.closed


def test_what_was_to_follow_in_a_phase_that_breaks_is_left_out():
    broken = PhaseBroken("worker 3 was lost")
    switch = (EndPhase(), Drained(), Captured(), broken)  # submitting breaks: RESERVE stood behind it
    harness = Harness(Reserved(1), Entered(), None, *switch, Gathered(), Reserved(2), Entered(), None)
    with pytest.raises(LaidOut):
        harness.controller.run()
    assert harness.stages.asked[6:] == ["COMMIT", "GATHER", "RESERVE", "ANNOUNCE", "RESUME_LEASES", "watch"]
    assert harness.state.broken_by == "worker 3 was lost"


def test_a_run_that_is_stopped_while_roles_are_awaited_commits_the_newest_state_that_somebody_holds():
    harness = Harness(Reserved(1), Preempted("asked to stop"), CommitFailed(), Committed())
    harness.control.num_applied = 8
    assert harness.controller.run() == ("preempted", None)
    assert harness.stages.asked[2:] == ["submit", "await_commit", "gather", "submit", "await_commit"]
    assert harness.state.is_ending and harness.reporter.lines == ["asked to stop"], "who is missing is not said"


def test_a_run_that_fails_tells_its_roles_and_closes_the_committer():
    failure = CheckpointError("the disk is full")
    harness = Harness(failure)
    with pytest.raises(CheckpointError, match="the disk is full"):
        harness.controller.run()
    assert harness.control.failed is failure and harness.committer.closed


SAVED: tuple[Outcome, ...] = (Gathered(last=True), None, Committed(), None)
"""How what somebody holds is saved: gathered, submitted, committed, finished."""
WAY = (Reserved(1), Entered(), None, *LAST)


def broken_off(error: BaseException, at: int, *outcomes: Outcome) -> Harness:
    """Return a run whose `at`th command is broken off by `error`; the others do what a run of one phase does."""
    harness = Harness(*WAY[:at], error, *outcomes)
    harness.control.num_applied = 8
    return harness


@pytest.mark.parametrize("at", range(8))
def test_an_interrupt_at_any_command_saves_what_somebody_holds(at: int):
    harness = broken_off(KeyboardInterrupt(), at, *SAVED)
    assert harness.controller.run() == ("preempted", None)
    assert harness.stages.asked[-4:] == ["GATHER", "COMMIT", "AWAIT_COMMIT", "FINISH"]
    assert harness.control.preempted and "KeyboardInterrupt" in harness.control.broken
    assert harness.reporter.ends == ["preempted"] and harness.control.failed is None


def test_an_interrupt_while_a_commit_is_under_way_waits_for_that_first():
    harness = broken_off(KeyboardInterrupt(), 7, Gathered(last=True), Committed(), None, Committed(), None)
    harness.stages.is_under_way = True
    assert harness.controller.run() == ("preempted", None)
    assert harness.stages.asked[-5:] == ["GATHER", "AWAIT_COMMIT", "COMMIT", "AWAIT_COMMIT", "FINISH"]


@pytest.mark.parametrize("error", [TimeoutError("the user's alarm"), SystemExit(3), AssertionError("a defect")])
def test_any_other_error_is_raised_once_the_state_is_saved(error: BaseException):
    harness = broken_off(error, 3, *SAVED)
    with pytest.raises(type(error)) as raised:
        harness.controller.run()
    assert raised.value is error and harness.stages.asked[-3:] == ["COMMIT", "AWAIT_COMMIT", "FINISH"]
    assert harness.reporter.ends == ["failed"] and harness.committer.closed


@pytest.mark.parametrize("another", [CheckpointError("the disk is full"), KeyboardInterrupt("again")])
def test_an_interrupt_is_raised_where_nothing_could_be_saved(another: BaseException):
    harness = broken_off(KeyboardInterrupt("first"), 3, Gathered(last=True), None, another)
    with pytest.raises(KeyboardInterrupt):
        harness.controller.run()
    assert harness.reporter.ends == ["failed"] and "KeyboardInterrupt" in str(harness.control.failed)


def test_a_stop_that_could_not_save_all_that_was_applied_says_how_many_units_are_lost():
    harness = Harness(*WAY)
    harness.control.num_applied = 8
    harness.state.lost_at_stop, harness.state.lost_why = 42, "worker 1 was lost"
    with pytest.raises(HybridSyncError, match="has saved 8 units, but not the 42 applied after") as failure:
        harness.controller.run()
    assert failure.value.exit_code == EXIT_FAILED and harness.reporter.ends == ["failed"]


@pytest.mark.parametrize(("preempted", "how"), [(False, "restarting"), (True, "preempted")])
def test_a_run_that_ends_at_a_switch_says_that_it_restarts_unless_it_was_asked_to_stop(*, preempted: bool, how: str):
    harness = Harness(*WAY)
    harness.control.num_applied, harness.control.preempted, harness.state.restarts = 8, preempted, True
    assert harness.controller.run() == (how, None)


def test_the_end_of_a_run_that_a_role_refuses_to_train_on_names_the_mistake():
    harness = Harness(*WAY)
    harness.control.num_applied, harness.control.refusal = 8, "worker 1 refuses to go on: exit 1: the loss raised"
    assert harness.controller.run() == ("preempted", "worker 1 refuses to go on: exit 1: the loss raised")
