"""A run that is asked to stop saves all that was applied, or fails and says how many units it lost."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from hybridsync.core.errors import EXIT_FAILED, StoppedShort
from hybridsync.lab.simulator.cluster import Cluster, Death, Device, Pause, Scenario
from hybridsync.lab.simulator.simulation import simulate
from tests.lab.simulator.runs import tally_run

STOP_SECS = 3.0
WORKERS = range(4)


def killed(role: Any, *numbers: int) -> dict[str, Any]:
    return {"deaths": tuple(Death(role, number, STOP_SECS, 0.2) for number in numbers)}


def stopped(plan: str, *, for_good: bool = False, **faults: Any) -> list[dict[str, Any]]:
    """Return the events of a run that is asked to stop while something happens to its roles."""
    cluster = Cluster(devices=(Device(0.02, 0.1),))
    scenario = Scenario(cluster=cluster, preempt_secs=STOP_SECS, for_good=for_good, **faults)
    file = io.StringIO()
    try:
        simulate(tally_run(plan, workload=2000), scenario, events=file)
    finally:
        events = [json.loads(line) for line in file.getvalue().splitlines()]
    return events


@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize(
    ("plan", "faults"),
    [
        *[("asp", {}), ("bsp", {}), ("preduce", {}), ("asp", killed("worker", 1)), ("bsp", killed("worker", 0, 1, 2))],
        # Nobody gets a processor for half a minute, which is nobody's fault.
        *[(plan, {"pauses": tuple(Pause(worker, STOP_SECS, 30.0) for worker in WORKERS)}) for plan in ("asp", "bsp")],
    ],
)
def test_a_run_that_is_stopped_loses_nothing_that_somebody_holds(
    plan: str, faults: dict[str, Any], for_good: bool
) -> None:
    events = stopped(plan, for_good=for_good, **faults)
    saved = [event["units"] for event in events if event["kind"] == "checkpoint"]
    assert [event for event in events if event["kind"] == "rollback"] == []
    assert events[-1]["exit"] == ("stopped" if for_good else "preempted") and events[-1]["units"] == saved[-1] > 100


@pytest.mark.parametrize(("plan", "faults"), [("asp", killed("server", 0)), ("bsp", killed("worker", *WORKERS))])
def test_a_run_whose_holders_die_as_it_stops_was_not_preempted_and_says_what_is_lost(
    plan: str, faults: dict[str, Any]
) -> None:
    with pytest.raises(StoppedShort, match=r"saved 0 units, but not the \d+ applied after") as failure:
        stopped(plan, **faults)
    assert failure.value.exit_code == EXIT_FAILED
