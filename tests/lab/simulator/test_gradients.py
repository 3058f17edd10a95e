"""Real gradients in virtual time: what a real run computes, bit for bit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hybridsync.config import PolicyConfig, RunConfig
from hybridsync.core.errors import Diverged, HybridSyncError
from hybridsync.lab.replay.logged_run import LoggedPhase, read_record
from hybridsync.lab.replay.verdict import compare
from hybridsync.lab.simulator.cluster import Cluster, Device, Scenario
from hybridsync.lab.simulator.event_loop import Loop, VirtualClock
from hybridsync.lab.simulator.gradients import RealArithmetic, evaluator
from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster
from hybridsync.lab.testing.log_order import follow
from hybridsync.storage.apply_log_entries import Entry
from hybridsync.telemetry.recorder import Recorder
from hybridsync.trainer import Trainer
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.run import Run
from hybridsync.training.task import Task
from tests.tasks import UNIT_SIZE, batchnorm_task, mlp_task, momentum_sgd
from tests.trainers import LOGGED, NEVER


def run_of(
    plan: str,
    workers: int,
    task: Task | None = None,
    optimizer: Optimizer | None = None,
    workload: int = 90,
    shares: tuple[int, ...] = (),
) -> Run:
    policy = PolicyConfig(shares=shares)
    values = {"checkpoint": NEVER, "telemetry": LOGGED, "policy": policy}
    config = RunConfig(workload=workload, unit_size=UNIT_SIZE, workers=workers, plan=plan, seed=3, **values)
    return Run(config, task or mlp_task(), optimizer or momentum_sgd(0.02), None)


def simulate(run: Run, **options: Any) -> SimulatedCluster:
    loop = Loop()
    scenario = Scenario(cluster=Cluster(devices=(Device(0.05, spread=0.3),)))
    simulated = SimulatedCluster(run, scenario, RealArithmetic(run), Recorder.null(VirtualClock(loop)), loop, **options)
    assert simulated.run().exit == "completed"
    return simulated


def fit(run: Run, workdir: Path) -> Any:
    return Trainer(run.task, run.optimizer, run.config, workdir=workdir, progress=False).fit()


PLANS = ["bsp:40%,asp", "asp(wire=bfloat16)", "psplus", "localsgd(steps=7)", "bsp:40%,diloco(steps=7)"]


@pytest.mark.parametrize("plan", PLANS)
def test_a_simulated_worker_ends_with_the_bits_of_a_real_one(tmp_path: Path, plan: str) -> None:
    run = run_of(plan, workers=1)
    real = fit(run, tmp_path)
    difference = compare(jax.device_get(simulate(run).final), real.state)
    assert difference is None, str(difference)


def test_members_of_a_mesh_end_with_the_bits_of_a_rendezvous(tmp_path: Path) -> None:
    run = run_of("bsp", workers=4)  # 90 units: two members are idle in the last step
    real = fit(run, tmp_path)
    difference = compare(jax.device_get(simulate(run).final), real.state)
    assert difference is None, str(difference)


@pytest.mark.parametrize("task", [mlp_task(), batchnorm_task()], ids=["mlp", "batchnorm"])
def test_members_that_take_shares_end_with_the_bits_of_a_real_run(tmp_path: Path, task: Task) -> None:
    run = run_of("bsp", workers=4, task=task, shares=(4, 4, 1, 4))  # 90 units: the last step has 12 of 13
    real = fit(run, tmp_path)
    difference = compare(jax.device_get(simulate(run).final), real.state)
    assert difference is None, str(difference)
    followed = follow(run, read_record(tmp_path).phases, RealArithmetic(run))
    assert compare(jax.device_get(followed), real.state) is None


@pytest.mark.parametrize(
    ("plan", "task"),
    [
        ("bsp:40%,asp:30%,bsp", batchnorm_task),
        ("psplus:50%,localsgd(steps=4)", mlp_task),
        pytest.param("bsp:40%,asp:30%,bsp", mlp_task, marks=pytest.mark.soak),
        pytest.param("psplus:50%,localsgd(steps=4)", batchnorm_task, marks=pytest.mark.soak),
    ],
)
def test_a_real_runs_order_of_updates_leads_the_simulator_to_its_bits(tmp_path: Path, task: Any, plan: str) -> None:
    run = run_of(plan, workers=4, task=task())
    real = fit(run, tmp_path)
    state = follow(run, read_record(tmp_path).phases, RealArithmetic(run))
    difference = compare(jax.device_get(state), real.state)
    assert difference is None, str(difference)


def logged(number: int, spec: str, members: tuple[int, ...], entries: tuple[Entry, ...]) -> LoggedPhase:
    return LoggedPhase(number, spec, members, device_choice=0, runtime="simulated", fingerprint="", entries=entries)


def test_a_simulated_runs_order_leads_to_its_bits() -> None:
    run = run_of("asp", workers=4)
    simulated = simulate(run, logs_updates=True)
    assert max(entry.sequence - 1 - entry.base for entry in simulated.log) >= 3, "nothing was stale"
    phase = logged(1, "asp", (0, 1, 2, 3), tuple(simulated.log))
    assert fingerprint(follow(run, [phase], RealArithmetic(run))) == fingerprint(simulated.final)


@pytest.mark.parametrize(
    "spec", ["bsp_server", "ssp(staleness=1)", "gba(batch=3)", "backup", "gba(staleness_rule=rate)"]
)
def test_the_order_of_pushes_that_are_held_leads_to_its_bits(spec: str) -> None:
    run = run_of(spec, workers=4)
    simulated = simulate(run, logs_updates=True)
    phase = logged(1, spec, (0, 1, 2, 3), tuple(simulated.log))
    assert fingerprint(follow(run, [phase], RealArithmetic(run))) == fingerprint(simulated.final)


def test_an_order_that_the_protocol_does_not_have_is_refused() -> None:
    run = run_of("asp", workers=4)
    log = simulate(run, logs_updates=True).log
    log[10] = dataclasses.replace(log[10], rate=0.5)
    with pytest.raises(HybridSyncError, match="another protocol"):
        follow(run, [logged(1, "asp", (0, 1, 2, 3), tuple(log))], RealArithmetic(run))


def test_an_order_of_more_workers_than_there_were_is_refused() -> None:
    run = run_of("asp", workers=4)
    log = simulate(run, logs_updates=True).log
    with pytest.raises(HybridSyncError, match="all of the 1 members had newer ones"):
        follow(run, [logged(1, "asp", (0,), tuple(log))], RealArithmetic(run))


def spoiled(every: int) -> Task:
    """Return a task of which about one unit in `every` has no finite loss; 1 spoils all."""
    whole = mlp_task()

    def loss(params: Any, model_state: Any, batch: Any, key: Any) -> Any:
        value, rest = whole.loss(params, model_state, batch, key)
        return jnp.where(jnp.sum(batch["label"]) % every == 0, jnp.nan, value), rest

    return dataclasses.replace(whole, loss=loss)


@pytest.mark.parametrize("plan", ["asp", "bsp"])
def test_units_that_are_not_finite_are_dropped_and_others_take_their_place(plan: str) -> None:
    run = run_of(plan, workers=4, task=spoiled(7))
    simulated = simulate(run, logs_updates=True)
    counts = simulated.chief.state.ledger.counts()
    assert counts.applied == 90
    assert counts.dropped > 3
    phases = [  # a lock-step phase that ends short is entered again
        logged(phase_id, plan, (0, 1, 2, 3), tuple(entry for entry in simulated.log if entry.phase == phase_id))
        for phase_id in sorted({entry.phase for entry in simulated.log})
    ]
    assert fingerprint(follow(run, phases, RealArithmetic(run))) == fingerprint(simulated.final)


def test_the_order_of_a_mesh_that_dropped_units_leads_to_its_bits(tmp_path: Path) -> None:
    run = run_of("bsp", workers=4, task=spoiled(7))
    real = fit(run, tmp_path)
    assert real.summary.units.dropped
    difference = compare(jax.device_get(follow(run, read_record(tmp_path).phases, RealArithmetic(run))), real.state)
    assert difference is None, str(difference)


@pytest.mark.parametrize("plan", ["asp", "bsp"])
def test_divergence_ends_a_simulated_run_as_it_ends_a_real_one(plan: str) -> None:
    with pytest.raises(Diverged, match="not finite"):
        simulate(run_of(plan, workers=2, task=spoiled(1)))


def test_an_older_state_survives_the_updates_behind_it() -> None:
    run = run_of("asp", workers=1)
    arithmetic = RealArithmetic(run)
    state = arithmetic.start()
    before = arithmetic.fingerprint(state)
    gradient = arithmetic.gradient(arithmetic.parameters(state), 0)
    once = arithmetic.update(state, [gradient], units=1, factor=1.0, blend=1.0)
    again = arithmetic.update(state, [gradient], units=1, factor=1.0, blend=1.0)
    assert arithmetic.fingerprint(once) == arithmetic.fingerprint(again) != before == arithmetic.fingerprint(state)


def test_a_simulation_measures_the_held_out_examples() -> None:
    run = run_of("bsp", workers=2)
    loop = Loop()
    recorder = Recorder.null(VirtualClock(loop))
    final = SimulatedCluster(run, Scenario(), RealArithmetic(run), recorder, loop, evaluator=evaluator(run)).run().final
    assert 0 <= final["accuracy"] <= 1
    assert final["loss"] > 0


def test_another_seed_needs_no_other_programs() -> None:
    run = run_of("asp", workers=1)
    other = dataclasses.replace(run, config=dataclasses.replace(run.config, seed=4))
    shared, own = RealArithmetic(run).of_seed(other), RealArithmetic(other)
    states = []
    for arithmetic in (shared, own):
        state = arithmetic.start()
        gradient = arithmetic.gradient(arithmetic.parameters(state), 7)
        states.append(arithmetic.fingerprint(arithmetic.update(state, [gradient], units=1, factor=1.0, blend=1.0)))
    assert states[0] == states[1]
