"""Stragglers of a simulated run are flagged by what its board is told, as in a real one."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

import pytest

from hybridsync.config import PolicyConfig
from hybridsync.lab.simulator.cluster import Cluster, Device, Link, Scenario, Slow
from hybridsync.lab.simulator.simulation import simulate
from tests.lab.simulator.runs import tally_run

NOISY = Cluster(devices=(Device(0.02, 0.1),))


def decisions(
    plan: str,
    *slow: Slow,
    detector: Any = "robust",
    workload: int = 2000,
    shares: tuple[int, ...] = (),
    cluster: Cluster = NOISY,
) -> list[tuple[str, int]]:
    run, policy = tally_run(plan, workload=workload), PolicyConfig(detector=detector, shares=shares)
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, policy=policy))
    file = io.StringIO()
    simulate(run, Scenario(cluster=cluster, slow=slow), events=file)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    return [(line["kind"], line["worker"]) for line in lines if line["kind"].startswith("straggler")]


@pytest.mark.parametrize("plan", ["bsp", "asp", "bsp:25%,asp", "ssp", "localsgd(steps=8)", "preduce"])
def test_a_worker_that_is_slow_is_flagged_under_every_path_and_once(plan: str) -> None:
    assert decisions(plan, Slow(1, factor=2.0)) == [("straggler_flagged", 1)]


@pytest.mark.parametrize("plan", ["bsp", "asp"])
def test_one_that_is_slow_for_a_while_is_cleared(plan: str) -> None:
    found = decisions(plan, Slow(1, factor=3.0, start_secs=2.0, stop_secs=7.0))
    assert found == [("straggler_flagged", 1), ("straggler_cleared", 1)]


@pytest.mark.parametrize("plan", ["bsp", "asp", "preduce"])
@pytest.mark.parametrize("slow", [Slow(1, rpc_secs=0.02), Slow(1, bytes_per_sec=2 * 4 * 2000 / 0.02)])
def test_one_whose_link_alone_is_slow_is_flagged_where_its_transfers_wait_for_nobody(plan: str, slow: Slow) -> None:
    assert decisions(plan, slow) == [("straggler_flagged", 1)]


def test_a_slow_link_is_seen_of_a_worker_that_has_several_units_of_a_step() -> None:
    """What it sends once a step is no outlier of one unit in four, which a window's rate would leave out."""
    assert decisions("bsp", Slow(1, rpc_secs=0.04), shares=(4, 4, 4, 4)) == [("straggler_flagged", 1)]


@pytest.mark.parametrize("spread", [0.0, 0.1])
@pytest.mark.parametrize("plan", ["asp", "gba", "backup", "bsp_server", "ssp"])
def test_nobody_is_flagged_where_all_wait_for_one_port(plan: str, spread: float) -> None:
    """Each transfer takes a quarter of a unit, and they come one after another: everybody is slow alike."""
    port = Link(bytes_per_sec=2 * 4 * 2000 / 0.005)
    assert decisions(plan, cluster=Cluster(devices=(Device(0.02, spread),), server_link=port)) == []


def test_nobody_is_flagged_in_a_healthy_run_nor_where_nobody_judges() -> None:
    assert decisions("bsp:25%,asp") == []
    assert decisions("asp", Slow(1, factor=2.0), detector="off") == []
