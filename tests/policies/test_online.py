"""What each online policy decides, by views set by hand; and that none of them ever wants what cannot be."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridsync.config.policy_config import PolicyConfig
from hybridsync.core.errors import ConfigError
from hybridsync.policies.actions import EPISODE_SECS, PLANNED, SWITCH_SECS, ExcludeWorkers, TemporaryProtocol, View
from hybridsync.policies.online import POLICIES, RETURN_UNITS, Baseline, Elastic, Greedy, policy_of

LIVE = tuple(range(8))


def view(slow: Mapping[int, float] | None = None, *, rates: Mapping[int, float] | None = None, **more: Any) -> View:
    """Return what is seen of eight workers of 20 units a second; `slow` -> its own rate, flagged at second 100."""
    slow = slow or {}
    known = {**dict.fromkeys(LIVE, 20.0), **slow, **(rates or {})}
    more = {"now": 100.0, "units_left": 4000, "live": LIVE, **more}
    return View(slow=dict.fromkeys(slow, 100.0), units_per_sec=known, **more)


def test_baseline_goes_on_as_planned_whatever_happens():
    assert Baseline().decide(view({1: 2.0, 3: 2.0})).action == PLANNED


@pytest.mark.parametrize("policy", [Greedy(), Elastic()])
def test_nobody_slow_is_nothing_to_decide(policy):
    choice = policy.decide(view())
    assert (choice.action, choice.why) == (PLANNED, "")


@pytest.mark.parametrize("policy", [Greedy(), Elastic()])
def test_a_straggler_that_is_gone_is_none(policy):
    assert policy.decide(view({7: 2.0}, live=LIVE[:-1])).action == PLANNED


@pytest.mark.parametrize("policy", [Greedy(), Elastic()])
def test_nothing_is_decided_before_anybody_was_measured(policy):
    unknown = View(now=1.0, units_left=100, live=LIVE, slow={3: 1.0}, units_per_sec={})
    assert policy.decide(unknown).action == PLANNED


# --- greedy ---


def test_greedy_goes_to_asynchrony_and_comes_back_when_nobody_is_slow():
    choice = Greedy().decide(view({3: 5.0}, detour="ssp"))
    assert choice.action == TemporaryProtocol("ssp") and choice.cost_secs == 2 * SWITCH_SECS
    assert choice.expected_secs == EPISODE_SECS
    # Eight workers in lock-step with one of 5 units a second do 40, alone they do 145 together.
    assert choice.saved_secs == pytest.approx(EPISODE_SECS * (1 - 40 / 145))
    back = Greedy().decide(view(holds=TemporaryProtocol("ssp")))
    assert (back.action, back.why) == (PLANNED, "no straggler is left")


def test_greedy_stays_away_while_somebody_is_slow_even_if_that_is_another_one():
    assert Greedy().decide(view({5: 19.0}, holds=TemporaryProtocol("asp"))).action == TemporaryProtocol("asp")


@pytest.mark.parametrize(
    ("episode", "switch", "goes"), [(0.9, 0.5, False), (20.0, 0.5, True), (20.0, 8.0, False), (1.0, 0.1, True)]
)
def test_greedy_stays_where_two_switches_cost_more_than_the_episode_is_expected_to(episode, switch, goes):
    choice = Greedy().decide(view({3: 5.0}, episodes=(episode, episode), switch_secs=(switch,)))
    assert (choice.action == TemporaryProtocol("asp")) == goes
    assert choice.expected_secs == episode and choice.cost_secs == pytest.approx(2 * switch)
    assert goes or choice.why == "two switches would cost more than asynchrony saves"


def test_an_episode_that_outlives_the_expected_ones_is_expected_to_go_on_as_long_again():
    short = view({3: 5.0}, episodes=(0.5,), switch_secs=(0.5,))
    assert Greedy().decide(short).action == PLANNED
    later = dataclasses.replace(short, now=105.0)
    assert later.expected_secs(EPISODE_SECS) == 5.0
    assert Greedy().decide(later).action == TemporaryProtocol("asp")


def test_greedy_stays_for_the_last_few_units_of_lock_step():
    assert Greedy().decide(view({3: 5.0}, units_left=40)).action == PLANNED


# --- elastic ---


def test_elastic_leaves_the_stragglers_out():
    choice = Elastic().decide(view({2: 5.0, 5: 5.0}))
    assert choice.action == ExcludeWorkers((2, 5)) and choice.why == "the others are faster"


def test_elastic_leaves_out_only_whom_the_others_are_faster_without():
    """Seven workers without one that does 18 of their 20 units do 140 units a second, eight with it 144."""
    choice = Elastic().decide(view({2: 5.0, 5: 18.0}))
    assert choice.action == ExcludeWorkers((2,))
    assert Elastic().decide(view({5: 18.0})).action == PLANNED


def test_elastic_stays_where_the_others_would_hardly_be_faster_and_says_so():
    choice = Elastic().decide(view({5: 17.0}))
    assert choice.action == PLANNED and choice.why == "the others would hardly be faster"


def test_elastic_stays_where_little_is_left_of_the_stage():
    choice = Elastic().decide(view({5: 5.0}, units_left=16))
    assert choice.action == PLANNED and choice.why == "the change would cost more than it saves"


def test_elastic_counts_how_long_the_straggler_is_expected_to_be_one():
    slow = view({2: 12.5, 5: 12.5}, switch_secs=(0.1,))
    assert Elastic().decide(slow).action == ExcludeWorkers((2, 5))
    short = Elastic().decide(dataclasses.replace(slow, episodes=(3.0, 2.0)))
    assert short.action == PLANNED and short.expected_secs == 2.5
    # Six workers do 120 units a second, eight 100: a second of it saves 20 of the 160 units of the healthy cluster.
    assert short.saved_secs == pytest.approx(2.5 * 20 / 160)
    assert short.cost_secs == pytest.approx(2 * 0.1 + RETURN_UNITS / 20 * (1 - 120 / 160))


def test_whoever_is_slow_to_the_end_of_the_stage_comes_back_for_nothing():
    choice = Elastic().decide(view({5: 5.0}, units_left=1600, episodes=(60.0,), switch_secs=(0.3,)))
    assert choice.action == ExcludeWorkers((5,)) and choice.cost_secs == 0.3


def test_elastic_calls_back_who_is_well_and_keeps_the_others_out():
    out = ExcludeWorkers((2, 5))
    choice = Elastic().decide(view({5: 5.0}, holds=out))
    assert choice.action == ExcludeWorkers((5,)) and choice.why == "workers [2] are well"
    assert Elastic().decide(view(holds=out)).action == PLANNED


def test_one_good_measure_of_a_straggler_does_not_call_it_back():
    assert Elastic().decide(view({5: 20.0}, holds=ExcludeWorkers((5,)))).action == ExcludeWorkers((5,))


def test_elastic_lets_who_is_well_wait_for_the_switch_where_calling_it_back_costs_more():
    choice = Elastic().decide(view(holds=ExcludeWorkers((5,)), units_left=200))
    assert choice.action == ExcludeWorkers((5,)) and choice.why == "the change would cost more than it saves"


def test_who_is_left_out_and_gone_is_forgotten_and_who_is_left_alone_goes_on():
    assert Elastic().decide(
        view(holds=ExcludeWorkers((5, 7)), live=LIVE[:-1], units_left=200)
    ).action == ExcludeWorkers((5,))
    assert Elastic().decide(view({7: 2.0}, holds=ExcludeWorkers((6, 7)), live=(6, 7))).action == ExcludeWorkers((7,))


@given(
    slow=st.dictionaries(st.sampled_from(LIVE), st.floats(0.1, 30.0)),
    live=st.sets(st.sampled_from(LIVE), min_size=1).map(sorted).map(tuple),
    out=st.sets(st.sampled_from(LIVE)).map(sorted).map(tuple),
    units_left=st.integers(1, 10_000),
    episodes=st.lists(st.floats(0.0, 100.0)).map(tuple),
    age=st.floats(0.0, 100.0),
)
def test_somebody_always_trains_and_nobody_is_left_out_who_is_not_slow(slow, live, out, units_left, episodes, age):
    holds = ExcludeWorkers(out) if out else PLANNED
    seen = view(slow, live=live, units_left=units_left, episodes=episodes, holds=holds, now=100.0 + age)
    action = Elastic().decide(seen).action
    left_out = action.workers if isinstance(action, ExcludeWorkers) else ()
    assert isinstance(action, ExcludeWorkers) or action == PLANNED
    assert set(live) - set(left_out), "nobody is left"
    assert set(left_out) <= set(live) & (set(slow) | set(out))
    settled = dataclasses.replace(seen, holds=action)
    assert Elastic().decide(settled).action == action, "it changes its mind at once"


# --- without a guard ---


PLAIN_GREEDY, PLAIN_ELASTIC = (policy_of(PolicyConfig(online=name, guard="off")) for name in ("greedy", "elastic"))


def test_without_a_guard_greedy_goes_over_for_any_straggler_and_comes_back_when_it_is_gone():
    costly = view({3: 19.9}, units_left=40, switch_secs=(100.0,))
    assert Greedy().decide(costly).action == PLANNED
    away = PLAIN_GREEDY.decide(costly)
    assert (away.action, away.why) == (TemporaryProtocol("asp"), "somebody is a straggler")
    assert PLAIN_GREEDY.decide(dataclasses.replace(costly, holds=away.action)).action == away.action
    back = PLAIN_GREEDY.decide(view(holds=away.action))
    assert (back.action, back.why) == (PLANNED, "no straggler is left")
    assert PLAIN_GREEDY.decide(view()).why == ""


def test_without_a_guard_elastic_leaves_out_any_straggler_up_to_the_planned_switch():
    costly = view({3: 19.9}, units_left=40, switch_secs=(100.0,))
    assert Elastic().decide(costly).action == PLANNED
    out = PLAIN_ELASTIC.decide(costly).action
    assert out == ExcludeWorkers((3,))
    assert PLAIN_ELASTIC.decide(view(holds=out, units_left=4000)).action == out, "well again, it stays out"
    assert PLAIN_ELASTIC.decide(view({5: 5.0}, holds=out)).action == ExcludeWorkers((3, 5))


def test_without_a_guard_somebody_trains_all_the_same():
    everybody = dict.fromkeys(LIVE, 5.0)
    assert PLAIN_ELASTIC.decide(view(everybody)).action == PLANNED
    out = ExcludeWorkers((3,))
    assert PLAIN_ELASTIC.decide(view(everybody, holds=out)).action == out
    assert PLAIN_ELASTIC.decide(view({3: 5.0}, live=(3,), holds=out)).action == PLANNED


@pytest.mark.parametrize("online", ["baseline", "rebalance"])
def test_a_policy_that_has_no_form_without_a_guard_refuses_to_be_without_one(online):
    with pytest.raises(ConfigError, match=f"policy.guard is 'off', but policy.online is '{online}'"):
        PolicyConfig(online=online, guard="off")


# --- episodes ---


def test_every_policy_that_a_configuration_may_name_is_there():
    names = get_args(PolicyConfig.__annotations__["online"])
    assert tuple(POLICIES) == names
    assert [policy_of(PolicyConfig(online=name)).name for name in names] == [*names]
