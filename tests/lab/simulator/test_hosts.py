"""Workers on several hosts: units by host, and ports that a host's workers share."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from configs.scenarios import three_hosts
from hybridsync.core.errors import ConfigError
from hybridsync.lab.simulator.cluster import Cluster, Device, Link, Scenario
from hybridsync.lab.simulator.simulation import Result, simulate
from tests.lab.simulator.runs import tally_run

HOSTS = (3, 1)
EVEN = Scenario(Cluster((Device(0.05, 0.1),), hosts=HOSTS))


def lines(workdir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def counted(workdir: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for line in lines(workdir):
        for host, workers in line["applied_by"].items():
            found[host] += sum(workers.values())
    return found


@pytest.mark.parametrize("plan", ["bsp", "asp", "preduce", "bsp:25%,asp"])
def test_what_hosts_are_counted_for_is_what_was_applied(plan: str, tmp_path: Path) -> None:
    summary = simulate(tally_run(plan), EVEN, workdir=tmp_path / "run").summary
    found = counted(tmp_path / "run")
    assert found.total() == summary.units.applied == 400, "no unit is brought up to the account here"
    assert summary.units_by_host == dict(found)
    assert summary.units_by_host["host-0"] == pytest.approx(300, abs=0 if plan == "bsp" else 40)


def test_units_by_host_sum_to_those_applied_where_a_host_was_lost(tmp_path: Path) -> None:
    result = three_hosts_lost("asp", tmp_path / "run")
    assert sum(result.summary.units_by_host.values()) == result.summary.units.applied
    assert counted(tmp_path / "run").total() == pytest.approx(result.summary.units.applied, abs=20)
    first, second, third = (result.summary.units_by_host[f"host-{host}"] for host in range(3))
    assert first > second > 1.2 * third, "it was away"


def three_hosts_lost(plan: str, workdir: Path | None = None) -> Result:
    return simulate(tally_run(plan, workload=8000, workers=16), three_hosts.scenario(), workdir=workdir)


@pytest.mark.parametrize("plan", ["bsp", "asp", "preduce"])
def test_a_run_goes_on_without_a_host_and_takes_it_in_again(plan: str, tmp_path: Path) -> None:
    result = three_hosts_lost(plan, tmp_path / "run")
    assert result.summary.exit == "completed"
    assert (result.summary.units.applied, result.summary.units.outstanding) == (8000, 0)
    third = [(line["t"], sum(line["applied_by"].get("host-2", {}).values())) for line in lines(tmp_path / "run")]
    lost, back = three_hosts.LOST_AT_SECS, three_hosts.LOST_AT_SECS + three_hosts.AWAY_SECS
    assert not any(units for t, units in third if lost + 5.0 < t < back)
    assert any(units for t, units in third if t < lost) and any(units for t, units in third if t > back + 1.0)


def test_a_run_on_one_host_names_none(tmp_path: Path) -> None:
    assert simulate(tally_run(), workdir=tmp_path / "run").summary.units_by_host == {}


def seconds(plan: str, **cluster: Any) -> float:
    size = 8 * 400  # of the tally's parameters: enough to fill a narrow port
    narrow = Cluster((Device(0.01),), worker_link=Link(0.0, size / 0.01), **cluster)
    return simulate(tally_run(plan), Scenario(narrow)).seconds


def test_workers_share_the_port_of_their_host_under_a_server() -> None:
    apart, together = seconds("asp", hosts=(1, 1, 1, 1)), seconds("asp", hosts=(4,))
    assert apart == pytest.approx(seconds("asp"), rel=0.05), "a port of one's own is what a worker has anyway"
    assert together > 2 * apart


def test_a_scenario_whose_hosts_have_other_workers_than_the_run_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"Cluster\.hosts has 4 workers on 2 hosts, but the run has 5; give --workers=4"
    ):
        simulate(tally_run(workers=5), EVEN)
    with pytest.raises(ConfigError, match=r"give each host at least one worker"):
        Cluster(hosts=(2, 0))
