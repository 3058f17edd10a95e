"""Drawn schedules with faults: whatever happens, the accounts are exact and the run ends by itself."""

from __future__ import annotations

import dataclasses
import random

import pytest

from hybridsync import protocols
from hybridsync.config import PolicyConfig
from hybridsync.lab.simulator.cluster import Cluster, Costs, Death, Device, Link, Scenario
from hybridsync.lab.testing.checks import Violation, replay
from hybridsync.lab.testing.schedules import GROUP_PLANS, PLANS, Schedule, draw, plans_of
from hybridsync.lab.testing.trials import Outcome, try_schedule
from hybridsync.protocols.modes import SERVER
from hybridsync.storage.apply_log_entries import Entry
from tests.lab.testing.drawn_schedules import COMMAND, main, runs, try_seed
from tests.roles import phase_of
from tests.sweeps import swept

SEEDS = 1000
PARTS = 10
GROUP_SEEDS = 150
ONLINE_SEEDS = 100
SLOW = Link(1e-4, 1e6)
OTHERS = [
    *(name for name, cls in sorted(protocols.REGISTRY.items()) if cls.mode is SERVER and name != "asp"),
    *("backup(m=1)", "hsp(rho=0.0,stale=2)", "gba(staleness_rule=rate)", "asp(staleness_rule=dc_adaptive)"),
    "gba(batch=16)",
]


@pytest.mark.parametrize("part", swept(range(PARTS)))
def test_whatever_happens_the_accounts_are_exact_and_the_run_ends(part):
    for seed in range(part, SEEDS, PARTS):
        try:
            try_seed(seed)
        except AssertionError as violation:
            violation.add_note(f"see it again: {COMMAND.format(seed)}")
            raise


@pytest.mark.parametrize("part", swept(range(PARTS)))
def test_whatever_a_policy_wants_besides_the_accounts_are_exact_and_the_run_ends(part):
    for seed in range(part, ONLINE_SEEDS, PARTS):
        try:
            try_seed(seed, online=True)
        except AssertionError as violation:
            violation.add_note(f"see it again: {COMMAND.format(seed)} --online")
            raise


def test_a_restless_policy_leaves_out_comes_back_and_detours():
    found = [try_seed(seed, ("bsp:70%,asp",), online=True).num_phases for seed in range(6)]
    planned = [try_seed(seed, ("bsp:70%,asp",)).num_phases for seed in range(6)]
    assert sum(found) > 2 * sum(planned)


@pytest.mark.parametrize("protocol", OTHERS)
@pytest.mark.parametrize("seeds", swept([range(5000, 5008), range(5008, 5025)]), ids=str)
def test_the_same_faults_break_no_other_protocol_of_the_server_path(protocol, seeds):
    for seed in seeds:
        try:
            try_seed(seed, plans_of(protocol))
        except AssertionError as violation:
            violation.add_note(f"see it again: {COMMAND.format(seed)} --protocol={protocol}")
            raise


@pytest.mark.parametrize("name", ["localsgd(steps=3)", "diloco(steps=3)", "psplus"])
@pytest.mark.parametrize("seeds", swept([range(15), range(15, 60)]), ids=str)
def test_whatever_happens_the_log_leads_to_the_state_of_workers_that_stepped_by_themselves(name, seeds):
    for seed in seeds:
        try:
            try_seed(seed, plans_of(name))
        except AssertionError as violation:
            violation.add_note(f"see it again: {COMMAND.format(seed)} --protocol={name}")
            raise


@pytest.mark.parametrize("part", swept(range(4)))
def test_whatever_happens_to_members_with_shares_the_accounts_are_exact(part):
    """Some take no unit of a step; after deaths there may be nobody left who takes one."""

    def run_of(schedule):
        rng, run = random.Random(schedule.seed), runs()(schedule)
        shares = tuple(rng.choice((0, 1, 1, 2, 4)) for _ in range(schedule.workers))
        policy = PolicyConfig(shares=shares if any(shares) else ())
        return dataclasses.replace(run, config=dataclasses.replace(run.config, policy=policy))

    for seed in range(7000 + part, 7200, 4):
        try:
            try_schedule(draw(seed), run_of)
        except AssertionError as violation:
            violation.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize(("seed", "name"), [(20278, "psplus(staleness=0)")])
def test_a_phase_that_broke_before_its_first_update_does_not_say_what_the_one_before_it_left(seed, name):
    """It began with the mean of the optimizer states, which were lost with the server."""
    try_seed(seed, plans_of(name))


@pytest.mark.parametrize(("seed", "name"), [(1018, "psplus"), (1295, "localsgd"), (1372, "diloco")])
def test_the_last_units_that_stand_still_do_not_come_again_to_whoever_has_them(seed, name):
    """It would step twice by them, or push them twice at once."""
    try_seed(seed, plans_of(name))


@pytest.mark.parametrize("seeds", swept([range(12), range(12, 60)]), ids=str)
def test_whatever_happens_to_groups_that_meet_seldom_the_accounts_are_exact(seeds):
    for seed in seeds:
        try:
            try_seed(seed, plans_of("preduce(every=3)"))
        except AssertionError as violation:
            violation.add_note(f"see it again: {COMMAND.format(seed)} --protocol='preduce(every=3)'")
            raise


@pytest.mark.parametrize("part", swept(range(5)))
def test_whatever_happens_to_groups_nobody_waits_for_ever_and_the_accounts_are_exact(part):
    for seed in range(part, GROUP_SEEDS, 5):
        try:
            try_seed(seed, GROUP_PLANS)
        except AssertionError as violation:
            violation.add_note(f"see it again: {COMMAND.format(seed)} --groups")
            raise


@pytest.mark.parametrize("seed", [42496, 46390])
def test_what_a_restarted_chief_has_left_behind_is_in_no_log(seed):
    """A worker with a state of before comes back late; or the commit that ends a run lacks the last group round."""
    try_seed(seed, GROUP_PLANS)


def test_other_plans_change_nothing_of_what_a_seed_draws():
    for seed in range(50):
        ours, theirs = draw(seed), draw(seed, GROUP_PLANS)
        assert ours.plan in PLANS and theirs.plan in GROUP_PLANS
        assert dataclasses.replace(ours, plan="") == dataclasses.replace(theirs, plan="")
    assert {draw(seed, GROUP_PLANS).plan for seed in range(GROUP_SEEDS)} == set(GROUP_PLANS)


def test_a_seed_tells_the_same_story_every_time():
    for seed in (3, 14, 15):
        assert draw(seed) == draw(seed)
        assert try_seed(seed) == try_seed(seed)
        assert try_seed(seed, GROUP_PLANS) == try_seed(seed, GROUP_PLANS)


def test_the_seeds_draw_every_kind_of_fault():
    drawn = [draw(seed) for seed in range(SEEDS)]
    scenarios = [schedule.scenario for schedule in drawn]
    assert {schedule.plan for schedule in drawn} == set(PLANS)
    assert {death.role for scenario in scenarios for death in scenario.deaths} == {"worker", "server", "chief"}
    for fault in ("pauses", "joins", "partitions", "save_fails"):
        assert any(getattr(scenario, fault) for scenario in scenarios), fault
    for fate in ("lost", "duplicated", "delayed"):
        assert any(getattr(scenario.chaos, fate) for scenario in scenarios), fate
    assert any(scenario.preempt_secs < 8 for scenario in scenarios)
    assert any(schedule.unfit for schedule in drawn)


def test_a_failing_seed_is_shown_with_its_story_and_the_command_that_shows_it_again(capsys, monkeypatch):
    from hybridsync.chief.ledger import Ledger

    monkeypatch.setattr(Ledger, "room", lambda self, limit: max(0, limit + 3 - len(self._applied) - len(self._leased)))
    assert main(["--seed=0"]) == 1
    shown = capsys.readouterr().out
    assert "phase_entered" in shown and "Violation" in shown and COMMAND.format(0) in shown
    assert main(["--seed=0", "--seeds=3"]) == 1
    assert COMMAND.format(2) in capsys.readouterr().out


def test_a_seed_that_breaks_does_not_end_the_others_and_is_told_again_at_the_end(capsys, monkeypatch):
    from hybridsync.chief.ledger import Ledger

    def take_waiting(self, count, had):
        raise KeyError("a bug")

    monkeypatch.setattr(Ledger, "_take_waiting", take_waiting)
    assert main(["--seed=0", "--seeds=30"]) == 1
    *_, broken, again, last = capsys.readouterr().out.splitlines()
    assert "KeyError: 'a bug'" in broken and again.startswith("again: python")
    assert last.startswith("30 seeds, ") and "'completed'" in last


def test_a_replay_refuses_a_log_with_a_gap():
    first = Entry(1, 1, (0,), 0, 1.0, 1.0, 1.0)
    phases = {1: phase_of()}
    assert replay([first], {}, phases).counts == {0: 1}
    with pytest.raises(Violation, match=r"names versions \[1\]"):
        replay([first, dataclasses.replace(first, sequence=3, base=1)], {}, phases)


def test_workers_that_a_restarted_chief_hears_of_late_get_the_units_that_it_gives_them():
    """They were cut off while it took the phase up: their streams are longer than it knows."""
    assert try_seed(1985).exit == "completed"


def outcome_of(plan: str, costs: Costs, *deaths: Death, units: int = 40, unit_secs: float = 0.05) -> Outcome:
    """Run one worker and one server behind a slow link, of whom some die."""
    cluster = Cluster((Device(unit_secs),), worker_link=SLOW, server_link=SLOW, costs=costs)
    return try_schedule(Schedule(0, plan, 1, 1, units, frozenset(), Scenario(cluster, deaths=deaths)), runs())


@pytest.mark.parametrize("at_secs", [0.93, 0.95])
def test_a_holder_that_is_lost_is_tried_for_as_long_as_a_real_caller_does(at_secs):
    """Its loss is told late: members that gave up at once would break one phase after another until then."""
    costs = Costs(notice_secs=0.5, restart_secs=1.0)
    outcome = outcome_of("asp:50%,bsp", costs, Death("server", 0, at_secs), units=20)
    assert outcome.exit == "completed" and outcome.num_phases <= 4


def test_what_is_reported_while_a_restarted_chief_has_the_state_captured_is_not_lost():
    """The units would be given out for ever: who applied them has told of them."""
    costs = Costs(capture_secs=0.5, restart_secs=0.2)
    assert outcome_of("asp", costs, Death("chief", 0, 0.6)).rolled_back == 0


def test_a_state_that_is_being_saved_is_gone_on_from_when_its_holder_dies():
    """It would be durable later, and the next loss would go on from it: from updates that the log has lost."""
    costs = Costs(commit_secs=0.4, restart_secs=0.6, notice_secs=0.01)
    deaths = Death("worker", 0, 1.6), Death("worker", 0, 2.6)
    assert outcome_of("bsp", costs, *deaths, unit_secs=0.15).exit == "completed"


def test_a_gradient_that_was_answered_early_is_applied_though_its_worker_pushes_anothers_unit_behind_it():
    assert try_seed(93, plans_of("hsp(rho=0.1,stale=4)")).exit == "completed"
