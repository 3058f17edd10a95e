r"""The order of a phase change, as a state machine without IO: DRAIN, CAPTURE, RESERVE, ENTER, and COMMIT behind.

    RUN --checkpoint--> RUN      COMMIT of a live snapshot runs in the background
    RUN --begin--> DRAIN --drained--> CAPTURE --captured--> RESERVE --reserved--> ENTER --entered--> RUN
                                          \--> COMMIT runs in the background of later stages; a next begin waits for it,
                                               also where it failed: until a newer state is durable
    any of them --broken--> GATHER --gathered--> RESERVE

A run starts, and resumes, in RESERVE: the starting state is already captured. A phase that loses a member breaks at
whatever stage it is: GATHER finds the newest state that a role holds, and a phase is entered from it as after any
capture. A regroup (members joined, or a policy leaves some out) is a begin that needs no commit.

The machine guarantees: leases stop before the state is captured; a phase is durable before any role hears of it; two
phases are never active; a switch begins only when the last one is committed.

    >>> state, commands = advance(Switching(step=Step.RUN, phase_number=3), EndPhase())
    >>> state.step.name, commands
    ('DRAIN', (<Command.STOP_LEASES: 'stop leases'>,))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Step(Enum):
    """Lists the steps in which one phase is left and the next one entered."""

    RUN = "run"
    DRAIN = "drain"
    CAPTURE = "capture"
    GATHER = "gather"
    RESERVE = "reserve"
    ENTER = "enter"
    DONE = "done"


class Command(Enum):
    """Names the next task of the controller."""

    STOP_LEASES = "stop leases"
    CAPTURE = "capture"
    CAPTURE_LIVE = "capture live"
    GATHER = "gather"
    COMMIT = "commit"
    RESERVE = "reserve"
    ANNOUNCE = "announce"
    RESUME_LEASES = "resume leases"
    AWAIT_COMMIT = "await commit"
    AWAIT_RETRY = "await retry"
    FINISH = "finish"


@dataclass(frozen=True)
class EndPhase:
    """The phase shall end: planned, by a policy, or by a signal; `last` when no phase follows."""

    last: bool = False


@dataclass(frozen=True)
class Regroup:
    """The same stage shall go on with other members, from a state that need not be committed."""


@dataclass(frozen=True)
class Broken:
    """The phase, or the way into it, lost somebody without whom it cannot go on."""


@dataclass(frozen=True)
class Gathered:
    """The newest state that someone holds is captured; `last` when no phase is to follow."""

    last: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """A periodic save is due; nothing changes but the disk."""


@dataclass(frozen=True)
class Drained:
    """No unit is in flight any more; `ended` when the stage has come to its end, `last` when it was the last one."""

    ended: bool = False
    last: bool = False


@dataclass(frozen=True)
class Captured:
    """A holder keeps a consistent copy of the state; `last` when all the work is done in it."""

    last: bool = False


@dataclass(frozen=True)
class Reserved:
    """The number of the next phase is durable."""

    phase_number: int


@dataclass(frozen=True)
class Entered:
    """The state's next holder has it."""


@dataclass(frozen=True)
class Committed:
    """The captured state is durable."""


@dataclass(frozen=True)
class CommitFailed:
    """The captured state could not be made durable; training goes on, and a newer state is tried a while later."""


Event = (EndPhase | Regroup | Checkpoint | Drained | Captured | Broken | Gathered) | (
    Reserved | Entered | Committed | CommitFailed
)


@dataclass(frozen=True)
class Switching:
    """The machine's state.

    Args:
      step: step of the phase change.
      phase_number: number of the newest phase that was announced.
      last: no phase follows this one.
      committing: a captured state is on its way to the disk.
      commit_failed: the last one did not get there, and no newer one is on its way.
      begin_waits: a begin came while committing.
      commits: the state to be captured is to be made durable.
    """

    step: Step
    phase_number: int
    last: bool = False
    committing: bool = False
    commit_failed: bool = False
    begin_waits: bool = False
    commits: bool = True


def start(phase_number: int) -> tuple[Switching, tuple[Command, ...]]:
    """Return the machine of a run whose starting state is captured and committed, with its first commands."""
    return Switching(Step.RESERVE, phase_number), (Command.RESERVE,)


def advance(state: Switching, event: Event) -> tuple[Switching, tuple[Command, ...]]:
    """Return the state after `event` and what to do now, in order.

    Raises:
      AssertionError: the event does not belong to this step; the controller is at fault.
    """
    match event:
        case EndPhase() | Regroup():
            assert state.step is Step.RUN, f"a phase change begins in RUN, not in {state.step.name}"
            state = replace(state, last=isinstance(event, EndPhase) and event.last, commits=isinstance(event, EndPhase))
            if state.committing:
                return replace(state, begin_waits=True), (Command.AWAIT_COMMIT,)
            if state.commit_failed:
                return replace(state, begin_waits=True), (Command.CAPTURE_LIVE,)
            return replace(state, step=Step.DRAIN), (Command.STOP_LEASES,)
        case Checkpoint():
            _expect(state, Step.RUN, event)
            assert not state.committing, "a periodic save begins when the last commit has ended"
            return state, (Command.CAPTURE_LIVE,)
        case Drained(ended, last):
            _expect(state, Step.DRAIN, event)
            if ended and not state.commits:  # a regroup that came too late: this is the switch, or the end
                state = replace(state, commits=True, last=last)
            return replace(state, step=Step.CAPTURE), (Command.CAPTURE,)
        case Captured() if state.step is Step.RUN:  # live; its holder may be lost before there is a commit
            assert not state.committing, "a state is captured live for a commit of its own"
            waiting = (Command.AWAIT_COMMIT,) if state.begin_waits else ()
            return replace(state, committing=True, commit_failed=False), (Command.COMMIT, *waiting)
        case Captured(last):
            _expect(state, Step.CAPTURE, event)
            if last:  # what was to be changed came too late: this is the end
                state = replace(state, last=True, commits=True)
            if not state.commits:
                return replace(state, step=Step.RESERVE), (Command.RESERVE,)
            state = replace(state, committing=True)
            if state.last:
                return _end(state)
            return replace(state, step=Step.RESERVE), (Command.COMMIT, Command.RESERVE)
        case Broken():
            assert state.step is not Step.GATHER, "no phase is active while a state is gathered"
            return replace(state, step=Step.GATHER, last=False, begin_waits=False), (Command.GATHER,)
        case Gathered(last):
            _expect(state, Step.GATHER, event)
            if not last:
                return replace(state, step=Step.RESERVE), (Command.RESERVE,)
            if state.committing:  # a snapshot of the broken phase; the last one follows it
                return replace(state, last=True), (Command.AWAIT_COMMIT,)
            return _end(replace(state, last=True, committing=True))
        case Reserved(phase_number):
            _expect(state, Step.RESERVE, event)
            assert phase_number > state.phase_number, (
                f"phase {phase_number} was reserved, but {state.phase_number} is already in use"
            )
            return replace(state, step=Step.ENTER, phase_number=phase_number), (Command.ANNOUNCE,)
        case Entered():
            _expect(state, Step.ENTER, event)
            return replace(state, step=Step.RUN), (Command.RESUME_LEASES,)
        case CommitFailed():
            assert state.committing, "a commit failed that was never begun"
            if state.step is Step.GATHER:
                return _end(state)
            if state.step is Step.DONE:  # the last state's holder is gone: another role may hold it
                return replace(state, step=Step.GATHER, last=False, committing=False), (Command.GATHER,)
            _expect(state, Step.RUN, event)
            again = (Command.AWAIT_RETRY, Command.CAPTURE_LIVE) if state.begin_waits else ()  # else a checkpoint is due
            return replace(state, committing=False, commit_failed=True), again
        case Committed():
            assert state.committing, "a commit ended that was never begun"
            if state.step is Step.GATHER:
                return _end(state)
            state = replace(state, committing=False)
            if state.step is Step.DONE:
                return state, (Command.FINISH,)
            if state.begin_waits:
                return replace(state, step=Step.DRAIN, begin_waits=False), (Command.STOP_LEASES,)
            return state, ()


def _end(state: Switching) -> tuple[Switching, tuple[Command, ...]]:
    return replace(state, step=Step.DONE), (Command.COMMIT, Command.AWAIT_COMMIT)


def _expect(state: Switching, step: Step, event: Event) -> None:
    assert state.step is step, f"{type(event).__name__} belongs to {step.name}, but the switch is in {state.step.name}"
