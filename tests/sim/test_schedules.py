"""Drawn schedules with faults: whatever happens, the accounts are exact and the run ends by itself."""

from __future__ import annotations

import dataclasses

import pytest

from hybridsync.applylog import Entry
from hybridsync.sim.checks import Violation, replay
from hybridsync.sim.schedules import PLANS, draw
from tests.roles import phase_of
from tests.sim.schedules import COMMAND, command, main, try_seed

SEEDS = 1000
PARTS = 10


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_the_accounts_are_exact_and_the_run_ends(part):
    for seed in range(part, SEEDS, PARTS):
        try:
            try_seed(seed)
        except AssertionError as violation:
            violation.add_note(f"see it again: {COMMAND.format(seed)}")
            raise


@pytest.mark.parametrize("name", ["localsgd(steps=3)", "diloco(steps=3)", "psplus"])
def test_whatever_happens_the_log_leads_to_the_state_of_workers_that_stepped_by_themselves(name):
    for seed in range(60):
        try:
            try_seed(seed, name)
        except AssertionError as violation:
            violation.add_note(f"see it again: {command(seed, name)}")
            raise


def test_a_seed_tells_the_same_story_every_time():
    for seed in (3, 14, 15):
        assert draw(seed) == draw(seed)
        assert try_seed(seed) == try_seed(seed)


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
    phases = {1: phase_of()}
    assert replay([first], {}, phases).counts == {0: 1}
    with pytest.raises(Violation, match=r"names versions \[1\]"):
        replay([first, dataclasses.replace(first, sequence=3, base=1)], {}, phases)
