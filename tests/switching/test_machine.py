"""The order of a phase change: golden transcripts, and what holds in every order of events."""

from __future__ import annotations

import re

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hybridsync.switching.machine import (
    Begin,
    Captured,
    Checkpoint,
    Command,
    CommitFailed,
    Committed,
    Drained,
    Entered,
    Event,
    Reserved,
    Step,
    Switching,
    advance,
    start,
)

STORIES: dict[str, list[Event]] = {
    "start, one switch, end": [
        Reserved(1), Entered(),
        Begin(), Drained(), Captured(), Reserved(2), Entered(), Committed(),
        Begin(last=True), Drained(), Captured(), Committed(),
    ],
    "the commit ends before the next epoch is reserved": [
        Reserved(1), Entered(), Begin(), Drained(), Captured(), Committed(), Reserved(2), Entered(),
    ],
    "a periodic save beside the training": [Reserved(1), Entered(), Checkpoint(), Committed(), Checkpoint()],
    "a begin waits for the commit of the last switch": [
        Reserved(1), Entered(), Begin(), Drained(), Captured(), Reserved(2), Entered(),
        Begin(last=True), Committed(), Drained(), Captured(), Committed(),
    ],
    "a begin waits for a periodic save": [Reserved(1), Entered(), Checkpoint(), Begin(), Committed(), Drained()],
    "a resume continues the numbers": [Reserved(8), Entered(), Begin(last=True), Drained(), Captured(), Committed()],
}  # fmt: skip


def describe(state: Switching) -> str:
    flags = [name for name in ("last", "committing", "begin_waits") if getattr(state, name)]
    return " ".join([state.step.name, f"epoch={state.epoch}", *flags])


def tell(title: str, events: list[Event]) -> str:
    state, commands = start(events[0].epoch - 1)
    lines = [f"# {title}", f"{'start':24} -> {describe(state)}: {', '.join(c.value for c in commands)}"]
    for event in events:
        state, commands = advance(state, event)
        todo = ", ".join(c.value for c in commands) or "-"
        lines.append(f"{event!s:24} -> {describe(state)}: {todo}")
    return "\n".join(lines) + "\n"


def test_the_stories_are_told_as_in_the_golden_transcript(golden):
    golden("switch_machine.txt", "\n".join(tell(title, events) for title, events in STORIES.items()))


class Manager(RuleBasedStateMachine):
    """Carries out commands in order, lets events come whenever they may, and watches what must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.begin_life()

    @precondition(lambda self: not self.todo and self.state.step is Step.DONE)
    @rule()
    def begin_life(self):
        """A run starts, or resumes after its end."""
        self.state, self.todo = start(3)
        self.todo = list(self.todo)
        self.reserved = 3
        self.active: int | None = None
        self.leasing = False
        self.committing = self.captured = False

    def feed(self, event: Event) -> None:
        self.state, commands = advance(self.state, event)
        self.todo.extend(commands)

    @precondition(lambda self: self.todo)
    @rule(ahead=st.integers(1, 3))
    def execute(self, ahead):
        command = self.todo.pop(0)
        match command:
            case Command.STOP_LEASES:
                assert not self.committing, "a switch begins when the last one is committed"
                self.leasing = False
                self.feed(Drained())
            case Command.CAPTURE:
                assert not self.leasing, "leases stop before the capture"
                self.captured = True
                self.active = None
                self.feed(Captured())
            case Command.CAPTURE_LIVE:
                self.captured = True
            case Command.COMMIT:
                assert self.captured and not self.committing
                self.captured, self.committing = False, True
            case Command.AWAIT_COMMIT:
                self.commit()
            case Command.RESERVE:
                self.reserved += ahead
                self.feed(Reserved(self.reserved))
            case Command.ANNOUNCE:
                assert self.active is None, "two epochs are active"
                assert self.state.epoch == self.reserved, "an epoch is reserved before it is announced"
                self.active = self.state.epoch
                self.feed(Entered())
            case Command.RESUME_LEASES:
                assert self.active is not None
                self.leasing = True
            case Command.FINISH:
                assert not self.leasing and not self.committing, "a run ends when its last state is durable"

    def commit(self) -> None:
        assert self.committing
        self.committing = False
        self.feed(Committed())

    @precondition(lambda self: not self.todo and self.state.step is Step.RUN and not self.state.begin_waits)
    @rule(last=st.booleans())
    def begin(self, last):
        self.feed(Begin(last))

    @precondition(lambda self: not self.todo and self.state.step is Step.RUN and not self.committing)
    @rule()
    def checkpoint(self):
        self.feed(Checkpoint())

    @precondition(lambda self: self.committing)
    @rule()
    def commit_ends(self):
        self.commit()
        if self.todo and self.todo[0] is Command.AWAIT_COMMIT:
            self.todo.pop(0)

    @invariant()
    def knows_whether_a_commit_is_under_way(self):
        pending = Command.COMMIT in self.todo
        assert self.state.committing == (self.committing or pending)


TestManager = Manager.TestCase

RUN = Switching(Step.RUN, 3)
WRONG = [
    (RUN, Drained()),
    (RUN, Captured()),
    (RUN, Entered()),
    (RUN, Committed()),
    (Switching(Step.DRAIN, 3), Begin()),
    (Switching(Step.DRAIN, 3), Checkpoint()),
    (Switching(Step.DRAIN, 3), Captured()),
    (Switching(Step.RUN, 3, committing=True), Checkpoint()),
    (Switching(Step.RESERVE, 3), Reserved(3)),
    (Switching(Step.RESERVE, 3), Reserved(2)),
    (Switching(Step.DONE, 3), Begin()),
]


@pytest.mark.parametrize(("state", "event"), WRONG, ids=lambda value: re.sub(r"\W+", "-", str(value))[:40])
def test_an_event_out_of_order_is_our_fault(state, event):
    with pytest.raises(AssertionError):
        advance(state, event)


def test_a_failed_commit_is_tried_on_a_newer_state_while_the_phase_runs_and_a_begin_still_waits() -> None:
    running = Switching(Step.RUN, epoch=3, committing=True)
    assert advance(running, CommitFailed()) == (running, (Command.CAPTURE_LIVE, Command.COMMIT))
    waiting, commands = advance(running, Begin())
    assert commands == (Command.AWAIT_COMMIT,)
    again, commands = advance(waiting, CommitFailed())
    assert commands == (Command.CAPTURE_LIVE, Command.COMMIT, Command.AWAIT_COMMIT)
    assert advance(again, Committed())[0].step is Step.DRAIN
