"""Group protocols in virtual time: what they cost, whom they wait for, and that the gradients are the real ones."""

from __future__ import annotations

import dataclasses

import jax
import pytest

from hybridsync.config import TelemetryConfig
from hybridsync.core.errors import HybridSyncError
from hybridsync.replay.logged_run import LoggedPhase
from hybridsync.replay.phases import on_one_device
from hybridsync.simulator.cluster import Cluster, Costs, Device, Link, Scenario, Slow
from hybridsync.simulator.event_loop import Loop, VirtualClock
from hybridsync.simulator.gradients import RealArithmetic
from hybridsync.simulator.network import Network
from hybridsync.simulator.simulated_cluster import SimulatedCluster
from hybridsync.simulator.simulation import simulate
from hybridsync.telemetry.recorder import Recorder
from hybridsync.testing.log_order import follow
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.run import Run
from tests.simulator.runs import tally_run
from tests.tasks import UNIT_SIZE, mlp_task, momentum_sgd

PLANS = ("preduce", "preduce(groups=arrival)", "preduce(groups=static)", "preduce(groups=inter,node=2)", "adpsgd")
NODES = Cluster(node_size=4, worker_link=Link(1e-4, 1e8), node_link=Link(5e-6, 1e10))


@pytest.mark.parametrize("plan", PLANS)
def test_a_simulated_group_run_applies_every_unit_once_and_is_the_same_for_a_seed(plan: str) -> None:
    run = tally_run(f"bsp:20%,{plan}", workload=300, workers=8)
    first, second = simulate(run, seed=1), simulate(run, seed=1)
    units = first.summary.units
    assert (units.issued, units.applied, units.dropped, units.outstanding) == (300, 300, 0, 0)
    assert (first.seconds, first.events) == (second.seconds, second.events)


@pytest.mark.parametrize("plan", ["preduce", "adpsgd", "preduce(groups=arrival,period=4)"])
def test_simulated_gradients_are_those_of_the_replayed_group_rounds(plan: str) -> None:
    run = dataclasses.replace(tally_run(plan, workload=48), task=mlp_task(), optimizer=momentum_sgd(0.02))
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, unit_size=UNIT_SIZE))
    simulated = cluster_of(run)
    simulated.run()
    entries = tuple(simulated.log)
    assert sum(len(entry.units) for entry in entries) == 48
    phase = LoggedPhase(1, plan, (0, 1, 2, 3), 0, "inprocess", "", entries)
    start = jax.device_put(run.initial_state())
    replayed = on_one_device(run.programs(donate_parameters=False), start, phase, lambda update: None)
    assert fingerprint(replayed) == fingerprint(simulated.final)
    with pytest.raises(HybridSyncError, match="was in groups"):
        follow(run, [phase], RealArithmetic(run))


def cluster_of(run: Run, scenario: Scenario | None = None) -> SimulatedCluster:
    loop = Loop()
    recorder = Recorder.null(VirtualClock(loop))
    return SimulatedCluster(run, scenario or Scenario(), RealArithmetic(run), recorder, loop, logs_updates=True)


def test_a_slow_worker_holds_up_lock_step_and_not_the_groups_whose_filter_leaves_it_out() -> None:
    slow = Scenario(Cluster((Device(0.05, spread=0.1),)), slow=(Slow(0, factor=5.0),))

    def secs(plan: str) -> float:
        return simulate(tally_run(plan, workload=600, workers=8), slow).seconds

    lock_step, filtered, unfiltered = secs("bsp"), secs("preduce(size=3)"), secs("preduce(size=3,slowdown=0)")
    assert filtered < 0.4 * lock_step
    assert filtered < 0.85 * unfiltered
    assert secs("preduce(groups=arrival)") < 0.5 * lock_step


def test_a_group_costs_a_ring_over_its_members_and_less_inside_a_machine() -> None:
    network = Network(Loop(), Scenario(NODES), None, 1)  # pyright: ignore[reportArgumentType]
    step = NODES.costs.step_secs
    inside = network.averaged_at((0, 1), 10**7)
    assert inside == pytest.approx(step + 2 * (5e-6 + 0.5 * 10**7 / 1e10))
    across = network.averaged_at((0, 4), 10**7)
    assert across == pytest.approx(step + 2 * (1e-4 + 0.5 * 10**7 / 1e8))
    assert network.averaged_at((1, 5), 10**7) > 1.9 * (across - step), "the machine's port is in use"
    assert network.averaged_at((8, 12), 10**7) == pytest.approx(across)


def test_a_schedule_by_machines_keeps_most_averages_off_the_network() -> None:
    cluster = dataclasses.replace(NODES, devices=(Device(0.01),), costs=Costs(step_secs=1e-4))
    run = dataclasses.replace(tally_run("preduce", workload=800, workers=8), workdir=None)

    def rate(plan: str) -> float:
        config = dataclasses.replace(run.config, plan=plan, telemetry=TelemetryConfig(log_secs=1.0))
        wide = dataclasses.replace(run, config=config, task=mlp_task(), optimizer=momentum_sgd())
        return simulate(wide, Scenario(dataclasses.replace(cluster, worker_link=Link(1e-3, 1e6)))).units_per_sec

    assert rate("preduce(groups=static)") > 1.2 * rate("preduce(slowdown=0)")
    assert rate("preduce(groups=inter)") > 1.2 * rate("bsp")
