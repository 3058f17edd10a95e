"""What the manager enters next: the plan's stage or what a policy wants, asked of policies that a test writes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hybridsync.config import PolicyConfig, RunConfig
from hybridsync.interfaces.phase import Phase
from hybridsync.phases.machine import Begin, Regroup
from hybridsync.phases.policy_driver import Steering
from hybridsync.phases.schedule import Leg
from hybridsync.policies.actions import PLANNED, Action, Choice, Dealt, Instead, View, Without
from hybridsync.policies.straggler_detector import Judged
from hybridsync.training.run import Run
from tests.roles import phase_of
from tests.tasks import plain_sgd, tally_task
from tests.telemetry.clocks import ManualClock

WORKLOAD = 400
SERVERS = ("server:0",)


@dataclass
class Board:
    """What the chief would know."""

    live: tuple[int, ...] = (0, 1, 2, 3)
    num_applied: int = 0
    first: float = 1.0
    flagged: tuple[int, ...] = ()

    def live_workers(self) -> tuple[int, ...]:
        return self.live

    def stamps(self) -> tuple[float, float]:
        return self.first, self.first

    def stragglers(self) -> tuple[int, ...]:
        return self.flagged

    def judged(self) -> Judged:
        rates = {worker: 5.0 if worker in self.flagged else 20.0 for worker in range(4)}
        return Judged(self.flagged, rates, 18.0)


@dataclass
class Reporter:
    switch_pending: bool = False
    told: list[dict[str, Any]] = field(default_factory=list)
    asked: list[bool] = field(default_factory=list)

    def stalls(self, *, same_protocol: bool) -> tuple[float, ...]:
        self.asked.append(same_protocol)
        return (0.25,)

    def decided(self, **numbers: Any) -> None:
        self.told.append(numbers)


@dataclass
class Policy:
    """Wants what it is told to."""

    wants: Action = PLANNED
    why: str = ""
    name: str = "elastic"
    keeps_protocol: bool = True
    views: list[View] = field(default_factory=list)

    def decide(self, view: View) -> Choice:
        self.views.append(view)
        return Choice(self.wants, self.why, saved_secs=2.0, cost_secs=1.0)


class Desk:
    """A run of four workers that has begun."""

    def __init__(self, plan: str = "bsp:50%,asp", units: int = 0, shares: tuple[int, ...] = (), **more: Any) -> None:
        policy = PolicyConfig(shares=shares)
        config = RunConfig(workload=WORKLOAD, unit_size=1, workers=4, plan=plan, policy=policy)
        run = Run(config, tally_task(WORKLOAD), plain_sgd(1.0), None)
        self.board, self.reporter, self.policy, self.clock = Board(), Reporter(), Policy(), ManualClock()
        board: Any = self.board
        reporter: Any = self.reporter
        self.steering = Steering(run, board, reporter, self.policy, self.clock, **more)
        self.phase = self.enter(units)

    def enter(self, units: int) -> Phase:
        """Enter what is next at so many units."""
        self.board.num_applied, self.board.first = units, 1.0
        leg = self.steering.settle(units)
        served = leg.spec != "bsp"
        members = tuple(range(4)) if served else self.steering.members()
        self.phase = phase_of(1, leg.spec, members=members, end=leg.end_units, servers=SERVERS if served else ())
        return self.phase

    def look(self, units: int) -> Any:
        self.board.num_applied = units
        return self.steering.look(self.phase)


def test_a_policy_that_wants_what_is_leaves_everything_as_it_is():
    desk = Desk()
    assert desk.look(40) is None and desk.reporter.told == []
    assert (desk.phase.spec, desk.phase.members, desk.phase.end_units) == ("bsp", (0, 1, 2, 3), 200)


def test_other_members_regroup_and_another_protocol_is_a_switch():
    desk = Desk()
    desk.policy.wants = Without((2,))
    assert desk.look(40) == (Regroup(), "policy")
    assert desk.enter(44).members == (0, 1, 3) and desk.steering.left_out(desk.phase) == (2,)
    desk.policy.wants = Instead("asp")
    assert desk.look(60) == (Begin(), "policy")
    assert desk.enter(63).spec == "asp" and desk.phase.end_units == WORKLOAD
    desk.policy.wants = PLANNED
    assert desk.look(100) == (Begin(), "policy")
    phase = desk.enter(103)
    assert (phase.spec, phase.members, phase.end_units) == ("bsp", (0, 1, 2, 3), 240)


def test_nothing_is_asked_before_the_phase_has_begun_nor_while_a_switch_is_not_written():
    desk = Desk()
    desk.policy.wants = Without((2,))
    views = len(desk.policy.views)
    desk.board.first = 0.0
    assert desk.look(40) is None
    desk.board.first, desk.reporter.switch_pending = 1.0, True
    assert desk.look(40) is None and len(desk.policy.views) == views


def test_nothing_is_asked_in_a_stage_that_is_not_lock_step_or_is_over():
    desk = Desk("asp:50%,bsp")
    desk.policy.wants = Instead("asp")
    assert desk.look(40) is None and desk.policy.views == []
    desk = Desk()
    desk.policy.wants = Without((2,))
    assert desk.look(200) is None


def test_a_decision_that_comes_after_the_end_of_its_stage_changes_nothing():
    desk = Desk()
    desk.policy.wants = Instead("asp")
    assert desk.look(196) == (Begin(), "policy")
    desk.enter(200)
    assert desk.steering.course.detours == () and desk.steering.settle(200) == Leg("asp", WORKLOAD, 1)


def test_a_stage_that_begins_while_somebody_is_slow_begins_as_the_policy_wants():
    desk = Desk("asp:50%,bsp")
    desk.policy.wants = Without((1,))
    assert desk.enter(200).members == (0, 2, 3)


def test_a_run_that_ends_while_its_policy_is_asked_is_asked_about_as_it_was(monkeypatch: pytest.MonkeyPatch):
    """Workers report beside the manager's thread, so that the last unit may come between two looks at the board."""
    desk = Desk("bsp")

    def live_workers() -> tuple[int, ...]:
        desk.board.num_applied = WORKLOAD
        return desk.board.live

    monkeypatch.setattr(desk.board, "live_workers", live_workers)
    assert desk.look(396) is None and desk.policy.views[-1].units_left == 4


def test_who_is_here_by_now_joins_but_not_who_is_left_out():
    desk = Desk()
    desk.board.live = (0, 1, 3)
    desk.enter(20)
    desk.board.live = (0, 1, 2, 3)
    assert desk.look(40) == (Regroup(), "join")
    desk.policy.wants = Without((2,))
    desk.enter(44)
    assert desk.phase.members == (0, 1, 3) and desk.look(60) is None


def test_who_is_left_out_and_dies_is_another_one_when_it_is_back():
    desk = Desk()
    desk.policy.wants = Without((2,))
    desk.look(40)
    desk.enter(44)
    desk.board.live = (0, 1, 3)
    assert desk.look(60) is None, "the members stay the same"
    desk.board.live, desk.policy.wants = (0, 1, 2, 3), PLANNED
    assert desk.look(80) == (Regroup(), "join")


def test_lock_step_goes_on_with_whoever_is_left():
    desk = Desk()
    desk.policy.wants = Without((2,))
    desk.look(40)
    desk.board.live = (2,)
    assert desk.enter(44).members == (2,) and desk.steering.left_out(desk.phase) == ()


def test_a_policy_sees_what_was_measured_and_what_is_left():
    desk = Desk(detours=((20, 50),), units=60)
    desk.board.flagged = (3,)
    desk.clock.advance(5.0)
    now = desk.clock.monotonic()
    desk.look(80)
    view = desk.policy.views[-1]
    assert view == View(
        now=now,
        units_left=200 + 30 - 80,
        live=(0, 1, 2, 3),
        slow={3: now},
        rates={0: 20.0, 1: 20.0, 2: 20.0, 3: 5.0},
        switch_secs=(0.25,),
    )
    assert set(desk.reporter.asked) == {True}, "elastic changes members alone"
    desk.clock.advance(2.0)
    desk.board.flagged = ()
    desk.look(84)
    assert (desk.policy.views[-1].slow, desk.policy.views[-1].episodes) == ({}, (2.0,))


def test_a_decision_is_told_once_with_its_numbers_and_so_is_why_there_is_none():
    desk = Desk()
    desk.board.flagged, desk.policy.why = (2,), "too dear"
    for units in (40, 44, 48):
        assert desk.look(units) is None
    desk.policy.wants, desk.policy.why = Without((2,)), "worth it"
    desk.look(52)
    first, second = desk.reporter.told
    numbers = {"policy": "elastic", "threshold": 18.0, "expected_secs": None, "saved_secs": 2.0, "cost_secs": 1.0}
    rates = {"0": 20.0, "1": 20.0, "2": 5.0, "3": 20.0}
    who = {"workers": [2], "rates": rates}
    assert first == {**numbers, **who, "action": "stay", "why": "too dear", "units_left": 160}
    assert second == {**numbers, **who, "action": "without workers [2]", "why": "worth it", "units_left": 148}


def test_the_next_straggler_is_told_of_again():
    desk = Desk()
    for at, flagged in enumerate(((2,), (), (2,))):
        desk.board.flagged, desk.policy.why = flagged, "too dear" if flagged else ""
        desk.look(40 + at)
    assert [told["action"] for told in desk.reporter.told] == ["stay", "stay"]


@pytest.mark.parametrize("committed", [(), ((100, 110),)])
def test_a_restarted_chief_takes_a_detour_up_of_which_the_last_commit_did_not_tell(committed):
    """It was committed where it began, or during the detour."""
    desk = Desk(detours=committed, units=110)
    phase = replace(phase_of(4, "asp", end=WORKLOAD, servers=SERVERS), applied=((0, 100),))
    desk.steering.adopt(phase)
    desk.phase, desk.policy.wants = phase, PLANNED
    assert desk.look(150) == (Begin(), "policy")
    assert desk.enter(150).end_units == 250


def test_other_shares_regroup_and_hold_until_the_stage_is_done():
    desk = Desk()
    desk.policy.wants = Dealt(((0, 4), (1, 4), (2, 1), (3, 4)))
    assert desk.look(40) == (Regroup(), "policy")
    assert desk.steering.shares((0, 1, 2, 3)) == (), "they come with the next phase"
    phase = desk.enter(44)
    assert (phase.members, phase.end_units) == ((0, 1, 2, 3), 200)
    assert desk.steering.shares(phase.members) == (4, 4, 1, 4) and desk.steering.left_out(phase) == ()
    assert desk.look(60) is None
    desk.board.live = (0, 2)  # the others were lost
    assert desk.steering.members() == (0, 2) and desk.steering.shares((0, 2)) == (4, 1)
    desk.board.live = (0, 1, 2, 3)
    assert desk.enter(200).spec == "asp" and desk.steering.shares((0, 1, 2, 3)) == ()


def test_fixed_shares_are_those_of_the_members():
    desk = Desk(shares=(4, 1, 0, 2))
    assert desk.steering.shares((0, 1, 2, 3)) == (4, 1, 0, 2) and desk.steering.shares((1, 2)) == (1, 0)
    assert desk.steering.shares((2,)) == (), "who is left takes a unit"


def test_a_first_update_by_shares_waits_for_all_units_of_a_member():
    desk = Desk()
    desk.board.flagged = (2,)
    assert desk.steering.step_secs(replace(desk.phase, shares=(5, 1, 1, 1))) == pytest.approx(0.25)


def test_a_restarted_chief_takes_the_plans_own_stage_for_no_detour():
    desk = Desk()
    phase = replace(phase_of(4, "asp", end=WORKLOAD, servers=SERVERS), applied=((0, 200),))
    desk.steering.adopt(phase)
    assert desk.steering.course.since is None


def test_a_first_update_waits_for_the_slowest_member_or_for_the_fastest_worker():
    desk = Desk()
    desk.board.flagged = (2,)
    assert desk.steering.step_secs(desk.phase) == pytest.approx(0.2)
    assert desk.steering.step_secs(replace(desk.phase, members=(0, 1))) == pytest.approx(0.05)
    assert desk.steering.step_secs(replace(desk.phase, servers=SERVERS)) == pytest.approx(0.05)
