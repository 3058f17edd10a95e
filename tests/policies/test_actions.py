"""What a policy is shown, counted from what was measured; how actions are told; how long episodes last."""

from __future__ import annotations

import dataclasses

import pytest

from hybridsync.policies.actions import (
    PLANNED,
    SWITCH_SECS,
    Action,
    Episodes,
    ExcludeWorkers,
    TemporaryProtocol,
    View,
    WeightedShares,
)

VIEW = View(now=100.0, units_left=400, live=(0, 1, 2, 3), slow={3: 95.0}, units_per_sec={0: 20.0, 1: 30.0, 3: 5.0})


@pytest.mark.parametrize(
    ("action", "name"),
    [
        (PLANNED, "as planned"),
        (ExcludeWorkers((1, 3)), "without workers [1, 3]"),
        (TemporaryProtocol("ssp(staleness=2)"), "ssp(staleness=2) instead"),
        (WeightedShares(((0, 4), (1, 1), (2, 4))), "a step of 4 for [0, 2], 1 for [1]"),
    ],
)
def test_an_action_is_told_in_words(action: Action, name: str):
    assert action.name == name


def test_who_came_later_than_the_shares_takes_one_unit():
    assert WeightedShares(((0, 4), (2, 1))).of((0, 1, 2)) == (4, 1, 1)


def test_who_was_not_measured_is_taken_for_as_fast_as_those_who_are_well():
    assert VIEW.usual_units_per_sec == 25.0 and VIEW.units_per_sec_of(2) == 25.0 and VIEW.units_per_sec_of(3) == 5.0
    assert VIEW.lock_step_units_per_sec((0, 1, 2)) == 60.0 and VIEW.lock_step_units_per_sec((0, 1, 2, 3)) == 20.0


def test_the_usual_rate_is_everybodys_where_nobody_is_well_and_none_before_any_measure():
    assert dataclasses.replace(VIEW, slow=dict.fromkeys(range(4), 95.0)).usual_units_per_sec == 20.0
    blind = dataclasses.replace(VIEW, units_per_sec={})
    assert blind.usual_units_per_sec == blind.lock_step_units_per_sec(blind.live) == 0.0


def test_a_switch_costs_what_those_of_this_run_did_in_the_mean():
    assert VIEW.cost_secs == SWITCH_SECS
    assert dataclasses.replace(VIEW, switch_secs=(0.25, 0.75, 2.0)).cost_secs == 1.0


@pytest.mark.parametrize(
    ("since", "episodes", "expected"),
    [(95.0, (), 15.0), (95.0, (6.0, 8.0), 5.0), (99.0, (6.0, 8.0), 6.0), (70.0, (), 30.0), (100.0, (6.0,), 6.0)],
)
def test_an_episode_lasts_as_long_as_others_did_or_again_as_long_as_it_has(since, episodes, expected):
    view = dataclasses.replace(VIEW, slow={3: since}, episodes=episodes)
    assert view.expected_secs(20.0) == expected


def test_an_episode_lasts_from_the_first_flag_to_the_last_clearing():
    episodes = Episodes()
    for now, flagged in ((0.0, ()), (1.0, (3,)), (2.0, (3, 4)), (4.0, (4,)), (7.0, ()), (8.0, ()), (9.0, (4,))):
        episodes.record(flagged, now)
    assert episodes.lengths == (6.0,) and episodes.slow == {4: 9.0}
