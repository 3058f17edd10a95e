"""Where a run is on its plan, with the detours that it has made."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridsync.config import PolicyConfig, RunConfig
from hybridsync.phases.schedule import DETOUR, Segment, StageSchedule, StageSpan, rescaled, resumed

BSP, ASP = StageSpan("bsp", 400, lock_step=True), StageSpan("asp", 1000, asynchronous=True)
PLAN = StageSchedule((BSP, ASP))


def test_without_detours_the_stages_are_the_plans():
    assert PLAN.at(0) == PLAN.at(399) == Segment("bsp", 400, 0)
    assert PLAN.at(400) == PLAN.at(999) == Segment("asp", 1000, 1)


def test_a_run_that_is_done_is_in_its_last_stage():
    assert PLAN.stage(1000) == 1
    assert PLAN.begin_detour(900).end_stage_early(1000).stage(1000) == 1


def test_the_units_of_a_detour_count_towards_asynchrony_and_lock_step_is_made_up_for():
    away = PLAN.begin_detour(100)
    assert away.at(100) == away.at(700) == Segment("asp", 1000, 0, detour=True)
    back = away.end_detour(250)
    assert back.at(250) == Segment("bsp", 550, 0) and back.at(550) == Segment("asp", 1000, 1)
    again = back.begin_detour(300).end_detour(350)
    assert again.detours == ((100, 250), (300, 350)) and again.at(350) == Segment("bsp", 600, 0)


def test_a_detour_that_uses_all_of_asynchrony_up_leaves_the_rest_to_lock_step():
    assert PLAN.begin_detour(100).end_detour(900).at(900) == Segment("bsp", 1000, 0)


def test_a_detour_that_goes_on_takes_what_the_next_stage_would_have_been():
    schedule = StageSchedule((BSP, StageSpan("ssp", 1000, asynchronous=True), StageSpan("bsp", 1500, lock_step=True)))
    away = schedule.begin_detour(100)
    assert away.at(500) == Segment("ssp", 1000, 0, detour=True)
    assert away.at(1000) == Segment("bsp", 1500, 2), "the detour was one of another stage"


@pytest.mark.parametrize("after", [(), (StageSpan("bsp(scaling=sqrt)", 800, True),), (StageSpan("preduce", 800),)])
def test_where_no_asynchronous_stage_follows_the_end_stays_and_the_detour_is_asp(after):
    schedule = StageSchedule((BSP, *after)).begin_detour(100)
    assert schedule.at(100) == Segment(DETOUR, 400, 0, detour=True)
    assert schedule.end_detour(300).at(300) == Segment("bsp", 400, 0)


def test_a_detour_is_no_matter_of_a_stage_that_is_not_lock_step():
    assert PLAN.begin_detour(600).at(600) == Segment("asp", 1000, 1)


def test_a_run_that_is_set_back_forgets_what_came_after():
    schedule = PLAN.begin_detour(100).end_detour(250).begin_detour(300)
    assert schedule.rolled_back(200) == StageSchedule(PLAN.spans, ((100, 200),), 200)
    assert schedule.rolled_back(50) == StageSchedule(PLAN.spans, (), 50)


def test_a_checkpoint_keeps_the_detours_up_to_it():
    schedule = PLAN.begin_detour(100).end_detour(250).begin_detour(300)
    assert schedule.saved_detours(320) == ((100, 250), (300, 320)) and schedule.saved_detours(300) == ((100, 250),)
    assert PLAN.with_saved_detours(schedule.saved_detours(320)).at(320) == Segment("bsp", 570, 0)


def test_a_detour_of_less_than_a_unit_of_another_size_is_no_early_end():
    told = rescaled([[100, 103], [200, 280], [320, 320]], lambda units: -(-units // 8))
    assert told == ((25, 35), (40, 40))


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), max_size=12))
def test_lock_step_does_its_share_and_the_workload_stays(spans: list[tuple[int, int]]):
    """Alternate lock-step and detours; then go on as planned to the end."""
    schedule, units, lock_step = PLAN, 0, 0
    for inside, outside in spans:
        segment = schedule.at(units)
        if segment.stage == 1:
            break
        done = min(inside, segment.end_units - units)
        units, lock_step = units + done, lock_step + done
        if units < 1000 and schedule.at(units).stage == 0:
            schedule = schedule.begin_detour(units)
            units = min(units + outside, schedule.at(units).end_units)
            schedule = schedule.end_detour(units)
    while units < 1000:
        segment = schedule.at(units)
        lock_step += (segment.end_units - units) * (segment.spec == "bsp")
        assert units < segment.end_units <= 1000
        units = segment.end_units
    detoured = sum(stop - start for start, stop in schedule.detours)
    assert lock_step == min(400, 1000 - detoured)


def test_a_lock_step_stage_that_ended_early_does_not_come_back():
    early = PLAN.begin_detour(100).end_detour(250).end_stage_early(300)
    assert early.at(300).spec == early.at(400).spec == "asp" and early.at(300).stage == 1
    assert early.saved_detours(400) == ((100, 250), (300, 300)) and early.saved_detours(299) == ((100, 250),)
    assert PLAN.with_saved_detours(early.saved_detours(400)) == early
    assert early.rolled_back(299).at(299).spec == "bsp"


def test_a_lock_step_stage_that_nothing_asynchronous_follows_does_not_end_early():
    last = StageSchedule((StageSpan("bsp", 400, lock_step=True),))
    assert last.end_stage_early(100) == last


BEFORE = {"plan": "bsp:40%,asp", "workload": 1000}
TOLD = ((100, 150), (300, 300))


@pytest.mark.parametrize(
    ("plan", "trigger", "stays"),
    [
        ("bsp:40%,asp", "knee", True),
        ("bsp:40%,asp:60%", "knee", True),  # written otherwise
        ("bsp:40%,ssp:30%,asp", "knee", True),  # another protocol behind it
        ("bsp:40%,asp", "off", False),
        ("bsp:50%,asp", "knee", False),  # another share of lock-step
        ("bsp:20%,asp:10%,bsp:30%,asp", "knee", False),
        ("asp:10%,bsp:30%,asp", "knee", False),
    ],
)
def test_an_early_end_stays_while_the_trigger_is_on_and_the_plan_says_the_same_up_to_it(
    plan: str, trigger: Any, stays: bool
):
    config = RunConfig(workload=1000, plan=plan, policy=PolicyConfig(trigger=trigger))
    assert resumed(TOLD, BEFORE, config) == (TOLD if stays else TOLD[:1])


@pytest.mark.parametrize(("plan", "stays"), [("bsp:40%,ssp:30%,asp", True), ("bsp:50%,asp", False)])
def test_an_early_end_that_a_detour_has_moved_into_the_next_share_is_still_one_of_lock_step(plan: str, stays: bool):
    told = ((100, 350), (600, 600))
    assert PLAN.with_saved_detours(told).at(599).stage == 0 and PLAN.with_saved_detours(told).at(600).stage == 1
    config = RunConfig(workload=1000, plan=plan, policy=PolicyConfig(trigger="knee"))
    assert resumed(told, BEFORE, config) == (told if stays else told[:1])


def test_an_early_end_that_detours_have_moved_to_the_end_of_the_workload_is_still_one_of_lock_step():
    config = RunConfig(workload=1000, plan=BEFORE["plan"], policy=PolicyConfig(trigger="knee"))
    assert resumed([(100, 700), (1000, 1000)], BEFORE, config) == ((100, 700), (1000, 1000))


def test_an_early_end_is_told_from_the_plan_in_units_of_its_own_size():
    config = RunConfig(workload=125, unit_size=256, plan="bsp:40%,asp", policy=PolicyConfig(trigger="knee"))
    assert resumed(TOLD, BEFORE, config) == TOLD
