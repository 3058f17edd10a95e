"""How a run follows the machine: command by command, past a broken phase, and to the end that a signal asks for."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest

from hybridsync.core.errors import CheckpointError, HybridSyncError, PhaseBroken, Preempted
from hybridsync.core.work_deadlines import UNWATCHED
from hybridsync.phases.controller import Controller
from hybridsync.phases.controller_state import ControllerState
from hybridsync.phases.recovery import Start
from hybridsync.phases.state_machine import (
    Begin,
    Captured,
    Command,
    CommitFailed,
    Committed,
    Drained,
    Entered,
    Event,
    Gathered,
    Reserved,
)
from tests.roles import Start as StartingState

WORKLOAD = 64
Outcome = Event | Exception | None


class FakeMembers:
    """Some workers are left."""

    all_quarantined: HybridSyncError | None = None


class FakeControl:
    """A chief that hears how the run ends."""

    num_applied = WORKLOAD

    def __init__(self) -> None:
        self.members = FakeMembers()
        self.failed: HybridSyncError | None = None

    def fail(self, error: HybridSyncError) -> None:
        self.failed = error

    def finish(self) -> None: ...


class Reporter:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def tick(self) -> None: ...

    def show_line(self, text: str) -> None:
        self.lines.append(text)

    def finish(self, how: str, error: str | None) -> tuple[str, str | None]:
        return how, error


class Saving:
    training = threading.Event()

    def collect(self, *, all_of_them: bool) -> None: ...


class Committer:
    closed = False

    def close(self) -> None:
        self.closed = True


class Stages:
    """Stages that do what a test has laid out, and note what they were asked; they are each one stage as well."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self._outcomes = deque(outcomes)
        self.asked: list[str] = []
        self.run = self.commit = self
        self.is_under_way, self.covers_newest = False, False

    def _next(self, asked: str) -> Any:
        self.asked.append(asked)
        outcome = self._outcomes.popleft()
        if isinstance(outcome, Exception):
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
        self.controller = Controller(
            WORKLOAD,
            control,
            Start(snapshot, "chief", "start", 0, True),
            self.state,
            stages,
            arrivals=arrivals,
            rejoining=None,
            saving=saving,
            committer=committer,
            reporter=reporter,
            forget=lambda sequence: None,
            stage_secs=1.0,
            watchdog=UNWATCHED,
        )


class Roles:
    def await_all(self) -> None: ...


LAST = (Begin(last=True), Drained(last=True), Captured(last=True), None, Committed(), None)
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
    switch = (Begin(), Drained(), Captured(), broken)  # submitting breaks: RESERVE stood behind it
    harness = Harness(Reserved(1), Entered(), None, *switch, Gathered(), Reserved(2), Entered(), None)
    with pytest.raises(IndexError):  # nothing more is laid out
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
