"""Group protocols in virtual time: what they cost, whom they wait for, and that the gradients are the real ones."""

from __future__ import annotations

import dataclasses
import io
import json
from random import Random

import jax
import optax
import pytest

from hybridsync.config import EmulationConfig, TelemetryConfig
from hybridsync.core.errors import HybridSyncError
from hybridsync.lab.replay.logged_run import LoggedPhase
from hybridsync.lab.replay.phases import on_one_device
from hybridsync.lab.simulator.cluster import Cluster, Costs, Device, Link, Scenario, Slow
from hybridsync.lab.simulator.event_loop import Loop, VirtualClock
from hybridsync.lab.simulator.gradients import RealArithmetic
from hybridsync.lab.simulator.network import NOTHING_EMULATED, Network
from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster
from hybridsync.lab.simulator.simulation import simulate
from hybridsync.lab.testing.log_order import follow
from hybridsync.telemetry.recorder import Recorder
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.run import Run
from tests.lab.simulator.runs import tally_run
from tests.tasks import UNIT_SIZE, mlp_task, momentum_sgd

NAIVE = "preduce(buffer=false,division=false,slowdown=0)"
PLANS = (
    *("preduce", "preduce(groups=arrival)", "preduce(groups=static)", "preduce(groups=inter,node=2)", "adpsgd"),
    *(NAIVE, "preduce(division=false)", "preduce(buffer=false)", "preduce(size=auto)"),
)
NODES = Cluster(node_size=4, worker_link=Link(1e-4, 1e8), node_link=Link(5e-6, 1e10))


@pytest.mark.parametrize("plan", PLANS)
def test_a_simulated_group_run_applies_every_unit_once_and_is_the_same_for_a_seed(plan: str) -> None:
    run = tally_run(f"bsp:20%,{plan}", workload=300, workers=8)
    first, second = simulate(run, seed=1), simulate(run, seed=1)
    units = first.summary.units
    assert (units.issued, units.applied, units.dropped, units.outstanding) == (300, 300, 0, 0)
    assert (first.seconds, first.events) == (second.seconds, second.events)


@pytest.mark.parametrize("plan", ["preduce", "adpsgd", "preduce(groups=arrival,period=4)", NAIVE])
def test_simulated_gradients_are_those_of_the_replayed_group_rounds(plan: str) -> None:
    falling = Optimizer(optax.sgd, learning_rate=optax.cosine_decay_schedule(0.02, 48), per="units", momentum=0.9)
    run = dataclasses.replace(tally_run(plan, workload=48), task=mlp_task(), optimizer=falling)
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


def test_a_full_synchronisation_does_not_wait_until_everybody_has_taken_its_local_steps() -> None:
    plan = "preduce(every=200)"
    evaluated = TelemetryConfig(log_secs=1.0, evaluate_units=100)
    run = tally_run(plan, workload=800)
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, telemetry=evaluated))
    file = io.StringIO()
    simulate(run, gradients="real", events=file)
    events = [json.loads(line) for line in file.getvalue().splitlines()]
    examples = [event["examples"] for event in events if event["kind"] == "evaluation"]
    assert len([count for count in examples if count < 700]) >= 3, f"each waited for 200 units of a worker: {examples}"


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


def averages(cluster: Cluster, *groups: tuple[int, ...], emulation: EmulationConfig = NOTHING_EMULATED) -> list[float]:
    """Return how long the average of 10 MB of each group takes, where all begin together."""
    loop, ended = Loop(), dict[tuple[int, ...], float]()
    network = Network(loop, Scenario(cluster), Random(0), 1, emulation)
    for group in groups:
        network.all_reduce(group, 10**7, 0.0, lambda group=group: ended.__setitem__(group, loop.now))
    loop.run_until(60.0)
    return [ended[group] for group in groups]


def test_a_group_costs_a_ring_over_its_members_and_less_inside_a_machine() -> None:
    inside, across, latencies = (0, 1), (0, 4), 2 * 1e-4
    assert averages(NODES, inside) == pytest.approx([2 * (5e-6 + 0.5 * 10**7 / 1e10)])
    assert averages(NODES, across) == pytest.approx([latencies + 0.1])
    shared = averages(NODES, across, (1, 5), (8, 12))
    assert shared == pytest.approx([latencies + 0.2, latencies + 0.2, latencies + 0.1]), "the first two share ports"


def test_a_group_and_a_lock_step_step_pass_the_emulated_links() -> None:
    slow = EmulationConfig(link_bytes_per_sec=1e7, latency_secs=1e-3)
    assert averages(Cluster(), (0, 1), emulation=slow) == pytest.approx([2 * (1e-4 + 1e-3 + 0.5 * 10**7 / 1e7)])

    def secs(plan: str, emulation: EmulationConfig) -> float:
        run = tally_run(plan, workload=80, workers=4)
        config = dataclasses.replace(run.config, emulation=emulation)
        return simulate(dataclasses.replace(run, config=config, workdir=None)).seconds

    late = EmulationConfig(latency_secs=1e-2)
    assert secs("bsp", late) - secs("bsp", EmulationConfig()) == pytest.approx(20 * 6 * 1e-2, rel=0.05)
    assert secs("preduce", late) - secs("preduce", EmulationConfig()) > 19 * 2 * 1e-2


def test_a_schedule_by_machines_keeps_most_averages_off_the_network() -> None:
    cluster = dataclasses.replace(NODES, devices=(Device(0.01),), costs=Costs(step_secs=1e-4))
    run = dataclasses.replace(tally_run("preduce", workload=800, workers=8), workdir=None)

    def rate(plan: str) -> float:
        config = dataclasses.replace(run.config, plan=plan, telemetry=TelemetryConfig(log_secs=1.0))
        wide = dataclasses.replace(run, config=config, task=mlp_task(), optimizer=momentum_sgd())
        return simulate(wide, Scenario(dataclasses.replace(cluster, worker_link=Link(1e-3, 1e6)))).units_per_sec

    assert rate("preduce(groups=static)") > 1.2 * rate("preduce(slowdown=0)")
    assert rate("preduce(groups=inter)") > 1.2 * rate("bsp")
