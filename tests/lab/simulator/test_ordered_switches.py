"""Switches that the run's user orders at drawn places: each unit is applied once, and what was promised is done."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from hybridsync.core.errors import ConfigError
from hybridsync.lab.simulator.cluster import Cluster, Death, Device, Scenario, Switch
from hybridsync.lab.simulator.simulation import simulate
from hybridsync.lab.testing.checks import Checks
from hybridsync.lab.testing.schedules import GROUP_PLANS, PLANS, Schedule
from hybridsync.lab.testing.trials import try_schedule
from tests.lab.testing.drawn_schedules import COMMAND, runs, try_seed
from tests.sweeps import swept

PARTS = 10
SEEDS = 400
CALM = Cluster(devices=(Device(0.05, 0.3),))


@pytest.mark.parametrize(
    ("plans", "online", "flag"), [(PLANS, False, ""), (PLANS, True, " --online"), (GROUP_PLANS, False, " --groups")]
)
@pytest.mark.parametrize("part", swept(range(PARTS), 1))
def test_whatever_is_ordered_and_fails_besides_the_accounts_are_exact(part, plans, online, flag):
    for seed in range(part, SEEDS, PARTS):
        try:
            try_seed(seed, plans, online, orders=True)
        except AssertionError as violation:
            violation.add_note(f"see it again: {COMMAND.format(seed)}{flag} --orders")
            raise


def specs_of(plan: str, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], Checks]:
    """Return the protocols of a run's phases in order, and what its user was promised."""
    kept: list[Checks] = []
    began = Checks.__init__

    def keep(self: Checks) -> None:
        began(self)
        kept.append(self)

    with monkeypatch.context() as patch:
        patch.setattr(Checks, "__init__", keep)
        outcome = try_schedule(Schedule(1, plan, 4, 1, 200, frozenset(), scenario), runs())
    assert (outcome.exit, outcome.units) == ("completed", 200)
    (checks,) = kept
    return [checks.phases[number].spec for number in sorted(checks.phases)], checks


def test_an_order_lasts_to_the_end_of_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(cluster=CALM, switches=(Switch(0.5, "ssp(staleness=2)"),))
    specs, checks = specs_of("bsp:60%,asp", scenario, monkeypatch)
    assert specs == ["bsp", "ssp(staleness=2)", "asp"]
    ends = [checks.phases[number].end_units for number in sorted(checks.phases)]
    assert ends == [120, 120, 200]


@pytest.mark.parametrize("draw", range(12))
@pytest.mark.parametrize("plan", ["bsp", "asp", "bsp:50%,asp"])
def test_an_order_that_was_taken_outlives_the_chief(plan: str, draw: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chief dies at a drawn moment behind it: before the switch, in any stage of it, or after it."""
    random = Random(f"{plan} {draw}")
    at = random.uniform(0.2, 1.0)
    death = Death("chief", 0, at + random.choice((1e-6, random.uniform(0.0, 0.1), random.uniform(0.0, 0.6))), 0.5)
    scenario = Scenario(cluster=CALM, switches=(Switch(at, "bsp_server"),), deaths=(death,))
    specs, checks = specs_of(plan, scenario, monkeypatch)
    assert [spec for spec, _ in checks.orders] == ["bsp_server"]
    assert "bsp_server" in specs


def test_an_order_goes_on_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second session begins with what was ordered in the first."""
    scenario = Scenario(cluster=CALM, switches=(Switch(0.5, "ssp"),), preempt_secs=2.0)
    specs, _ = specs_of("bsp:90%,asp", scenario, monkeypatch)
    assert specs[0] == "bsp" and specs[1:] == ["ssp", "ssp", "asp"]


def test_a_scenario_that_orders_what_no_run_can_make_is_refused_before_it_begins() -> None:
    run = runs()(Schedule(1, "asp", 4, 1, 200, frozenset(), Scenario()))
    with pytest.raises(ConfigError, match="unknown protocol 'aps'; did you mean 'asp'"):
        simulate(replace(run), Scenario(switches=(Switch(0.5, "aps"),)))
