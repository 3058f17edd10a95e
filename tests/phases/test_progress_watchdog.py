"""Slow is not dead: who is given up in lock-step, and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from hybridsync.chief.phase_membership import Doing
from hybridsync.core.errors import PhaseBroken, WaitTimeout
from hybridsync.interfaces.messages import StateVersion
from hybridsync.interfaces.reports import COMPUTING, WAITING
from hybridsync.phases.progress_watchdog import FIRST_STEP_SECS, STUCK_SECS, ProgressWatchdog
from tests.roles import phase_of
from tests.telemetry.clocks import ManualClock

PHASE, SERVED = phase_of(1, "bsp"), phase_of(1, "asp")


@dataclass
class FakeMembers:
    """Whom the chief was to treat as lost."""

    evicted: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def evict(self, worker: int, reason: str) -> None:
        self.evicted.append(worker)
        self.reasons.append(reason)


@dataclass
class FakeControl:
    """What the chief would know."""

    num_applied: int = 0
    rate: float = 40.0
    first: float = 1.0
    stuck_workers: list[int] = field(default_factory=lambda: [2])
    members: FakeMembers = field(default_factory=FakeMembers)
    broken: str = ""
    held: dict[str, int] = field(default_factory=dict)
    waited: dict[int, float] = field(default_factory=dict)
    called: bool = False
    inside: list[int] = field(default_factory=lambda: [0, 1])
    said: dict[int, Doing] = field(default_factory=dict)

    def doing(self, secs: float) -> dict[int, Doing]:
        return self.said if any(each.secs > secs for each in self.said.values()) else {}

    def worker_rates(self) -> dict[int, float]:
        return dict.fromkeys(PHASE.members, self.rate / len(PHASE.members))

    def stamps(self) -> tuple[float, float]:
        return self.first, self.first

    def stuck(self, silent_secs: float) -> list[int]:
        self.silent_secs = silent_secs
        return self.stuck_workers

    def behind(self) -> list[int]:
        return [0]

    def break_phase(self, reason: str) -> None:
        self.broken = reason

    def all_leased(self, phase: object) -> bool:
        return True

    def reclaim(self) -> dict[str, int]:
        return self.held

    def waited_for(self) -> dict[int, float]:
        return self.waited

    def missing_drained(self) -> list[int]:
        return self.inside

    def call_together(self) -> None:
        self.called = True

    def is_together(self, worker: int) -> bool:
        return False

    def wait_until(self, ready: Any, secs: float) -> bool:
        return ready()

    def as_broken(self) -> PhaseBroken:
        return PhaseBroken(self.broken)


def pace_of(
    control: Any, clock: ManualClock, said: list[str] | None = None, *, threads: bool = False
) -> ProgressWatchdog:
    say = said.append if said is not None else lambda text: None
    return ProgressWatchdog(control, 5.0, clock, say, threads=threads)


def after(pace: ProgressWatchdog, clock: ManualClock, *secs: float) -> None:
    for each in secs:
        clock.advance(each)
        pace.check(PHASE)


def test_a_step_three_times_as_long_as_usual_is_borne():
    control, clock = FakeControl(rate=8.0), ManualClock(now=10.0)  # a step takes half a second
    pace = pace_of(control, clock)
    for _ in range(20):
        control.num_applied += 4
        after(pace, clock, 0.5)
    after(pace, clock, 0.5, 0.5, 0.5)
    assert control.members.evicted == [] and not control.broken


def test_who_lets_the_others_wait_for_ten_steps_is_given_up():
    control, clock = FakeControl(rate=8.0), ManualClock(now=10.0)
    pace = pace_of(control, clock)
    after(pace, clock, 4.9)
    assert control.members.evicted == []
    after(pace, clock, 0.2)
    assert control.members.evicted == [2] and "5 s" in control.broken
    assert control.silent_secs == pytest.approx(2.5), "a heartbeat in the later half proves it is not stopped"


def test_a_step_of_several_units_a_member_is_given_ten_of_its_own_length():
    control, clock = FakeControl(rate=26.0), ManualClock(now=10.0)
    phase = phase_of(1, "bsp", shares=(4, 4, 1, 4))
    pace = pace_of(control, clock)
    assert pace.unit_secs(phase) == pytest.approx(0.5)
    assert pace.step_limit_secs(phase) == pytest.approx(5.0)


def test_short_steps_are_given_two_seconds():
    control, clock = FakeControl(rate=4000.0), ManualClock(now=10.0)
    pace = pace_of(control, clock)
    after(pace, clock, STUCK_SECS - 0.1)
    assert control.members.evicted == []
    after(pace, clock, 0.2)
    assert control.members.evicted == [2]


def test_a_collective_in_which_all_wait_is_broken_though_nobody_is_to_blame():
    control, clock = FakeControl(stuck_workers=[]), ManualClock(now=10.0)
    after(pace_of(control, clock), clock, 3.0)
    assert control.members.evicted == [] and control.broken


def test_before_the_first_step_roles_may_be_compiling():
    control, clock = FakeControl(first=0.0), ManualClock(now=10.0)
    pace = pace_of(control, clock)
    after(pace, clock, FIRST_STEP_SECS - 1)
    assert not control.broken
    after(pace, clock, 2.0)
    assert control.broken


def test_threads_are_named_and_not_given_up():
    control, clock = FakeControl(), ManualClock(now=10.0)
    pace = pace_of(control, clock, threads=True)
    after(pace, clock, 59.0)
    with pytest.raises(WaitTimeout, match=r"workers \[2\] are behind"):
        after(pace, clock, 2.0)
    assert control.members.evicted == []


def test_the_last_units_of_an_asynchronous_phase_go_to_others_when_nothing_was_applied_for_long():
    control, clock, said = FakeControl(held={"worker 1": 2}), ManualClock(now=10.0), []
    pace = pace_of(control, clock, said)
    for _ in range(2):
        clock.advance(4.0)
        pace.reclaim_tail(SERVED)
    assert len(said) == 1 and "{'worker 1': 2}" in said[0]
    clock.advance(4.0)
    pace.reclaim_tail(PHASE)
    assert len(said) == 1, "a mesh's units are everybody's"


GROUPED = phase_of(1, "preduce")


def test_who_keeps_a_group_waiting_for_many_of_its_units_is_given_up_by_name_though_others_go_on():
    control = FakeControl(waited={2: STUCK_SECS - 0.1})
    pace = pace_of(control, ManualClock())
    pace.check(GROUPED)
    assert control.members.evicted == []
    control.waited, control.num_applied = {2: STUCK_SECS + 0.1, 3: STUCK_SECS + 0.1}, 5
    pace.check(GROUPED)
    assert control.members.evicted == [2]
    assert "waited for workers [2]" in control.broken, "worker 3 waits in an average itself"
    assert control.silent_secs == STUCK_SECS / 2


def test_a_slow_worker_may_take_ten_of_its_own_units_and_one_that_compiles_its_time():
    control = FakeControl(rate=0.4, waited={1: 99.0})  # 10 s a unit
    pace_of(control, ManualClock()).check(GROUPED)
    assert control.members.evicted == []
    control.rate, control.waited = 0.0, {1: FIRST_STEP_SECS - 1.0}
    pace_of(control, ManualClock()).check(GROUPED)
    assert control.members.evicted == []


def test_a_thread_that_keeps_a_group_waiting_is_named():
    control = FakeControl(waited={1: 200.0})
    with pytest.raises(WaitTimeout, match=r"waited for workers \[1\]"):
        pace_of(control, ManualClock(), threads=True).check(GROUPED)


def test_a_full_synchronisation_that_somebody_does_not_come_to_breaks_the_phase():
    control = FakeControl()
    control.waited = {2: STUCK_SECS + 1.0}
    with pytest.raises(PhaseBroken, match=r"workers \[2\]"):
        pace_of(control, ManualClock()).await_together(GROUPED, lambda: None, final=False)
    assert control.called and control.members.evicted == [2]


SERVED = phase_of(1, "ssp", servers=("server",))


def waiting(secs: float, usual_secs: float = 0.05) -> dict[int, Doing]:
    """Return that worker 2 is at one unit, and worker 0 waits, for so long."""
    own = Doing(COMPUTING, secs, usual_secs, SERVED.id)
    return {0: Doing(WAITING, secs, 0.05, SERVED.id), 2: own, 3: Doing(phase_id=SERVED.id)}


def test_who_hangs_at_a_unit_while_a_rule_waits_is_evicted_by_name_and_the_phase_goes_on():
    control, clock = FakeControl(said=waiting(STUCK_SECS - 0.1)), ManualClock()
    pace = pace_of(control, clock)
    clock.advance(60.0)
    pace.check(SERVED)
    assert control.members.evicted == []
    control.said = waiting(STUCK_SECS + 0.1)
    pace.check(SERVED)
    assert control.members.evicted == [2] and not control.broken
    assert control.members.reasons == ["worker 2 has been at one unit for more than 2 s, and others wait for it"]


def test_a_worker_may_take_ten_of_its_own_recent_units_and_its_first_one_may_be_compiled():
    control, clock = FakeControl(), ManualClock()
    pace = pace_of(control, clock)
    clock.advance(2 * FIRST_STEP_SECS)
    for usual_secs, limit in ((1.0, 10.0), (0.0, FIRST_STEP_SECS)):
        control.members.evicted.clear()
        control.said = waiting(limit - 0.1, usual_secs)
        pace.check(SERVED)
        assert control.members.evicted == []
        control.said = waiting(limit + 0.1, usual_secs)
        pace.check(SERVED)
        assert control.members.evicted == [2]


def test_time_before_the_phase_or_before_this_chief_does_not_count():
    control, clock = FakeControl(said=waiting(99.0)), ManualClock()
    pace = pace_of(control, clock)
    for _ in range(2):
        clock.advance(STUCK_SECS - 0.1)
        pace.check(SERVED)
        assert control.members.evicted == []
        pace.begin()
    clock.advance(STUCK_SECS + 0.1)
    pace.check(SERVED)
    assert control.members.evicted == [2]


def test_an_asynchronous_phase_in_which_everybody_hangs_is_given_as_long_as_its_last_units():
    phase, clock = phase_of(1, "asp", servers=("server",)), ManualClock()
    control = FakeControl(said={2: Doing(COMPUTING, 99.0, 0.05, phase.id)})
    pace = pace_of(control, clock)
    clock.advance(4.9)  # drain_secs is 5
    pace.check(phase)
    assert control.members.evicted == []
    clock.advance(0.2)
    pace.check(phase)
    assert control.members.evicted == [2]


def test_threads_that_hang_while_a_rule_waits_are_named_after_a_minute():
    control, clock = FakeControl(said=waiting(61.0)), ManualClock()
    pace = pace_of(control, clock, threads=True)
    clock.advance(59.0)
    pace.check(SERVED)
    clock.advance(2.0)
    with pytest.raises(WaitTimeout, match=r"workers \[2\] have been at one unit for more than 60 s"):
        pace.check(SERVED)
    assert control.members.evicted == []


@dataclass
class Back(FakeControl):
    """Who has come back from a phase of four, with how many units."""

    held_units: tuple[int | None, ...] = ()

    def drained(self) -> dict[int, Any]:
        states = (None if units is None else StateVersion(PHASE.id, units, units, "") for units in self.held_units)
        return dict(enumerate(states))

    def missing_drained(self) -> list[int]:
        return [worker for worker in PHASE.members if worker >= len(self.held_units)]


def back(*units: int | None, **more: Any) -> ProgressWatchdog:
    control: Any = Back(held_units=units, **more)
    return ProgressWatchdog(control, 10.0, ManualClock(), lambda _: None, threads=False)


def test_a_lock_step_phase_is_over_when_everybody_is_back_and_another_when_its_units_are_applied():
    end, num = PHASE.end_units, len(PHASE.members)
    assert not back(*[end] * (num - 1)).is_over(PHASE) and back(*[end] * num).is_over(PHASE)
    assert back(num_applied=end).is_over(SERVED) and not back().is_over(SERVED)


def test_a_lock_step_phase_is_short_by_what_the_furthest_of_those_who_are_back_holds():
    end = PHASE.end_units
    assert back(end - 1, None).is_short(PHASE) and back(end - 1, None).units_reached() == end - 1
    assert not back(end, end - 1).is_short(PHASE) and not back().is_short(PHASE)
    assert not back(end - 1).is_short(SERVED)


def test_a_phase_is_drained_when_nobody_is_missing_or_it_has_broken():
    num = len(PHASE.members)
    assert not back(*[1] * (num - 1)).is_drained()
    assert back(*[1] * num).is_drained() and back(broken="worker 1 is gone").is_drained()


def test_nobody_is_called_together_who_has_left_the_group_phase() -> None:
    control, clock = FakeControl(inside=[]), ManualClock()
    pace_of(control, clock).await_together(GROUPED, lambda: clock.advance(FIRST_STEP_SECS + 1), final=False)
    assert (control.called, control.members.evicted, control.broken) == (False, [], "")


def test_a_call_together_ends_when_everybody_leaves_the_group_phase() -> None:
    control, clock = FakeControl(), ManualClock()
    pace_of(control, clock).await_together(GROUPED, control.inside.clear, final=False)
    assert (control.called, control.members.evicted, control.broken) == (True, [], "")
