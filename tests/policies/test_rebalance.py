"""When a step's units are dealt out by speed, and when they are left as they are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridsync.config import PolicyConfig
from hybridsync.policies.actions import PLANNED, View, WeightedShares
from hybridsync.policies.online import Rebalance, policy_of
from hybridsync.policies.step_shares import units_per_sec


def view(*rates: float, slow: tuple[int, ...] = (), **fields: Any) -> View:
    live = fields.pop("live", tuple(range(len(rates))))
    fields = {"now": 50.0, "units_left": 10_000, "switch_secs": (0.5,), **fields}
    return View(live=live, slow=dict.fromkeys(slow, 40.0), units_per_sec=dict(enumerate(rates)), **fields)


def dealt(*units: int) -> WeightedShares:
    return WeightedShares(tuple(enumerate(units)))


def test_units_are_dealt_out_by_speed_while_there_is_a_straggler():
    choice = Rebalance(prior_secs=20.0).decide(view(20, 20, 5, 20, slow=(2,)))
    assert choice.action == dealt(4, 4, 1, 4)
    assert choice.why and choice.expected_secs == pytest.approx(10.0), "it has lasted for ten seconds"
    assert choice.saved_secs == pytest.approx(10.0 * (65 - 20) / 80)
    late = 50 * 4 / 20 * (1 - 65 / 80)
    assert choice.cost_secs == pytest.approx(2 * 0.5 + late), "there, and back when it is well again"
    assert choice.action.name == "a step of 4 for [0, 1, 3], 1 for [2]"
    assert isinstance(choice.action, WeightedShares)
    assert choice.action.of((2, 3, 7)) == (1, 4, 1), "who came later takes one"


def test_healthy_scatter_deals_nothing_out_whatever_the_rates():
    assert Rebalance().decide(view(20, 26, 17, 20)).action == PLANNED
    assert Rebalance().decide(view(20, 26, 17, 20, slow=(9,))).action == PLANNED, "a straggler that is gone"


def test_a_straggler_that_is_soon_well_is_borne():
    choice = Rebalance().decide(view(20, 20, 5, 20, slow=(2,), now=41.0, episodes=(2.0, 2.0)))
    assert choice.action == PLANNED and "cost more" in choice.why


def test_everybody_has_one_unit_again_when_no_straggler_is_left():
    choice = Rebalance().decide(view(20, 20, 19, 20, holds=dealt(4, 4, 1, 4)))
    assert (choice.action, choice.why) == (PLANNED, "no straggler is left")
    ending = view(20, 20, 19, 20, holds=dealt(4, 4, 1, 4), units_left=40)
    assert Rebalance().decide(ending).action == ending.holds, "hardly anything is left"


def test_what_is_not_measured_yet_counts_as_the_median_and_without_any_rate_nothing_changes():
    found = Rebalance().decide(view(20, 20, 5, slow=(2,), live=(0, 1, 2, 3)))
    assert found.action == dealt(4, 4, 1, 4)
    assert Rebalance().decide(view(slow=(1,), live=(0, 1))).action == PLANNED


def test_a_new_worker_counts_as_one_of_those_who_are_well_though_half_of_the_measured_are_slow():
    assert Rebalance().decide(view(20, 5, slow=(1,), live=(0, 1, 2))).action == dealt(4, 1, 4)


def test_the_scatter_of_healthy_workers_costs_nobody_a_unit_and_devices_that_differ_do():
    assert Rebalance().decide(view(20, 19, 21.5, 5, slow=(3,))).action == dealt(4, 4, 4, 1)
    assert Rebalance().decide(view(20, 10, 20, 5, slow=(3,))).action == dealt(4, 2, 4, 1)


def test_nobody_is_left_without_a_unit_however_slow_it_is():
    action = Rebalance(most=4).decide(view(*[20] * 7, 0.1, slow=(7,), now=1000.0)).action
    assert action == dealt(4, 4, 4, 4, 4, 4, 4, 1)


def test_a_change_that_saves_less_than_it_costs_is_not_made_and_says_so():
    choice = Rebalance().decide(view(20, 20, 5, 20, slow=(2,), units_left=10))
    assert choice.action == PLANNED and "cost more" in choice.why


def test_rates_that_scatter_do_not_change_shares_and_rates_that_changed_do():
    policy, held = Rebalance(), dealt(4, 4, 1, 4)
    for slow in (4.8, 5.2, 5.4):
        assert policy.decide(view(20, 19.5, slow, 20.4, slow=(2,), holds=held)).action == held
    assert policy.decide(view(20, 20, 10, 20, slow=(2,), holds=held)).action == dealt(2, 2, 1, 2), "as fast, smaller"
    worse = policy.decide(view(20, 5, 5, 20, slow=(1, 2), holds=held))
    assert worse.action == dealt(4, 1, 1, 4)


@given(st.lists(st.floats(1.0, 100.0), min_size=2, max_size=8), st.integers(1, 6))
def test_what_was_chosen_by_some_rates_is_not_left_by_the_same(rates, most):
    """Nothing flaps while the rates stay: the second answer is the first."""
    policy, slow = Rebalance(most), (min(range(len(rates)), key=rates.__getitem__),)
    first = policy.decide(view(*rates, slow=slow)).action
    assert policy.decide(view(*rates, slow=slow, holds=first)).action == first
    if isinstance(first, WeightedShares):
        secs = [1.0 / rate for rate in rates]
        live = tuple(range(len(rates)))
        assert units_per_sec(first.of(live), secs) > units_per_sec((1,) * len(rates), secs)
        assert min(first.of(live)) >= 1 and max(first.of(live)) <= most


def test_the_configuration_names_it_and_how_many_units_it_may_deal():
    assert policy_of(PolicyConfig(online="rebalance", most_units=6)) == Rebalance(6)
    assert PolicyConfig(online="rebalance").assigns_several and PolicyConfig(shares=(1, 2)).assigns_several
    assert not PolicyConfig(shares=(1, 0)).assigns_several and not PolicyConfig().assigns_several
