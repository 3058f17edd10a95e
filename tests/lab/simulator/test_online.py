"""The online policies in virtual time: the real controller asks them, and carries out what they want."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

import pytest

from hybridsync.config import PolicyConfig
from hybridsync.lab.simulator.arithmetic import Counting
from hybridsync.lab.simulator.cluster import Cluster, Death, Device, Pause, Scenario, Slow
from hybridsync.lab.simulator.event_loop import Loop, VirtualClock
from hybridsync.lab.simulator.fake_io import Workdir
from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster
from hybridsync.lab.simulator.simulation import simulate
from hybridsync.lab.testing.checks import SIZES, Checks
from hybridsync.policies.actions import PLANNED, Action, Choice, ExcludeWorkers, TemporaryProtocol, View
from hybridsync.telemetry.recorder import Recorder
from tests.lab.simulator.runs import tally_run

EVEN = Cluster(devices=(Device(0.05),))
PLAN = "bsp:50%,asp"
WORKLOAD = 1600


def simulated_lines(
    policy: Any, *slow: Slow, plan: str = PLAN, workload: int = WORKLOAD, **more: Any
) -> list[dict[str, Any]]:
    """Return the lines of a simulated run of four workers of 50 ms a unit."""
    run = tally_run(plan, workload=workload)
    config = dataclasses.replace(run.config, policy=PolicyConfig(online=policy))
    file = io.StringIO()
    scenario = Scenario(cluster=EVEN, slow=slow, **more)
    summary = simulate(dataclasses.replace(run, config=config), scenario, events=file).summary
    assert summary.exit == "completed" and summary.units.applied == workload and summary.units.rolled_back == 0
    return [json.loads(line) for line in file.getvalue().splitlines()]


def of(lines: list[dict[str, Any]], kind: str, *names: str) -> list[Any]:
    """Return some fields of the lines of a kind."""
    return [tuple(line[name] for name in names) for line in lines if line["kind"] == kind]


def entered(lines: list[dict[str, Any]]) -> list[Any]:
    return of(lines, "phase_entered", "protocol", "members", "reason")


ALL, OTHERS = [0, 1, 2, 3], [0, 2, 3]
FOR_A_WHILE = Slow(1, factor=4.0, start_secs=2.0, stop_secs=12.0)


def test_baseline_changes_nothing():
    lines = simulated_lines("baseline", FOR_A_WHILE)
    assert entered(lines) == [("bsp", ALL, "start"), ("asp", ALL, "planned")]
    assert not of(lines, "policy_decided")


def test_elastic_leaves_a_straggler_out_and_calls_it_back_when_it_is_well():
    lines = simulated_lines("elastic", FOR_A_WHILE, workload=4000)
    assert entered(lines) == [
        ("bsp", ALL, "start"),
        ("bsp", OTHERS, "policy"),
        ("bsp", ALL, "policy"),
        ("asp", ALL, "planned"),
    ]
    decided = of(lines, "policy_decided", "policy", "action", "workers")
    assert decided == [("elastic", "without workers [1]", [1]), ("elastic", "as planned", [1])]
    (cleared,) = [line for line in lines if line["kind"] == "straggler_cleared"]
    assert 12.0 < cleared["t"] < 16.0, "it measures itself while it is left out"
    switches = of(lines, "switch", "from", "to", "reason", "commit_secs")
    assert switches[:2] == [("bsp", "bsp", "policy", None)] * 2, "other members need no commit"
    assert all(secs < 0.1 for (secs,) in of(lines, "switch", "stall_secs"))


def test_whoever_is_still_slow_at_the_planned_switch_is_called_back_by_it():
    lines = simulated_lines("elastic", Slow(1, factor=5.0))
    assert entered(lines) == [("bsp", ALL, "start"), ("bsp", OTHERS, "policy"), ("asp", ALL, "planned")]


def test_whoever_is_slow_when_lock_step_begins_is_left_out_at_once():
    lines = simulated_lines("elastic", Slow(1, factor=5.0), plan="asp:50%,bsp")
    assert entered(lines) == [("asp", ALL, "start"), ("bsp", OTHERS, "planned")]


def test_the_rate_and_the_update_are_those_of_the_members_left():
    lines = simulated_lines("elastic", Slow(1, factor=5.0))
    assert of(lines, "phase_entered", "units_per_update") == [(4,), (3,), (1,)]
    rates = [rate for (rate,) in of(lines, "phase_entered", "learning_rate")]
    assert rates[1] == pytest.approx(rates[0] * 3 / 4)


def test_greedy_trains_asynchronously_meanwhile_and_makes_up_for_the_lock_step_share():
    lines = simulated_lines("greedy", FOR_A_WHILE, workload=4000)
    assert entered(lines) == [
        ("bsp", ALL, "start"),
        ("asp", ALL, "policy"),
        ("bsp", ALL, "policy"),
        ("asp", ALL, "planned"),
    ]
    begins = [units for (units,) in of(lines, "phase_entered", "units")]
    assert begins[1] + begins[3] - begins[2] == 2000, "units of lock-step, wherever they were done"
    assert all(secs is not None for (secs,) in of(lines, "switch", "commit_secs")), "its switches are committed"


def test_greedy_that_never_comes_back_ends_the_run_asynchronously():
    lines = simulated_lines("greedy", Slow(1, factor=4.0, start_secs=2.0))
    assert entered(lines) == [("bsp", ALL, "start"), ("asp", ALL, "policy")]


@pytest.mark.parametrize("policy", ["greedy", "elastic"])
def test_every_decision_holds_the_numbers_that_it_rests_on(policy):
    lines = simulated_lines(policy, FOR_A_WHILE, workload=4000)
    first = next(line for line in lines if line["kind"] == "policy_decided")
    assert first["rates"]["1"] == pytest.approx(5.0) and first["rates"]["0"] == pytest.approx(20.0)
    assert first["threshold"] == pytest.approx(18.0) and first["saved_secs"] > first["cost_secs"] > 0
    assert 0 < first["units_left"] < 2000 and first["why"]


def test_a_straggler_that_dies_while_it_is_left_out_stops_nobody_and_its_successor_joins():
    death = Death("worker", 1, 8.0, 2.0)
    lines = simulated_lines("elastic", Slow(1, factor=5.0, stop_secs=8.0), workload=4000, deaths=(death,))
    assert entered(lines) == [
        ("bsp", ALL, "start"),
        ("bsp", OTHERS, "policy"),
        ("bsp", ALL, "join"),
        ("asp", ALL, "planned"),
    ]


def test_a_member_that_dies_while_another_is_left_out_breaks_the_phase_and_the_other_stays_out():
    lines = simulated_lines("elastic", Slow(1, factor=5.0), workload=4000, deaths=(Death("worker", 0, 8.0, 2.0),))
    assert entered(lines) == [
        ("bsp", ALL, "start"),
        ("bsp", OTHERS, "policy"),
        ("bsp", [2, 3], "death"),
        ("bsp", OTHERS, "join"),
        ("asp", ALL, "planned"),
    ]


@pytest.mark.parametrize("policy", ["greedy", "elastic"])
def test_a_chief_that_dies_comes_back_to_what_the_policy_had_made_of_the_plan(policy):
    lines = simulated_lines(
        policy, Slow(1, factor=4.0, stop_secs=20.0), workload=4000, deaths=(Death("chief", 0, 10.0, 1.0),)
    )
    phases = of(lines, "phase_entered", "protocol", "units")
    lock_step, begin = 0, phases[0]
    for phase in [*phases[1:], ("", 4000)]:
        lock_step += (phase[1] - begin[1]) * (begin[0] == "bsp")
        begin = phase
    assert lock_step == 2000


@dataclasses.dataclass(frozen=True)
class Scripted:
    """Wants what a test has written down for so many units of lock-step left."""

    script: tuple[tuple[int, Action], ...]
    name: str = "scripted"
    keeps_protocol: bool = False

    def decide(self, view: View) -> Choice:
        return Choice(next((action for left, action in self.script if view.units_left > left), PLANNED), "as written")


def carried_out(
    script: tuple[tuple[int, Action], ...], plan: str, scenario: Scenario
) -> tuple[Checks, SimulatedCluster]:
    """Run a script with counted units and an apply log, and check everything that must hold."""
    run, checks, workdir, loop = tally_run(plan, workload=400), Checks(), Workdir(), Loop()
    checks.begin_session()
    arithmetic, recorder = Counting(SIZES), Recorder.null(VirtualClock(loop))
    options = {"logs_updates": True, "watch": checks, "workdir": workdir, "policy": Scripted(script)}
    simulated = SimulatedCluster(run, scenario, arithmetic, recorder, loop, **options)
    assert simulated.run().exit == "completed"
    checks.check_end(400, frozenset(), 1)
    return checks, simulated


def test_units_are_applied_once_over_evictions_and_detours():
    script = (
        (250, PLANNED),
        (200, ExcludeWorkers((0, 3))),
        (150, TemporaryProtocol("asp")),
        (100, ExcludeWorkers((1,))),
    )
    checks, _ = carried_out(script, "bsp:80%,asp", Scenario(cluster=EVEN))
    found = [(phase.spec, phase.members) for phase in checks.phases.values()]
    assert ("bsp", (1, 2)) in found and ("bsp", (0, 2, 3)) in found and ("asp", (0, 1, 2, 3)) in found[:-1]


def test_a_detour_is_kept_by_checkpoints_so_that_a_resume_makes_up_for_it():
    script = ((250, PLANNED), (200, TemporaryProtocol("asp")))
    _, simulated = carried_out(script, "bsp:80%,asp", Scenario(cluster=EVEN))
    kept = [saved.run["detours"] for saved in simulated.workdir.commits]
    assert kept[0] == [] and kept[-1] and all(start < stop for start, stop in kept[-1])


def test_a_worker_that_is_stopped_while_it_is_left_out_is_no_bother():
    scenario = Scenario(cluster=EVEN, pauses=(Pause(3, 1.5, 1.0),))
    carried_out(((300, PLANNED), (0, ExcludeWorkers((3,)))), "bsp:90%,asp", scenario)
