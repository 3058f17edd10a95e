"""The cluster model: what its figures mean."""

from __future__ import annotations

import dataclasses
import math
from itertools import islice
from random import Random
from typing import Any

import pytest

from benchmarks.virtual import seconds_of
from hybridsync.config import EmulationConfig, RunConfig
from hybridsync.core.errors import ConfigError
from hybridsync.lab.simulator.cluster import Cluster, Colocated, Costs, Death, Device, Link, Scenario, normals

LATE = (0.03, 0.03, 0.0, 0.0)


def test_a_machines_latency_is_in_everybodys_exchange_and_twice_between_two_of_them() -> None:
    waits = Colocated(LATE, round_trips=1.0)
    assert waits.exchange_secs(2) == pytest.approx(0.03 + 0.03)
    assert waits.exchange_secs(0) == pytest.approx(0.06 + 0.03 + 0.03)
    lost = Colocated(LATE, round_trips=0.0, recovery=10.0, incast=4.0)
    assert lost.exchange_secs(2) == pytest.approx(10 * 0.03**2)
    assert lost.exchange_secs(0) == pytest.approx(10 * 0.06**2)
    assert lost.step_secs(0, 0.0) == pytest.approx(4 * 10 * 0.06**2)
    assert lost.step_secs(2, 0.0) == pytest.approx(4 * 10 * 0.03**2)


def test_waits_between_round_trips_lie_beside_the_transfers_of_a_step() -> None:
    late = Colocated(LATE, round_trips=2.0)
    assert late.step_secs(0, 1.0) == 0.0
    assert late.step_secs(0, 0.2) == pytest.approx(2 * 0.12 - 0.2)


def test_machines_without_latency_take_no_longer() -> None:
    even = Colocated((0.0,) * 4, round_trips=2.0, recovery=10.0, incast=4.0)
    assert [even.exchange_secs(worker) for worker in range(4)] == [0.0] * 4
    assert [even.step_secs(worker, 0.0) for worker in range(4)] == [0.0] * 4
    assert Colocated((0.1,), recovery=1.0).exchange_secs(0) == 0.0


@pytest.mark.parametrize(("plan", "added"), [("asp", 0.12), ("bsp", 0.036)])
def test_a_run_takes_as_much_longer_as_its_machines_exchanges(plan: str, added: float) -> None:
    """Of four machines all are late, so that every asynchronous unit and every step takes equally much longer."""
    late = Colocated((0.02,) * 4, round_trips=1.0, recovery=0.0 if plan == "asp" else 22.5, incast=1.0)
    config = RunConfig(workload=400, unit_size=1, workers=4, plan=plan)
    costs = Costs(step_secs=0.2)
    alone, with_latency = (
        seconds_of(config, Scenario(cluster=Cluster((Device(0.1),), Link(0.0), Link(0.0), costs, machines)))
        for machines in (None, late)
    )
    assert with_latency - alone == pytest.approx(100 * added, rel=0.03)


def test_machines_that_the_run_does_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="has 4 machines, but the run has 3 workers"):
        Scenario(cluster=Cluster(colocated=Colocated(LATE))).check(3, 1)
    with pytest.raises(ConfigError, match="latency_secs must hold seconds of 0 or more"):
        Colocated((0.1, -0.1))
    with pytest.raises(ConfigError, match=r"Colocated\.recovery must be 0 or more"):
        Colocated(LATE, recovery=-1.0)
    with pytest.raises(ConfigError, match=r"Colocated\.stretches has one from 2 to 1 s; give 0 <= from < to"):
        Colocated(LATE, stretches=((0.0, 1.0), (2.0, 1.0)))


def test_a_death_of_no_role_is_refused_and_not_ignored() -> None:
    nobody: Any = "wroker"
    with pytest.raises(ConfigError, match=r"Death\.role must be one of worker, server, chief, got 'wroker'"):
        Death(nobody, 0, at_secs=1.0)


@pytest.mark.parametrize(
    ("emulation", "secs"),
    [
        (EmulationConfig(link_bytes_per_sec=10.0), 0.2),
        (EmulationConfig(port_bytes_per_sec=10.0), 0.8),
        (EmulationConfig(latency_secs=0.1), 0.2),
        (EmulationConfig(link_bytes_per_sec=1e12), 0.0),
    ],
)
def test_emulated_links_are_simulated_as_the_servers_keep_them(emulation: EmulationConfig, secs: float) -> None:
    """A byte each way: 0.1 s on a worker's link, and 0.4 s through a port that four workers share, who keep step."""
    config = RunConfig(workload=400, unit_size=1, workers=4, plan="asp")
    slower = dataclasses.replace(config, emulation=emulation)
    still = Cluster((Device(0.1),), Link(0.0), Link(0.0), Costs(*[0.0] * 9))
    alone, emulated = (seconds_of(each, Scenario(cluster=still)) for each in (config, slower))
    assert emulated - alone == pytest.approx(100 * secs, rel=0.03, abs=1e-6)


def test_draws_are_those_of_the_standard_library() -> None:
    ours, theirs = normals(Random(5)), Random(5)
    assert [next(ours) for _ in range(1000)] == [theirs.gauss(0.0, 1.0) for _ in range(1000)]
    seconds, again = Device(0.05, 0.3).seconds(normals(Random(6))), Random(6)
    variance = math.log1p(0.3 * 0.3)
    mean, deviation = math.log(0.05) - variance / 2, math.sqrt(variance)
    assert [next(seconds) for _ in range(1000)] == [math.exp(again.gauss(mean, deviation)) for _ in range(1000)]


def test_a_trace_begins_anew_at_its_end_and_a_constant_device_draws_nothing() -> None:
    drawn = normals(Random(5))
    assert [*islice(Device(trace=(0.1, 0.2)).seconds(drawn), 3)] == [0.1, 0.2, 0.1]
    assert [*islice(Device(0.3).seconds(drawn), 2)] == [0.3, 0.3]
    assert next(drawn) == Random(5).gauss(0.0, 1.0)
