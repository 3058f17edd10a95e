"""Slow is not dead: who is given up, when, and what the user hears before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from hybridsync.chief.membership import Doing
from hybridsync.config import HangConfig
from hybridsync.core.deadlines import LATE_SECS
from hybridsync.core.errors import PhaseBroken, WaitTimeout
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import COMPUTING, READING, WAITING
from hybridsync.phases.housekeeping import ProgressWatchdog
from tests.phases.contexts import ChiefDouble
from tests.roles import phase_of
from tests.telemetry.clocks import ManualClock

LIMITS = HangConfig(compute_secs=2.0, read_secs=10.0, compile_secs=20.0, silent_secs=8.0)
STUCK_SECS, FIRST_SECS = LIMITS.compute_secs, LIMITS.compile_secs
PHASE, SERVED, GROUPED = phase_of(1, "bsp"), phase_of(1, "ssp", servers=("server",)), phase_of(1, "preduce")


@dataclass
class FakeMembers:
    """Whom the chief was to treat as lost."""

    evicted: list[int] = field(default_factory=list)
    silent_roles: list[tuple[str, int]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def evict(self, role: str, worker: int, reason: str) -> None:
        self.evicted.append(worker)
        self.reasons.append(reason)

    def silent(self, secs: float) -> list[tuple[str, int]]:
        self.silent_secs = secs
        return self.silent_roles

    @property
    def workers(self) -> Any:
        return self

    def ids(self) -> tuple[int, ...]:
        return PHASE.members


@dataclass
class FakeControl(ChiefDouble):
    """What the chief would know."""

    num_applied: int = 0
    rate: float = 40.0
    members: FakeMembers = field(default_factory=FakeMembers)
    broken: str = ""
    held: dict[str, int] = field(default_factory=dict)
    called: bool = False
    inside: list[int] = field(default_factory=lambda: [0, 1])
    said: dict[int, Doing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.evict, self.silent = self.members.evict, self.members.silent

    def doing(self, secs: float) -> dict[int, Doing]:
        return self.said if any(each.secs > secs for each in self.said.values()) else {}

    def worker_rates(self) -> dict[int, float]:
        return dict.fromkeys(PHASE.members, self.rate / len(PHASE.members))

    def behind(self, live: tuple[int, ...]) -> list[int]:
        return [0]

    def break_phase(self, reason: str) -> None:
        self.broken = reason

    def room(self, end_units: int) -> int:
        return 0

    def reclaim(self) -> dict[str, int]:
        return self.held

    def is_drained(self) -> bool:
        return not self.inside or bool(self.broken)

    def call_together(self) -> None:
        self.called = True

    def is_together(self, worker: int) -> bool:
        return False

    def wait_until(self, ready: Any, secs: float) -> bool:
        return ready(self)

    def raise_broken(self) -> None:
        if self.broken:
            raise PhaseBroken(self.broken)


class FakeReporter:
    """What the user would hear."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.suspects: list[tuple[Any, ...]] = []

    def show_line(self, text: str) -> None:
        self.said.append(text)

    def suspect_hang(self, *told: Any) -> None:
        self.suspects.append(told)


def pace_of(
    control: Any, clock: ManualClock, reporter: FakeReporter | None = None, *, threads: bool = False
) -> ProgressWatchdog:
    heard: Any = reporter or FakeReporter()
    return ProgressWatchdog(control, LIMITS, 5.0, clock, heard, threads=threads)


def elapse(pace: ProgressWatchdog, clock: ManualClock, secs: float, phase: Phase = PHASE) -> None:
    """Let time go by, while the phase is checked each second."""
    while secs > 0.0:
        clock.advance(min(1.0, secs))
        secs -= 1.0
        pace.check(phase)


def members(phase: Phase, **doing: tuple[str, float]) -> dict[int, Doing]:
    """Return what members say: `_2=(COMPUTING, 3.0)` for worker 2."""
    return {int(name[1:]): Doing(what, secs, 0.05, phase.id) for name, (what, secs) in doing.items()}


EVERY_MODE = pytest.mark.parametrize("phase", [PHASE, SERVED, GROUPED], ids=lambda phase: phase.spec)


@EVERY_MODE
def test_a_member_that_hangs_at_a_unit_is_evicted_by_name_when_others_wait(phase: Phase) -> None:
    control, clock = FakeControl(), ManualClock(now=10.0)
    pace = pace_of(control, clock)
    elapse(pace, clock, 60.0, phase)
    control.said = members(phase, _0=(WAITING, STUCK_SECS - 0.1), _2=(COMPUTING, STUCK_SECS - 0.1), _3=("", 0.0))
    pace.check(phase)
    assert control.members.evicted == []
    control.said = members(phase, _0=(WAITING, STUCK_SECS + 0.1), _2=(COMPUTING, STUCK_SECS + 0.1), _3=("", 0.0))
    pace.check(phase)
    assert control.members.evicted == [2] and not control.broken, "the chief breaks what cannot go on without it"
    (reason,) = control.members.reasons
    assert reason == (
        "worker 2 has been computing one unit for more than 2 s (hang.compute_secs), and others wait for it"
    )


@EVERY_MODE
def test_a_pause_that_everybody_has_is_nobodys_fault(phase: Phase) -> None:
    control, clock = FakeControl(), ManualClock(now=10.0)
    pace = pace_of(control, clock)
    elapse(pace, clock, 60.0, phase)
    for secs in (3.0, 6.0, 9.9):
        control.said = members(phase, _0=(READING, secs), _1=(READING, secs), _2=(READING, secs))
        pace.check(phase)
    assert control.members.evicted == [] and not control.broken


@EVERY_MODE
def test_a_chief_that_stood_still_itself_waits_anew_before_it_judges(phase: Phase) -> None:
    control, clock = FakeControl(), ManualClock(now=10.0)
    pace = pace_of(control, clock)
    elapse(pace, clock, 60.0, phase)
    control.said = members(phase, _0=(WAITING, 99.0), _2=(COMPUTING, 99.0), _3=(WAITING, 99.0))
    clock.advance(LATE_SECS + 0.1)
    pace.check(phase)
    elapse(pace, clock, STUCK_SECS - 0.1, phase)
    assert control.members.evicted == []
    elapse(pace, clock, 0.2, phase)
    assert control.members.evicted == [2]


def test_time_before_the_phase_or_before_this_chief_does_not_count() -> None:
    control, clock = FakeControl(said=members(SERVED, _0=(WAITING, 99.0), _2=(COMPUTING, 99.0))), ManualClock()
    pace = pace_of(control, clock)
    for _ in range(2):
        elapse(pace, clock, STUCK_SECS - 0.1, SERVED)
        assert control.members.evicted == []
        pace.begin()
    elapse(pace, clock, STUCK_SECS + 0.1, SERVED)
    assert control.members.evicted == [2]


@pytest.mark.parametrize("phase", [PHASE, GROUPED], ids=lambda phase: phase.spec)
def test_a_collective_in_which_all_wait_is_broken_and_nobody_is_to_blame(phase: Phase) -> None:
    control, clock = FakeControl(rate=4000.0), ManualClock(now=10.0)
    pace = pace_of(control, clock)
    elapse(pace, clock, 60.0, phase)
    control.said = members(phase, _0=(WAITING, 2.1), _1=(WAITING, 1.9), _2=(WAITING, 2.1), _3=(WAITING, 2.1))
    pace.check(phase)
    assert not control.broken
    control.said = members(phase, _0=(WAITING, 2.1), _1=(WAITING, 2.1), _2=(WAITING, 2.1), _3=(WAITING, 2.1))
    pace.check(phase)
    assert control.members.evicted == [] and "no step was completed" in control.broken


def test_a_step_may_take_ten_of_its_own_length_and_the_first_one_as_long_as_compiling() -> None:
    control = FakeControl(rate=26.0)
    phase = phase_of(1, "bsp", shares=(4, 4, 1, 4))
    pace = pace_of(control, ManualClock())
    assert pace.unit_secs(phase) == pytest.approx(0.5)
    assert pace.step_limit_secs(phase) == pytest.approx(5.0)
    control.rate = 0.0
    assert pace.step_limit_secs(phase) == FIRST_SECS


@EVERY_MODE
def test_the_user_hears_once_of_a_member_that_takes_long_and_again_the_next_time(phase: Phase) -> None:
    control, clock, reporter = FakeControl(), ManualClock(), FakeReporter()
    pace = pace_of(control, clock, reporter)
    elapse(pace, clock, 60.0, phase)
    long = members(phase, _0=(WAITING, 6.0), _2=(READING, 6.0))
    for said in (long, long, {}, long):
        control.said = said
        pace.check(phase)
    assert reporter.suspects == [("worker", 2, "reading the data of one unit", 10.0, "hang.read_secs")] * 2
    assert control.members.evicted == []


def test_the_user_hears_once_of_a_process_that_is_silent() -> None:
    control, reporter = FakeControl(), FakeReporter()
    pace = pace_of(control, ManualClock(), reporter)
    for roles in ([], [("server", 0)], [("server", 0), ("worker", 1)], [("worker", 1)]):
        control.members.silent_roles = roles
        pace.warn_of_silent()
    assert control.members.silent_secs == LIMITS.silent_secs / 2
    assert reporter.suspects == [
        ("server", 0, "silent", LIMITS.silent_secs, "hang.silent_secs"),
        ("worker", 1, "silent", LIMITS.silent_secs, "hang.silent_secs"),
    ]


def test_the_last_units_of_an_asynchronous_phase_go_to_others_when_nothing_was_applied_for_long():
    control, clock, reporter = FakeControl(held={"worker 1": 2}), ManualClock(now=10.0), FakeReporter()
    pace, said = pace_of(control, clock, reporter), reporter.said
    for _ in range(2):
        clock.advance(4.0)
        pace.reclaim_tail(SERVED)
    assert len(said) == 1 and "{'worker 1': 2}" in said[0]
    clock.advance(4.0)
    pace.reclaim_tail(PHASE)
    assert len(said) == 1, "a mesh's units are everybody's"


def test_a_full_synchronisation_that_somebody_does_not_come_to_breaks_the_phase():
    control, clock = FakeControl(), ManualClock()
    control.said = members(GROUPED, _0=(WAITING, 99.0), _2=(COMPUTING, 99.0))
    lost = control.members.evict

    def evict(role: str, worker: int, reason: str) -> None:
        lost(role, worker, reason)
        control.broken = reason

    control.evict = evict
    with pytest.raises(PhaseBroken, match="worker 2 has been"):
        pace_of(control, clock).await_together(GROUPED, lambda: clock.advance(1.0), final=False)
    assert control.called and control.members.evicted == [2]


def test_an_asynchronous_phase_in_which_everybody_hangs_is_given_as_long_as_its_last_units():
    phase, clock = phase_of(1, "asp", servers=("server",)), ManualClock()
    control = FakeControl(said={2: Doing(COMPUTING, 99.0, 0.05, phase.id)})
    pace = pace_of(control, clock)
    elapse(pace, clock, 4.9, phase)  # drain_secs is 5
    assert control.members.evicted == []
    elapse(pace, clock, 0.2, phase)
    assert control.members.evicted == [2]


@EVERY_MODE
def test_threads_that_hang_are_named_and_not_given_up(phase: Phase) -> None:
    control, clock = FakeControl(said=members(phase, _0=(WAITING, 99.0), _2=(COMPUTING, 99.0))), ManualClock()
    pace = pace_of(control, clock, threads=True)
    elapse(pace, clock, STUCK_SECS - 0.1, phase)
    with pytest.raises(WaitTimeout, match="worker 2 has been computing one unit for more than 2 s"):
        elapse(pace, clock, 0.2, phase)
    assert control.members.evicted == []


def test_threads_that_all_wait_end_the_run_by_who_is_behind() -> None:
    control, clock = FakeControl(said=members(PHASE, _0=(WAITING, 99.0), _1=(WAITING, 99.0))), ManualClock()
    with pytest.raises(WaitTimeout, match=r"workers \[0\] are behind"):
        elapse(pace_of(control, clock, threads=True), clock, FIRST_SECS + 1.0)


def test_nobody_is_called_together_who_has_left_the_group_phase() -> None:
    control, clock = FakeControl(inside=[]), ManualClock()
    pace_of(control, clock).await_together(GROUPED, lambda: clock.advance(FIRST_SECS + 1), final=False)
    assert (control.called, control.members.evicted, control.broken) == (False, [], "")


def test_a_call_together_ends_when_everybody_leaves_the_group_phase() -> None:
    control, clock = FakeControl(), ManualClock()
    pace_of(control, clock).await_together(GROUPED, control.inside.clear, final=False)
    assert (control.called, control.members.evicted, control.broken) == (True, [], "")
