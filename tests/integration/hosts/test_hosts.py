"""Runs on three hosts of a private network complete, and go on when hosts die, are cut off, come late or leave."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.hosts import faults
from tests.integration.hosts.hosts import PRIVATE, Hosts
from tests.integration.hosts.network import Network, missing
from tests.multiprocess.job import assert_exactly_once

REASON = missing()
pytestmark = [
    pytest.mark.xdist_group("hosts"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(REASON), reason=f"no hosts of their own here: {REASON}"),
]
PLANS = ("asp", "bsp", "preduce")
LEASE_SECS, PATIENCE_SECS = 15.0, 20.0
BACK_SECS = 80.0
"""How long a worker may take to be back when its host is: a fork server imports everything first."""


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(faults.NUM_HOSTS) as made:
        yield made


@pytest.mark.integration
def test_a_run_goes_through_lock_step_servers_and_groups_on_three_hosts(network: Network, tmp_path: Path) -> None:
    plan = "--plan=bsp:30%,asp:40%,preduce"
    with Hosts(network, tmp_path, "configs/tally.py", "--workers=4", plan, "--set=workload=1200", PRIVATE) as hosts:
        assert hosts.wait() == [0, 0, 0], hosts.screens() + hosts.head.logs()
        assert_exactly_once(hosts.head.summary())
        started = [event for event in hosts.head.events("role_started") if event["role"] == "worker"]
        assert {event["id"]: event["host"] for event in started} == {0: "host0", 1: "host0", 2: "host1", 3: "host2"}
        assert all(event["address"].startswith("10.77.0.") for event in started)
        worked = {worker for line in faults.lines_after(hosts, -1.0) for worker in line.get("compute_secs", {})}
        assert worked == {"0", "1", "2", "3"}
        assert hosts.head.tracebacks() == []


@pytest.mark.integration
def test_sums_between_hosts_are_refused_on_a_network_that_nobody_calls_private(
    network: Network, tmp_path: Path
) -> None:
    with Hosts(network, tmp_path, "configs/tally.py", "--plan=bsp:30%,asp") as hosts:
        assert hosts.wait() == [1, 1, 1]
        for host in range(faults.NUM_HOSTS):
            assert re.search(
                r"error: bsp sums between hosts over gloo.*--collectives_network=private", hosts.screen(host)
            )
        assert not hosts.workdir.exists()


@pytest.mark.parametrize(
    "plan", [pytest.param(plan, marks=pytest.mark.soak if plan == "asp" else pytest.mark.integration) for plan in PLANS]
)
def test_a_host_leaves_and_another_one_joins(network: Network, tmp_path: Path, plan: str) -> None:
    story = faults.run_with_faults(network, tmp_path, plan, [faults.agent_is_told_to_leave, faults.agent_is_killed])
    if plan != "preduce":  # a death in a group costs what was done since all copies were one
        assert story.summary["units"]["rolled_back"] == 0
    for _, secs in story.faults:
        assert secs["back_secs"] < BACK_SECS


@pytest.mark.parametrize(
    "plan", [pytest.param(plan, marks=pytest.mark.integration if plan == "bsp" else pytest.mark.soak) for plan in PLANS]
)
def test_a_host_that_was_never_there_joins_a_run_and_another_one_leaves_it(
    network: Network, tmp_path: Path, plan: str
) -> None:
    secs, summary = faults.run_with_a_late_host(network, tmp_path, plan)
    if plan != "preduce":
        assert summary["units"]["rolled_back"] == 0
    assert secs["first_unit_secs"] < BACK_SECS and secs["joined_stall_secs"] < 10.0 and secs["left_stall_secs"] < 10.0


@pytest.mark.integration
def test_a_host_that_was_cut_off_or_frozen_does_nothing_that_counts(network: Network, tmp_path: Path) -> None:
    story = faults.run_with_faults(network, tmp_path, "asp", [faults.cut_both_ways, faults.frozen])
    assert story.summary["units"]["rolled_back"] == 0
    for _, secs in story.faults:
        assert secs["lost_secs"] < LEASE_SECS + 5.0 and secs["back_secs"] < BACK_SECS
        assert secs["stall_secs"] < 5.0, "the others do not wait for it"


@pytest.mark.integration
def test_the_heads_host_dies_and_the_agents_attach_to_the_one_that_is_started_again(
    network: Network, tmp_path: Path
) -> None:
    story = faults.run_with_faults(network, tmp_path, "bsp", [faults.head_is_killed], "--checkpoint_secs=2")
    assert story.faults[0][1]["back_secs"] < 2 * BACK_SECS


@pytest.mark.integration
def test_a_host_that_stays_away_leaves_its_worker_and_its_server_to_others(network: Network, tmp_path: Path) -> None:
    more = ("--servers=2", "--set=model.copies=2", "--checkpoint_secs=2")
    story = faults.run_with_faults(network, tmp_path, "asp", [faults.host_stays_away], *more)
    assert story.summary["units"]["rolled_back"] > 0, "the server's part is taken from the last commit"
    assert story.faults[0][1]["back_secs"] < PATIENCE_SECS + BACK_SECS


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(2400)  # three rounds, each of four minutes on a quiet machine
@pytest.mark.parametrize("plan", PLANS)
def test_every_fault_of_a_host_three_times(network: Network, tmp_path: Path, plan: str) -> None:
    for time in range(3):
        faults.run_with_faults(network, tmp_path / str(time), plan, faults.FAULTS, "--checkpoint_secs=5")


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.parametrize(
    "policy, action", [("greedy", "asp instead"), ("elastic", "without workers [3]"), ("rebalance", "a step of")]
)
def test_a_host_that_is_short_of_processor_time_is_dealt_with(
    network: Network, tmp_path: Path, policy: str, action: str
) -> None:
    flags = ["--workers=4", "--plan=bsp:60%,asp", f"--policy={policy}", "--compute_secs=0.03", "--set=workload=3000"]
    with Hosts(network, tmp_path, "configs/digits_mlp.py", *flags, PRIVATE) as hosts:
        hosts.head.until_units(150)
        network.slow_cores(2, 0.04)
        hosts.head.until_units(1400)
        network.heal(2)
        assert hosts.wait() == [0, 0, 0], hosts.screens() + hosts.head.logs()
        decided = [event["action"] for event in hosts.head.events("policy_decided") if event["action"] != "stay"]
        assert action in decided[0]
        assert hosts.head.summary()["final"]["accuracy"] > 0.9
        assert not hosts.head.events("role_lost") and hosts.head.tracebacks() == []


@pytest.mark.soak
@pytest.mark.alone
def test_sixteen_workers_start_on_three_hosts(network: Network, tmp_path: Path) -> None:
    flags = ["--workers=16", "--plan=bsp:50%,asp", "--compute_secs=0.1", "--set=workload=800"]
    with Hosts(network, tmp_path, "configs/tally.py", *flags, PRIVATE) as hosts:
        assert hosts.wait() == [0, 0, 0], hosts.screens() + hosts.head.logs()
        assert_exactly_once(hosts.head.summary())
        homes = [event["host"] for event in hosts.head.events("role_started") if event["role"] == "worker"]
        assert sorted(homes.count(f"host{host}") for host in range(3)) == [5, 5, 6]
