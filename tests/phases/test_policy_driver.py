"""What the controller enters next: the plan's stage or what a policy wants, asked of policies that a test writes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hybridsync.chief.user_commands import Orders
from hybridsync.config import PolicyConfig, RunConfig
from hybridsync.interfaces.phase import Phase
from hybridsync.phases.policy_driver import PolicyDriver
from hybridsync.phases.schedule import Segment
from hybridsync.phases.state_machine import EndPhase, Regroup
from hybridsync.policies.actions import PLANNED, Action, Choice, ExcludeWorkers, TemporaryProtocol, View, WeightedShares
from hybridsync.policies.straggler_detector import Judged
from hybridsync.training.run import Run
from tests.phases.contexts import ChiefDouble
from tests.roles import phase_of
from tests.tasks import plain_sgd, tally_task
from tests.telemetry.clocks import ManualClock

WORKLOAD = 400
SERVERS = ("server:0",)


@dataclass
class FakeMembers:
    """Who would be there."""

    live: tuple[int, ...] = (0, 1, 2, 3)

    @property
    def workers(self) -> Any:
        return self

    def ids(self) -> tuple[int, ...]:
        return self.live


@dataclass
class FakeControl(ChiefDouble):
    """What the chief would know."""

    members: FakeMembers = field(default_factory=FakeMembers)
    num_applied: int = 0
    first: float = 1.0
    flagged: tuple[int, ...] = ()
    orders: Orders = field(default_factory=Orders)

    def first_and_last(self) -> tuple[float, float]:
        return self.first, self.first

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

    def take_losses(self) -> tuple[float, int]:
        return 0.0, 0

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


class Harness:
    """A run of four workers that has begun."""

    def __init__(
        self, plan: str = "bsp:50%,asp", units: int = 0, shares: tuple[int, ...] = (), trigger: Any = "off", **more: Any
    ) -> None:
        policy = PolicyConfig(shares=shares, trigger=trigger)
        config = RunConfig(workload=WORKLOAD, unit_size=1, workers=4, plan=plan, policy=policy)
        run = Run(config, tally_task(WORKLOAD), plain_sgd(1.0), None)
        self.control, self.reporter, self.policy, self.clock = FakeControl(), Reporter(), Policy(), ManualClock()
        control: Any = self.control
        reporter: Any = self.reporter
        self.policy_driver = PolicyDriver(run, control, reporter, self.policy, self.clock, **more)
        self.phase = self.enter(units)

    def enter(self, units: int) -> Phase:
        """Enter what is next at so many units."""
        self.control.num_applied, self.control.first = units, 1.0
        segment = self.policy_driver.next_segment(units)
        served = segment.spec != "bsp"
        members = tuple(range(4)) if served else self.policy_driver.members()
        phase = phase_of(1, segment.spec, members=members, end=segment.end_units, servers=SERVERS if served else ())
        self.phase = replace(phase, order=segment.order)
        return self.phase

    def look(self, units: int) -> Any:
        self.control.num_applied = units
        return self.policy_driver.change_of(self.phase)


def test_a_policy_that_wants_what_is_leaves_everything_as_it_is():
    harness = Harness()
    assert harness.look(40) is None and harness.reporter.told == []
    assert (harness.phase.spec, harness.phase.members, harness.phase.end_units) == ("bsp", (0, 1, 2, 3), 200)


def test_other_members_regroup_and_another_protocol_is_a_switch():
    harness = Harness()
    harness.policy.wants = ExcludeWorkers((2,))
    assert harness.look(40) == (Regroup(), "policy")
    assert harness.enter(44).members == (0, 1, 3) and harness.policy_driver.left_out(harness.phase) == (2,)
    harness.policy.wants = TemporaryProtocol("asp")
    assert harness.look(60) == (EndPhase(), "policy")
    assert harness.enter(63).spec == "asp" and harness.phase.end_units == WORKLOAD
    harness.policy.wants = PLANNED
    assert harness.look(100) == (EndPhase(), "policy")
    phase = harness.enter(103)
    assert (phase.spec, phase.members, phase.end_units) == ("bsp", (0, 1, 2, 3), 240)


def test_nothing_is_asked_before_the_phase_has_begun_nor_while_a_switch_is_not_written():
    harness = Harness()
    harness.policy.wants = ExcludeWorkers((2,))
    views = len(harness.policy.views)
    harness.control.first = 0.0
    assert harness.look(40) is None
    harness.control.first, harness.reporter.switch_pending = 1.0, True
    assert harness.look(40) is None and len(harness.policy.views) == views


def test_nothing_is_asked_in_a_stage_that_is_not_lock_step_or_is_over():
    harness = Harness("asp:50%,bsp")
    harness.policy.wants = TemporaryProtocol("asp")
    assert harness.look(40) is None and harness.policy.views == []
    harness = Harness()
    harness.policy.wants = ExcludeWorkers((2,))
    assert harness.look(200) is None


def test_a_decision_that_comes_after_the_end_of_its_stage_changes_nothing():
    harness = Harness()
    harness.policy.wants = TemporaryProtocol("asp")
    assert harness.look(196) == (EndPhase(), "policy")
    harness.enter(200)
    assert harness.policy_driver.schedule.detours == () and harness.policy_driver.next_segment(200) == Segment(
        "asp", WORKLOAD, 1
    )


def test_a_stage_that_begins_while_somebody_is_slow_begins_as_the_policy_wants():
    harness = Harness("asp:50%,bsp")
    harness.policy.wants = ExcludeWorkers((1,))
    assert harness.enter(200).members == (0, 2, 3)


def test_a_run_that_ends_while_its_policy_is_asked_is_asked_about_as_it_was(monkeypatch: pytest.MonkeyPatch):
    """Workers report beside the controller's thread, so that the last unit may come between two looks at the chief."""
    harness = Harness("bsp")

    def ids() -> tuple[int, ...]:
        harness.control.num_applied = WORKLOAD
        return harness.control.members.live

    monkeypatch.setattr(harness.control.members, "ids", ids)
    assert harness.look(396) is None and harness.policy.views[-1].units_left == 4


def test_who_is_here_by_now_joins_but_not_who_is_left_out():
    harness = Harness()
    harness.control.members.live = (0, 1, 3)
    harness.enter(20)
    harness.control.members.live = (0, 1, 2, 3)
    assert harness.look(40) == (Regroup(), "join")
    harness.policy.wants = ExcludeWorkers((2,))
    harness.enter(44)
    assert harness.phase.members == (0, 1, 3) and harness.look(60) is None


def test_who_is_left_out_and_dies_is_another_one_when_it_is_back():
    harness = Harness()
    harness.policy.wants = ExcludeWorkers((2,))
    harness.look(40)
    harness.enter(44)
    harness.control.members.live = (0, 1, 3)
    assert harness.look(60) is None, "the members stay the same"
    harness.control.members.live, harness.policy.wants = (0, 1, 2, 3), PLANNED
    assert harness.look(80) == (Regroup(), "join")


def test_lock_step_goes_on_with_whoever_is_left():
    harness = Harness()
    harness.policy.wants = ExcludeWorkers((2,))
    harness.look(40)
    harness.control.members.live = (2,)
    assert harness.enter(44).members == (2,) and harness.policy_driver.left_out(harness.phase) == ()


def test_a_policy_sees_what_was_measured_and_what_is_left():
    harness = Harness(detours=((20, 50),), units=60)
    harness.control.flagged = (3,)
    harness.clock.advance(5.0)
    now = harness.clock.monotonic()
    harness.look(80)
    view = harness.policy.views[-1]
    assert view == View(
        now=now,
        units_left=200 + 30 - 80,
        live=(0, 1, 2, 3),
        slow={3: now},
        units_per_sec={0: 20.0, 1: 20.0, 2: 20.0, 3: 5.0},
        switch_secs=(0.25,),
    )
    assert set(harness.reporter.asked) == {True}, "elastic changes members alone"
    harness.clock.advance(2.0)
    harness.control.flagged = ()
    harness.look(84)
    assert (harness.policy.views[-1].slow, harness.policy.views[-1].episodes) == ({}, (2.0,))


def test_a_decision_is_told_once_with_its_numbers_and_so_is_why_there_is_none():
    harness = Harness()
    harness.control.flagged, harness.policy.why = (2,), "too dear"
    for units in (40, 44, 48):
        assert harness.look(units) is None
    harness.policy.wants, harness.policy.why = ExcludeWorkers((2,)), "worth it"
    harness.look(52)
    first, second = harness.reporter.told
    numbers = {"policy": "elastic", "threshold": 18.0, "expected_secs": None, "saved_secs": 2.0, "cost_secs": 1.0}
    rates = {"0": 20.0, "1": 20.0, "2": 5.0, "3": 20.0}
    who = {"workers": [2], "rates": rates}
    assert first == {**numbers, **who, "action": "stay", "why": "too dear", "units_left": 160}
    assert second == {**numbers, **who, "action": "without workers [2]", "why": "worth it", "units_left": 148}


def test_the_next_straggler_is_told_of_again():
    harness = Harness()
    for at, flagged in enumerate(((2,), (), (2,))):
        harness.control.flagged, harness.policy.why = flagged, "too dear" if flagged else ""
        harness.look(40 + at)
    assert [told["action"] for told in harness.reporter.told] == ["stay", "stay"]


@pytest.mark.parametrize("committed", [(), ((100, 110),)])
def test_a_restarted_chief_takes_a_detour_up_of_which_the_last_commit_did_not_tell(committed):
    """It was committed where it began, or during the detour."""
    harness = Harness(detours=committed, units=110)
    phase = replace(phase_of(4, "asp", end=WORKLOAD, servers=SERVERS), applied=((0, 100),))
    harness.policy_driver.adopt(phase)
    harness.phase, harness.policy.wants = phase, PLANNED
    assert harness.look(150) == (EndPhase(), "policy")
    assert harness.enter(150).end_units == 250


def test_other_shares_regroup_and_hold_until_the_stage_is_done():
    harness = Harness()
    harness.policy.wants = WeightedShares(((0, 4), (1, 4), (2, 1), (3, 4)))
    assert harness.look(40) == (Regroup(), "policy")
    assert harness.policy_driver.shares((0, 1, 2, 3)) == (), "they come with the next phase"
    phase = harness.enter(44)
    assert (phase.members, phase.end_units) == ((0, 1, 2, 3), 200)
    assert harness.policy_driver.shares(phase.members) == (4, 4, 1, 4) and harness.policy_driver.left_out(phase) == ()
    assert harness.look(60) is None
    harness.control.members.live = (0, 2)  # the others were lost
    assert harness.policy_driver.members() == (0, 2) and harness.policy_driver.shares((0, 2)) == (4, 1)
    harness.control.members.live = (0, 1, 2, 3)
    assert harness.enter(200).spec == "asp" and harness.policy_driver.shares((0, 1, 2, 3)) == ()


def test_fixed_shares_are_those_of_the_members():
    harness = Harness(shares=(4, 1, 0, 2))
    assert harness.policy_driver.shares((0, 1, 2, 3)) == (4, 1, 0, 2) and harness.policy_driver.shares((1, 2)) == (1, 0)
    assert harness.policy_driver.shares((2,)) == (), "who is left takes a unit"


def test_a_first_update_by_shares_waits_for_all_units_of_a_member():
    harness = Harness()
    harness.control.flagged = (2,)
    assert harness.policy_driver.step_secs(replace(harness.phase, shares=(5, 1, 1, 1))) == pytest.approx(0.25)


def test_a_restarted_chief_takes_the_plans_own_stage_for_no_detour():
    harness = Harness()
    phase = replace(phase_of(4, "asp", end=WORKLOAD, servers=SERVERS), applied=((0, 200),))
    harness.policy_driver.adopt(phase)
    assert harness.policy_driver.schedule.since is None


def test_a_first_update_waits_for_the_slowest_member_or_for_the_fastest_worker():
    harness = Harness()
    harness.control.flagged = (2,)
    assert harness.policy_driver.step_secs(harness.phase) == pytest.approx(0.2)
    assert harness.policy_driver.step_secs(replace(harness.phase, members=(0, 1))) == pytest.approx(0.05)
    assert harness.policy_driver.step_secs(replace(harness.phase, servers=SERVERS)) == pytest.approx(0.05)
