"""A lock-step stage that ends where the loss stops falling, in virtual time with a loss that a test makes up."""

from __future__ import annotations

import dataclasses
import io
import json
from collections import Counter
from typing import Any

import pytest

from hybridsync.config import PolicyConfig
from hybridsync.core.errors import ConfigError
from hybridsync.lab.simulator.arithmetic import Counting
from hybridsync.lab.simulator.cluster import Cluster, Death, Device, Scenario
from hybridsync.lab.simulator.event_loop import Loop, VirtualClock
from hybridsync.lab.simulator.fake_io import Workdir
from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster
from hybridsync.lab.simulator.simulation import simulate
from hybridsync.lab.testing.checks import SIZES, Checks
from hybridsync.telemetry.recorder import Recorder
from hybridsync.training.run import Run
from tests.lab.simulator.runs import tally_run

SCENARIO = Scenario(cluster=Cluster(devices=(Device(0.02, 0.1),)))


def run_of(plan: str, workload: int = 2000, **policy: Any) -> Run:
    run = tally_run(plan, workload=workload)
    return dataclasses.replace(run, config=dataclasses.replace(run.config, policy=PolicyConfig(**policy)))


def simulated_events(run: Run, scenario: Scenario = SCENARIO) -> list[dict[str, Any]]:
    file = io.StringIO()
    simulate(run, scenario, events=file)
    return [json.loads(line) for line in file.getvalue().splitlines()]


def phases(events: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    return [(e["protocol"], e["reason"], e["units"]) for e in events if e["kind"] == "phase_entered"]


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tally's units have no loss in virtual time: a worker reports one that falls by half every 100 units."""
    from hybridsync.phases.reporter import Reporter

    told: Counter[Reporter] = Counter()

    def take_losses(reporter: Reporter) -> tuple[float, int]:
        with reporter._control.turn() as chief:
            units = chief.ledger.num_applied
        news, told[reporter] = units - told[reporter], units
        return news * 2 ** (-units / 100), news

    monkeypatch.setattr(Reporter, "take_losses", take_losses)


@pytest.mark.usefixtures("losses")
def test_lock_step_is_left_at_the_knee_and_asynchrony_goes_on_to_the_end() -> None:
    events = simulated_events(run_of("bsp:60%,asp", trigger="knee"))
    (first, second) = phases(events)
    assert first[0] == "bsp" and second[:2] == ("asp", "policy") and 400 <= second[2] <= 1000
    (decided,) = (e for e in events if e["kind"] == "policy_decided")
    assert (decided["policy"], decided["action"]) == ("knee", "asp from here on")
    assert decided["units_left"] + second[2] <= 1200 + 100 and events[-1]["exit"] == "completed"


@pytest.mark.usefixtures("losses")
def test_the_commit_of_the_switch_knows_of_the_end_so_that_a_resume_from_it_does_not_go_back() -> None:
    workdir, loop, checks = Workdir(), Loop(), Checks()
    checks.begin_session()
    recorder, options = Recorder.null(VirtualClock(loop)), {"watch": checks, "workdir": workdir}
    run = run_of("bsp:60%,asp", trigger="knee")
    assert SimulatedCluster(run, SCENARIO, Counting(SIZES), recorder, loop, **options).run().exit == "completed"
    (left,) = (sum(stop - start for start, stop in p.applied) for p in checks.phases.values() if p.spec == "asp")
    kept = {saved.snapshot.held.units: saved.run["detours"] for saved in workdir.commits}
    assert 0 < left < 1200 and kept[left] == kept[2000] == [[left, left]]
    assert all(not told for units, told in kept.items() if units < left)


@pytest.mark.usefixtures("losses")
def test_the_plans_share_is_the_most_and_without_a_trigger_all_of_it() -> None:
    assert phases(simulated_events(run_of("bsp:10%,asp", trigger="knee")))[1] == ("asp", "planned", 200)
    assert phases(simulated_events(run_of("bsp:60%,asp")))[1] == ("asp", "planned", 1200)


@pytest.mark.usefixtures("losses")
@pytest.mark.parametrize("role", ["worker", "server", "chief"])
def test_lock_step_does_not_come_back_after_a_loss(role: Any) -> None:
    undisturbed = phases(simulated_events(run_of("bsp:60%,asp", trigger="knee")))
    deaths = tuple(Death(role, 0, at_secs) for at_secs in (2.0, 6.0))
    entered = phases(
        simulated_events(run_of("bsp:60%,asp", trigger="knee"), dataclasses.replace(SCENARIO, deaths=deaths))
    )
    left = next(at for at, (protocol, _, _) in enumerate(entered) if protocol == "asp")
    assert all(protocol == "asp" for protocol, _, _ in entered[left:])
    assert entered[left][2] <= undisturbed[1][2] + 400


def test_a_run_without_losses_keeps_to_its_plan() -> None:
    assert phases(simulated_events(run_of("bsp:60%,asp", trigger="knee")))[1] == ("asp", "planned", 1200)


@pytest.mark.parametrize("plan", ["bsp", "asp:50%,bsp", "bsp:50%,preduce", "asp"])
def test_a_plan_that_lock_step_cannot_leave_is_refused(plan: str) -> None:
    with pytest.raises(ConfigError, match=r"policy\.trigger is 'knee', but no lock-step stage of the plan .*50%,asp"):
        run_of(plan, trigger="knee").check()


def test_two_that_say_when_lock_step_ends_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'greedy' and policy\.trigger is 'knee': both say when lock-step ends"):
        PolicyConfig(online="greedy", trigger="knee")
    with pytest.raises(ConfigError, match=r"policy is 'knee', but policy\.momentum is 'ramp_linear'"):
        PolicyConfig(trigger="knee", momentum="ramp_linear")


@pytest.mark.usefixtures("losses")
def test_a_later_stage_of_lock_step_keeps_its_share() -> None:
    entered = phases(simulated_events(run_of("bsp:40%,asp:20%,bsp:20%,asp", workload=4000, trigger="knee")))
    assert [protocol for protocol, _, _ in entered] == ["bsp", "asp", "bsp", "asp"]
    assert entered[1][1] == "policy" and entered[2:] == [("bsp", "planned", 2400), ("asp", "planned", 3200)]


def resumed(plan: str, **policy: Any) -> tuple[int, list[tuple[str, int]]]:
    """Stop a run behind its early end, at less than its lock-step share, and resume it with another configuration.

    Returns:
      Where it went on, and the protocols that it entered from there on, with the units applied then.
    """
    workdir, checks, known = Workdir(), Checks(), set[int]()
    before = run_of("bsp:60%,asp", trigger="knee")
    sessions = (before, dataclasses.replace(SCENARIO, preempt_secs=5.75)), (run_of(plan, **policy), SCENARIO)
    for run, scenario in sessions:
        known = set(checks.phases)
        checks.begin_session()
        loop = Loop()
        options = {"watch": checks, "workdir": workdir, "logs_updates": True}
        SimulatedCluster(run, scenario, Counting(SIZES), Recorder.null(VirtualClock(loop)), loop, **options).run()
    checks.check_end(2000, frozenset(), 2)
    entered = [phase for phase_id, phase in checks.phases.items() if phase_id not in known]
    assert any(phase.spec == "asp" for phase_id, phase in checks.phases.items() if phase_id in known), (
        "it had left lock-step"
    )
    at = [(phase.spec, sum(stop - start for start, stop in phase.applied)) for phase in entered]
    return at[0][1], at


@pytest.mark.usefixtures("losses")
@pytest.mark.parametrize("plan", ["bsp:60%,asp", "bsp:60%,ssp"])
def test_a_resume_stays_out_of_lock_step_where_nothing_else_is_asked_of_it(plan: str) -> None:
    begin, entered = resumed(plan, trigger="knee")
    assert entered == [(plan.rpartition(",")[2], begin)]


@pytest.mark.usefixtures("losses")
@pytest.mark.parametrize(("plan", "end"), [("bsp:60%,asp", 1200), ("bsp:70%,asp", 1400)])
def test_a_resume_without_the_trigger_goes_by_the_plans_share_again(plan: str, end: int) -> None:
    begin, entered = resumed(plan, trigger="off")
    assert begin < 1200 and entered == [("bsp", begin), ("asp", end)]


@pytest.mark.usefixtures("losses")
def test_a_resume_with_another_share_of_lock_step_looks_for_the_knee_again() -> None:
    begin, entered = resumed("bsp:70%,asp", trigger="knee")
    assert entered[0] == ("bsp", begin) and entered[1][0] == "asp" and begin < entered[1][1] <= 1400
