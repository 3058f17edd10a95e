"""Which states are evaluated: those at the places of `evaluate_units`, though the chief hears of them late."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

import pytest

from hybridsync.config import TelemetryConfig
from hybridsync.lab.simulator.cluster import Cluster, Death, Device, Scenario
from hybridsync.lab.simulator.simulation import simulate
from tests.lab.simulator.runs import tally_run

WORKLOAD, EVERY = 800, 100
CLUSTER = Cluster(devices=(Device(0.02, spread=0.2),))


def simulated_lines(plan: str, **scenario: Any) -> list[dict[str, Any]]:
    run = tally_run(plan, workload=WORKLOAD)
    telemetry = TelemetryConfig(log_secs=0.5, evaluate_units=EVERY)
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, telemetry=telemetry))
    file = io.StringIO()
    assert simulate(run, Scenario(CLUSTER, **scenario), gradients="real", events=file).summary.exit == "completed"
    return [json.loads(line) for line in file.getvalue().splitlines()]


def evaluated_units(lines: list[dict[str, Any]]) -> list[int]:
    return [line["units"] for line in lines if line["kind"] == "evaluation"]


def skipped_places(lines: list[dict[str, Any]]) -> list[int]:
    skipped = [line for line in lines if line["kind"] == "evaluation_skipped"]
    return [place for line in skipped for place in range(line["first"], line["last"] + 1, EVERY)]


@pytest.mark.parametrize(
    ("plan", "units_per_update"),
    [
        ("asp", 1),
        ("ssp(staleness=3)", 1),
        ("gba", 4),
        ("bsp", 4),
        ("bsp_server", 4),
        ("bsp:37.5%,asp", 1),
        ("localsgd(steps=7)", 28),
    ],
)
def test_each_evaluation_is_of_the_first_update_at_or_after_its_place(plan: str, units_per_update: int) -> None:
    lines = simulated_lines(plan)
    evaluated = evaluated_units(lines)
    places = [units // EVERY * EVERY for units in evaluated]
    assert sorted(places + skipped_places(lines)) == [*range(EVERY, WORKLOAD + 1, EVERY)]
    assert len(evaluated) >= 6 and all(units % EVERY < units_per_update for units in evaluated)
    assert all(line["state_t"] <= line["t"] for line in lines if line["kind"] == "evaluation")


def test_places_are_exact_after_a_lost_worker_and_a_lost_server() -> None:
    lines = simulated_lines(
        "asp", deaths=(Death("worker", 1, at_secs=1.0, back_secs=0.5), Death("server", 0, at_secs=2.0, back_secs=0.5))
    )
    evaluated = evaluated_units(lines)
    assert evaluated[-1] == WORKLOAD and evaluated == sorted(set(evaluated))
    assert len([units for units in evaluated if units % EVERY == 0]) >= 5
