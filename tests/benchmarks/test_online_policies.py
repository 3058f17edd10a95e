"""The figures of the online policies' benchmark: what is compared with what, and that the guide's are the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.online_policies import (
    POLICIES,
    TRANSIENTS,
    Case,
    Outcome,
    Table,
    ideal,
    pair,
    permanent,
    simulated,
    slow,
    transient,
)
from hybridsync.config import Straggler

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "policies.md").read_text()


def carried_out(seconds: dict[str, float], accuracy: dict[str, float] | None = None) -> Table:
    """Return a table whose cases take so long, by their policy, and are so accurate."""

    def carry(case: Case, seed: int) -> Outcome:
        return Outcome(seconds[case.policy] + seed, accuracy[case.policy] + 0.01 * seed if accuracy else None)

    return Table(carry, range(3))


def figures(table: Table) -> dict[str, float]:
    return {row.name: row.figure for row in table.rows}


def test_a_permanent_stragglers_speed_up_is_over_plain_lock_step_and_beside_the_ideal():
    table = carried_out({"baseline": 199.0, "greedy": 99.0, "elastic": 99.0, "rebalance": 99.0})
    permanent(table, lambda entry: 400.0)
    found = figures(table)
    assert found["1 of 8, 5x: bsp:6.25%,asp, elastic, times plain BSP"] == 4.0
    assert found["1 of 8, 5x: bsp:6.25%,asp, elastic, share of ideal 4.5"] == pytest.approx(4.0 / ideal(5))
    assert [row.met for row in table.rows if "elastic" in row.name] == [True, False, False, False]


def test_times_are_means_and_accuracies_are_compared_seed_by_seed():
    table = carried_out(
        {"baseline": 160.0, "greedy": 120.0, "elastic": 100.0, "rebalance": 100.0},
        {"baseline": 0.9, "greedy": 0.88, "elastic": 0.91, "rebalance": 0.9},
    )
    pair(table)
    found = figures(table)
    assert found["2 of 8, 4x: baseline / elastic"] == pytest.approx(161 / 101)
    assert found["2 of 8, 4x: greedy, accuracy less baseline's"] == pytest.approx(-0.02)
    assert {row.met for row in table.rows if "accuracy" in row.name} == {True, False}


def test_a_policy_may_cost_two_percent_where_stragglers_come_and_go():
    table = carried_out({"baseline": 99.0, "greedy": 100.5, "elastic": 101.5, "rebalance": 99.0})
    transient(table)
    assert [row.met for row in table.rows] == [True, False, True] * 2


def test_stragglers_are_what_they_are_called():
    assert Straggler.parse(slow(3, 4.0, 0.1, 0.5)) == Straggler.parse("worker=3,factor=4,from=10%,to=50%")
    once, often = map(Straggler.parse, TRANSIENTS)
    assert (len(once), {each.worker for each in often}) == (1, {0, 1})
    assert {each.slowness.rpc_secs for each in once} == {0.01} and {each.slowness.rpc_secs for each in often} == {0.03}


def test_the_guides_figures_are_those_of_the_code():
    table = Table(simulated, range(1))
    pair(table)
    (row,) = re.findall(r"two workers 4 x .*\| 1 \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", GUIDE)
    found = figures(table)
    shown = [f"{found[f'2 of 8, 4x: baseline / {policy}']:.2f}" for policy in POLICIES[1:]]
    assert [*row] == shown
