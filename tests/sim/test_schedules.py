"""Drawn schedules with faults: whatever happens, the accounts are exact and the run ends by itself."""

from __future__ import annotations

import dataclasses

import pytest

from hybridsync.applylog import Entry
from hybridsync.sim.checks import Violation, replay
from hybridsync.sim.schedules import GROUP_PLANS, PLANS, draw
from tests.sim.schedules import COMMAND, main, try_seed

SEEDS = 1000
PARTS = 10
GROUP_SEEDS = 150


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_the_accounts_are_exact_and_the_run_ends(part):
    for seed in range(part, SEEDS, PARTS):
        try:
            try_seed(seed)
        except AssertionError as violation:
            violation.add_note(f"see it again: {COMMAND.format(seed)}")
            raise


@pytest.mark.parametrize("part", range(5))
def test_whatever_happens_to_groups_nobody_waits_for_ever_and_the_accounts_are_exact(part):
    for seed in range(part, GROUP_SEEDS, 5):
        try:
            try_seed(seed, GROUP_PLANS)
        except AssertionError as violation:
            violation.add_note(f"see it again: {COMMAND.format(seed)} --groups")
            raise


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


def test_a_replay_refuses_a_log_with_a_gap():
    first = Entry(1, 1, (0,), 0, 1.0, 1.0, 1.0)
    assert replay([first]).counts == {0: 1}
    with pytest.raises(Violation, match="names version 1"):
        replay([first, dataclasses.replace(first, sequence=3, base=1)])
