"""The order of a phase change: golden transcripts, and what holds in every order of events."""

from __future__ import annotations

import re

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hybridsync.phases.state_machine import (
    Broken,
    Captured,
    Checkpoint,
    Command,
    CommitFailed,
    Committed,
    Drained,
    EndPhase,
    Entered,
    Event,
    Gathered,
    Regroup,
    Reserved,
    Step,
    Switching,
    advance,
    start,
)

UNDER_WAY: list[Event] = [Reserved(1), Entered()]
SAVING: list[Event] = [*UNDER_WAY, Checkpoint(), Captured()]
SWITCHING: list[Event] = [*UNDER_WAY, EndPhase(), Drained(), Captured()]
ENDED: list[Event] = [*UNDER_WAY, EndPhase(last=True), Drained(), Captured()]

STORIES: dict[str, list[Event]] = {
    "start, one switch, end": [
        Reserved(1), Entered(),
        EndPhase(), Drained(), Captured(), Reserved(2), Entered(), Committed(),
        EndPhase(last=True), Drained(), Captured(), Committed(),
    ],
    "the commit ends before the next phase is reserved": [
        Reserved(1), Entered(), EndPhase(), Drained(), Captured(), Committed(), Reserved(2), Entered(),
    ],
    "a periodic save beside the training": [*SAVING, Committed(), Checkpoint(), Captured()],
    "a begin waits for the commit of the last switch": [
        *SWITCHING, Reserved(2), Entered(), EndPhase(last=True), Committed(), Drained(), Captured(), Committed(),
    ],
    "a begin waits for a periodic save": [*SAVING, EndPhase(), Committed(), Drained()],
    "a save that fails is tried on a newer state": [*SAVING, CommitFailed(), Checkpoint(), Captured(), Committed()],
    "a begin waits until a save that failed is made": [*SAVING, EndPhase(), CommitFailed(), Captured(), Committed()],
    "a begin that comes behind a save that failed has it tried at once": [
        *SAVING, CommitFailed(), EndPhase(), Captured(), CommitFailed(), Captured(), Committed(), Drained(),
    ],
    "it breaks behind a save that failed: the next begin still has that tried": [
        *SAVING, CommitFailed(), Broken(), Gathered(), Reserved(2), Entered(), EndPhase(), Captured(), Committed(),
    ],
    "a resume continues the numbers": [Reserved(8), Entered(), EndPhase(last=True), Drained(), Captured(), Committed()],
    "somebody joined: the same stage goes on with all": [
        *UNDER_WAY, Regroup(), Drained(), Captured(), Reserved(2), Entered(), EndPhase(last=True), Drained(),
        Captured(), Committed(),
    ],
    "a regroup that finds its stage at its end is the switch": [
        *UNDER_WAY, Regroup(), Drained(ended=True), Captured(), Reserved(2), Entered(), Committed(),
    ],
    "a regroup that finds the run at its end": [*UNDER_WAY, Regroup(), Drained(True, True), Captured(), Committed()],
    "a policy's switch whose last snapshot has all the work in it is the end": [
        *UNDER_WAY, EndPhase(), Drained(), Captured(last=True), Committed(),
    ],
    "a regroup waits for a periodic save": [*SAVING, Regroup(), Committed(), Drained(), Captured()],
    "the phase breaks while it runs": [*UNDER_WAY, Broken(), Gathered(), Reserved(2), Entered()],
    "it breaks while it drains": [*UNDER_WAY, EndPhase(), Broken(), Gathered(), Reserved(2), Entered()],
    "it breaks while it drains for the end": [*UNDER_WAY, EndPhase(last=True), Broken(), Gathered(), Reserved(2)],
    "it breaks at its snapshot": [*UNDER_WAY, EndPhase(), Drained(), Broken(), Gathered(), Reserved(2)],
    "its successor breaks before it has a number": [*SWITCHING, Broken(), Gathered(), Reserved(2)],
    "its successor breaks while it is entered": [*SWITCHING, Reserved(2), Broken(), Gathered(), Reserved(3)],
    "it breaks while a begin waits: there is nothing to begin any more": [
        *SAVING, EndPhase(), Broken(), Gathered(), Reserved(2), Entered(), Committed(), EndPhase(),
    ],
    "the live snapshot is lost with its holder: nothing was on its way to the disk": [
        *UNDER_WAY, Checkpoint(), Broken(), Gathered(), Reserved(2), Entered(), EndPhase(),
    ],
    "the newest state is the last": [*UNDER_WAY, Broken(), Gathered(last=True), Committed()],
    "the newest state is the last, behind a commit": [*SAVING, Broken(), Gathered(last=True), Committed(), Committed()],
    "the newest state is the last, behind a commit that fails": [
        *SAVING, Broken(), Gathered(last=True), CommitFailed(), Committed(),
    ],
    "the last state is lost with its holder, and somebody else has it": [
        *ENDED, CommitFailed(), Gathered(last=True), Committed(),
    ],
    "the last state is lost with everybody, and its units are done again": [
        *ENDED, CommitFailed(), Gathered(), Reserved(2), Entered(), EndPhase(last=True), Drained(), Captured(),
        Committed(),
    ],
    "it breaks at the very end": [*ENDED, Broken(), Gathered(last=True), Committed(), Committed()],
}  # fmt: skip


def describe(state: Switching) -> str:
    flags = [name for name in ("last", "committing", "commit_failed", "begin_waits") if getattr(state, name)]
    return " ".join([state.step.name, f"phase={state.phase_number}", *flags])


def tell(title: str, events: list[Event]) -> str:
    first = events[0]
    assert isinstance(first, Reserved)
    state, commands = start(first.phase_number - 1)
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
        self.begin_session()

    @precondition(lambda self: not self.todo and self.state.step is Step.DONE)
    @rule()
    def begin_session(self):
        """A run starts, or resumes after its end."""
        self.state, commands = start(3)
        self.todo: list[Command] = list(commands)
        self.reserved = self.announced = 3
        self.active: int | None = None
        self.leasing = self.committing = self.failed = self.captured = self.finished = False

    def feed(self, event: Event) -> None:
        self.state, commands = advance(self.state, event)
        self.todo.extend(commands)

    @precondition(lambda self: self.todo)
    @rule(ahead=st.integers(1, 3), flag=st.booleans())
    def execute(self, ahead, flag):
        command = self.todo.pop(0)
        match command:
            case Command.STOP_LEASES:
                assert not self.committing and not self.failed, "a switch begins when the last one is committed"
                assert self.active is not None
                self.leasing = False
                self.feed(Drained())
            case Command.CAPTURE:
                assert not self.leasing, "leases stop before the snapshot"
                self.captured, self.active = True, None
                self.feed(Captured())
            case Command.CAPTURE_LIVE:
                assert self.active is not None and self.leasing, "what nobody trains on is not captured live"
                self.captured = True
                self.feed(Captured())
            case Command.GATHER:
                self.leasing, self.active, self.captured = False, None, True
                self.feed(Gathered(last=flag))
            case Command.COMMIT:
                assert self.captured and not self.committing
                self.captured, self.committing, self.failed = False, True, False
            case Command.AWAIT_COMMIT:
                self.commit(fails=flag)
            case Command.AWAIT_RETRY:
                assert self.failed and self.state.begin_waits, "else training goes on, and a save is due"
            case Command.RESERVE:
                assert self.active is None, "the next phase is numbered when the last one has ended"
                self.reserved += ahead
                self.feed(Reserved(self.reserved))
            case Command.ANNOUNCE:
                assert self.active is None, "two phases are active"
                assert self.state.phase_number == self.reserved > self.announced, (
                    "a number is durable before it is announced"
                )
                self.active = self.announced = self.state.phase_number
                self.feed(Entered())
            case Command.RESUME_LEASES:
                assert self.active == self.announced
                self.leasing = True
            case Command.FINISH:
                assert not self.leasing and not self.committing, "a run ends when its last state is durable"
                assert not self.captured and self.state.step is Step.DONE
                self.finished = True

    def commit(self, *, fails: bool) -> None:
        assert self.committing
        self.committing, self.failed = False, fails and self.state.step is Step.RUN
        self.feed(CommitFailed() if fails else Committed())

    @precondition(lambda self: not self.todo and self.state.step is Step.RUN and not self.state.begin_waits)
    @rule(event=st.sampled_from([EndPhase(), EndPhase(last=True), Regroup()]))
    def begin(self, event):
        self.feed(event)

    @precondition(lambda self: not self.todo and self.state.step is Step.RUN and not self.committing)
    @rule()
    def checkpoint(self):
        self.feed(Checkpoint())

    @precondition(lambda self: not self.todo and self.state.step is Step.RUN and self.committing)
    @rule(fails=st.booleans())
    def commit_ends(self, fails):
        self.commit(fails=fails)

    @precondition(lambda self: self.state.step is not Step.GATHER and Command.COMMIT not in self.todo)
    @rule()
    def break_(self):
        """Somebody is lost: what was to be done for this phase is not done any more."""
        self.todo.clear()
        self.finished = False
        self.feed(Broken())

    @invariant()
    def knows_whether_a_commit_is_under_way(self):
        pending = Command.COMMIT in self.todo
        assert self.state.committing == (self.committing or pending)

    @invariant()
    def ends_only_behind_a_commit(self):
        if not self.todo and self.state.step is Step.DONE:
            assert self.finished


TestManager = Manager.TestCase

RUN = Switching(Step.RUN, 3)
WRONG = [
    (RUN, Drained()),
    (Switching(Step.RUN, 3, committing=True), Captured()),
    (RUN, Gathered()),
    (RUN, CommitFailed()),
    (Switching(Step.GATHER, 3), Broken()),
    (Switching(Step.GATHER, 3), EndPhase()),
    (Switching(Step.GATHER, 3), Reserved(4)),
    (Switching(Step.DRAIN, 3), Regroup()),
    (Switching(Step.DRAIN, 3, committing=True), CommitFailed()),
    (RUN, Entered()),
    (RUN, Committed()),
    (Switching(Step.DRAIN, 3), EndPhase()),
    (Switching(Step.DRAIN, 3), Checkpoint()),
    (Switching(Step.DRAIN, 3), Captured()),
    (Switching(Step.RUN, 3, committing=True), Checkpoint()),
    (Switching(Step.RESERVE, 3), Reserved(3)),
    (Switching(Step.RESERVE, 3), Reserved(2)),
    (Switching(Step.DONE, 3), EndPhase()),
]


@pytest.mark.parametrize(("state", "event"), WRONG, ids=lambda value: re.sub(r"\W+", "-", str(value))[:40])
def test_an_event_out_of_order_is_our_fault(state, event):
    with pytest.raises(AssertionError):
        advance(state, event)


@pytest.mark.parametrize("step", [step for step in Step if step is not Step.GATHER], ids=lambda step: step.name)
@pytest.mark.parametrize("committing", [False, True])
def test_a_phase_may_break_at_any_step_and_the_commit_under_way_goes_on(step, committing):
    state = Switching(step, 3, last=True, committing=committing, begin_waits=step is Step.RUN)
    assert advance(state, Broken()) == (Switching(Step.GATHER, 3, committing=committing), (Command.GATHER,))


def test_a_failed_commit_is_tried_on_a_newer_state_while_the_phase_runs_and_a_begin_still_waits() -> None:
    running = Switching(Step.RUN, phase_number=3, committing=True)
    again, commands = advance(running, CommitFailed())
    assert commands == () and not again.committing, "until a save is due, the phase runs as if there had been none"
    assert advance(again, Checkpoint()) == (again, (Command.CAPTURE_LIVE,))
    assert advance(again, Captured()) == (running, (Command.COMMIT,))
    assert advance(again, EndPhase())[1] == (Command.CAPTURE_LIVE,)
    waiting, commands = advance(running, EndPhase())
    assert commands == (Command.AWAIT_COMMIT,)
    again, commands = advance(waiting, CommitFailed())
    assert commands == (Command.AWAIT_RETRY, Command.CAPTURE_LIVE)
    again, commands = advance(again, Captured())
    assert commands == (Command.COMMIT, Command.AWAIT_COMMIT)
    assert advance(again, Committed())[0].step is Step.DRAIN


def test_a_run_is_not_finished_before_its_last_state_is_durable() -> None:
    capturing = Switching(Step.CAPTURE, phase_number=3, last=True)
    ending, commands = advance(capturing, Captured())
    assert commands == (Command.COMMIT, Command.AWAIT_COMMIT)
    assert advance(ending, Committed())[1] == (Command.FINISH,)
    assert advance(ending, CommitFailed())[1] == (Command.GATHER,), "roles are still needed"
