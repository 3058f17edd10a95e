"""Lock-step whose members take shares of a step: its time, its record, and what the detector is told."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

import pytest

from hybridsync.config import PolicyConfig
from hybridsync.lab.simulator.cluster import Cluster, Device, Scenario, Slow
from hybridsync.lab.simulator.simulation import simulate
from tests.lab.simulator.runs import tally_run
from tests.sweeps import swept

UNIT_SECS = 0.05
SLOW = Slow(2, factor=4.0)


def told(shares: tuple[int, ...], *slow: Slow, workload: int = 1300) -> tuple[float, list[dict[str, Any]]]:
    """Return the seconds that a lock-step run of four workers took, and its events."""
    run = tally_run("bsp", workload=workload)
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, policy=PolicyConfig(shares=shares)))
    file = io.StringIO()
    result = simulate(run, Scenario(cluster=Cluster(devices=(Device(UNIT_SECS),)), slow=slow), events=file)
    return result.summary.seconds, [json.loads(line) for line in file.getvalue().splitlines()]


def test_a_step_takes_as_long_as_whoever_computes_longest():
    """13 units of which the slow worker takes one: 3.25 units in the time of one of a healthy worker, instead of 1."""
    plain, _ = told((), SLOW)
    shared, _ = told((4, 4, 1, 4), SLOW)
    assert plain == pytest.approx(1300 / 4 * 4 * UNIT_SECS, rel=0.05)
    assert shared == pytest.approx(1300 / 13 * 4 * UNIT_SECS, rel=0.05)


def test_the_phases_event_names_the_shares_and_the_units_of_an_update():
    _, events = told((4, 4, 1, 4))
    (entered,) = [event for event in events if event["kind"] == "phase_entered"]
    assert (entered["shares"], entered["units_per_update"]) == ([4, 4, 1, 4], 13)
    _, events = told((1, 1, 1, 1))
    (entered,) = [event for event in events if event["kind"] == "phase_entered"]
    assert (entered.get("shares"), entered["units_per_update"]) == (None, 4)


@pytest.mark.parametrize("shares", swept([(4, 4, 1, 4), (1, 1, 4, 1), (2, 2, 2, 2)], 2))
def test_workers_are_judged_by_a_unit_whatever_their_share(shares):
    def stragglers(events: list[dict[str, Any]]) -> list[tuple[str, int]]:
        return [(event["kind"], event["worker"]) for event in events if event["kind"].startswith("straggler")]

    assert stragglers(told(shares, workload=2600)[1]) == []
    assert stragglers(told(shares, SLOW, workload=2600)[1]) == [("straggler_flagged", 2)]


def rebalanced(*slow: Slow, online: Any = "rebalance", workload: int = 4000) -> tuple[float, list[dict[str, Any]]]:
    """Return the seconds of a run of eight workers under an online policy, and its events."""
    run = tally_run("bsp", workload=workload, workers=8)
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, policy=PolicyConfig(online=online)))
    file = io.StringIO()
    cluster = Cluster(devices=(Device(UNIT_SECS, 0.05),))
    result = simulate(run, Scenario(cluster=cluster, slow=slow), events=file)
    return result.summary.seconds, [json.loads(line) for line in file.getvalue().splitlines()]


def shares_entered(events: list[dict[str, Any]]) -> list[list[int]]:
    return [event.get("shares", []) for event in events if event["kind"] == "phase_entered"]


def test_a_straggler_is_rebalanced_once_and_the_run_is_as_much_faster_as_its_shares_say():
    plain, _ = rebalanced(Slow(7, factor=3.0), online="baseline")
    seconds, events = rebalanced(Slow(7, factor=3.0))
    assert shares_entered(events) == [[], [3] * 7 + [1]]
    assert {tuple(event["members"]) for event in events if event["kind"] == "phase_entered"} == {tuple(range(8))}
    assert plain / seconds > 0.85 * 2.75, "the time to detect it is part of so short a run"
    (decided,) = [event for event in events if event["kind"] == "policy_decided"]
    assert (decided["policy"], decided["workers"]) == ("rebalance", [7])
    assert decided["action"] == "a step of 3 for [0, 1, 2, 3, 4, 5, 6], 1 for [7]"


def test_one_that_is_slow_for_a_while_gets_its_equal_share_back():
    _, events = rebalanced(Slow(7, factor=3.0, start_secs=3.0, stop_secs=12.0))
    assert shares_entered(events) == [[], [3] * 7 + [1], []]


def test_a_healthy_cluster_is_left_alone():
    assert shares_entered(rebalanced()[1]) == [[]]
