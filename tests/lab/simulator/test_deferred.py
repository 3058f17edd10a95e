"""Gradients in compiled blocks: the schedule of real ones, and their numbers but for the last bits."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hybridsync.config import PolicyConfig, RunConfig, TelemetryConfig
from hybridsync.core.errors import ConfigError
from hybridsync.data.synthetic import SyntheticSource
from hybridsync.lab.simulator.cluster import Cluster, Costs, Death, Device, Scenario, Switch
from hybridsync.lab.simulator.deferred import DeferredArithmetic
from hybridsync.lab.simulator.event_loop import Loop, VirtualClock
from hybridsync.lab.simulator.gradients import RealArithmetic
from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster
from hybridsync.lab.simulator.simulation import simulate
from hybridsync.storage.apply_log_entries import Entry
from hybridsync.telemetry.recorder import Recorder
from hybridsync.telemetry.summary import Summary
from hybridsync.training.run import Run
from hybridsync.training.task import Task
from tests.tasks import UNIT_SIZE, batchnorm_task, mlp_task, momentum_sgd
from tests.trainers import NEVER

CLUSTER = Cluster(devices=(Device(0.05, spread=0.3),), costs=Costs(restart_secs=0.4))
CLOSE = 1e-6


def run_of(plan: str, task: Task | None = None, workers: int = 4, **policy: Any) -> Run:
    config = RunConfig(
        workload=200,
        unit_size=UNIT_SIZE,
        workers=workers,
        plan=plan,
        seed=3,
        checkpoint=NEVER,
        telemetry=TelemetryConfig(evaluate_units=50),
        policy=PolicyConfig(**policy),
    )
    return Run(config, task or batchnorm_task(), momentum_sgd(0.02), None)


def simulated(run: Run, arithmetic: Any, **scenario: Any) -> tuple[Summary, list[Entry], dict[int, Any]]:
    """Return the summary, the log of updates, and the evaluated states by their units; the final one is 200."""
    loop, states = Loop(), {}

    def evaluate(state: Any, snapshot: Any) -> None:
        states[snapshot.held.units] = jax.device_get(state)

    recorder = Recorder.null(VirtualClock(loop))
    options: dict[str, Any] = {"logs_updates": True, "evaluator": evaluate}
    cluster = SimulatedCluster(run, Scenario(CLUSTER, **scenario), arithmetic, recorder, loop, **options)
    summary = cluster.run()
    return summary, cluster.log, states | {200: jax.device_get(cluster.final)}


@functools.cache
def arithmetics(task: Task, policy: PolicyConfig) -> tuple[RealArithmetic, DeferredArithmetic]:
    """Return what serves every plan of a task, compiled once."""
    run = run_of("bsp:50%,asp", task)
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, policy=policy))
    return RealArithmetic(run), DeferredArithmetic(run)


def assert_alike(run: Run, **scenario: Any) -> list[Entry]:
    one_by_one, in_blocks = arithmetics(run.task, dataclasses.replace(run.config.policy, shares=()))
    real, log, states = simulated(run, one_by_one.of_seed(run), **scenario)
    summary, compiled_log, compiled = simulated(run, in_blocks.of_seed(run), **scenario)
    assert compiled_log == log
    assert (summary.seconds, summary.staleness, summary.units) == (real.seconds, real.staleness, real.units)
    assert compiled.keys() == states.keys() and len(states) >= 2
    for units, state in states.items():
        assert distance(compiled[units], state) < CLOSE, units
    return log


def distance(found: Any, expected: Any) -> float:
    """Return the largest relative norm of a leaf's difference; whole numbers must be equal."""
    distances, before = [], jax.tree_util.tree_leaves_with_path(expected)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, leaf), other in zip(before, jax.tree.leaves(found), strict=True):
        if not np.issubdtype(leaf.dtype, np.floating):
            assert (leaf == other).all(), path
            continue
        leaf, other = leaf.astype(np.float64), other.astype(np.float64)
        distances.append(np.linalg.norm(other - leaf) / max(np.linalg.norm(leaf), 1e-3))
    return float(np.max(distances))  # not a number where one is none


@pytest.mark.parametrize(
    "plan",
    ["bsp", "asp", "ssp(staleness=1)", "hsp", "hsp(stale=1)", "bsp_server", "dssp", "backup", "bsp:25%,asp"],
)
def test_200_units_end_as_with_gradients_one_by_one(plan: str) -> None:
    assert_alike(run_of(plan))


@pytest.mark.parametrize("plan", ["gba(batch=3)", "asp(staleness_rule=rate)", "asp:25%,bsp:25%,ssp"])
def test_rates_and_weights_by_staleness_and_two_switches_end_alike(plan: str) -> None:
    assert_alike(run_of(plan, mlp_task()))


def test_members_that_take_shares_of_a_step_end_alike() -> None:
    assert_alike(run_of("bsp", mlp_task(), shares=(3, 3, 1, 3)))  # no bias whose gradient is rounding alone


class Dropping(nnx.Module):
    """A linear model of what is not dropped."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.drop, self.scores = nnx.Dropout(0.3, rngs=rngs), nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.scores(self.drop(x.reshape(len(x), -1)))


def test_a_model_that_draws_from_the_units_key_ends_alike() -> None:
    task = Task.from_nnx(Dropping, SyntheticSource(512, (4, 4, 1), num_classes=4, num_test=64))
    assert_alike(run_of("bsp:25%,asp", task))


@pytest.mark.parametrize("momentum", ["zero", "ramp_linear"])
def test_a_momentum_that_changes_at_the_switch_ends_alike(momentum: str) -> None:
    assert_alike(run_of("bsp:50%,asp", momentum=momentum))


def test_an_older_state_is_taken_up_again_after_its_server_and_a_worker_died() -> None:
    deaths = (Death("worker", 1, at_secs=0.8), Death("server", 0, at_secs=1.4))
    run = run_of("asp")
    assert len({entry.phase for entry in assert_alike(run, deaths=deaths)}) > 1


def test_another_seed_has_its_own_start_and_data() -> None:
    run = run_of("asp")
    other = dataclasses.replace(run, config=dataclasses.replace(run.config, seed=4))
    first = DeferredArithmetic(run)
    simulated(run, first)
    _, _, shared = simulated(other, first.of_seed(other))
    _, _, own = simulated(other, RealArithmetic(other))
    assert distance(shared[200], own[200]) < CLOSE


def test_a_simulation_measures_the_final_state_and_names_it() -> None:
    run = run_of("bsp:25%,asp")
    real, compiled, again = (simulate(run, gradients=kind) for kind in ("real", "compiled", "compiled"))
    assert compiled.summary.final["accuracy"] == pytest.approx(real.summary.final["accuracy"], abs=0.02)
    assert compiled.summary.final["loss"] == pytest.approx(real.summary.final["loss"], rel=1e-4)
    assert compiled.fingerprint == again.fingerprint != f"{0:032x}"
    assert len(compiled.fingerprint) == len(real.fingerprint)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ("localsgd", "'localsgd': its workers make updates of their own"),
        ("bsp:25%,psplus", "'psplus': its workers make updates of their own"),
        ("preduce", "'preduce': its workers average replicas"),
        ("asp(staleness_rule=dc)", "'asp': its server corrects stale gradients"),
        ("asp(wire=bfloat16)", "'asp': it rounds to bfloat16"),
    ],
)
def test_a_protocol_with_other_updates_is_refused_by_its_name(plan: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        DeferredArithmetic(run_of(plan))
    assert "gradients=real" in str(refused.value)


def test_an_ordered_switch_to_such_a_protocol_is_refused_before_the_run() -> None:
    scenario = Scenario(CLUSTER, switches=(Switch(1.0, "localsgd"),))
    with pytest.raises(ConfigError, match="'localsgd'"):
        simulate(run_of("asp"), scenario, gradients="compiled")


def test_a_trigger_that_follows_the_loss_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"policy\.trigger='knee'"):
        DeferredArithmetic(run_of("bsp:50%,asp", trigger="knee"))


@pytest.mark.parametrize("plan", ["asp", "bsp"])
def test_a_unit_that_is_not_finite_ends_the_run_and_is_named(plan: str) -> None:
    whole = mlp_task()

    def loss(params: Any, model_state: Any, batch: Any, key: Any) -> Any:
        value, rest = whole.loss(params, model_state, batch, key)
        return jnp.where(jnp.sum(batch["label"]) % 7 == 0, jnp.nan, value), rest

    run = run_of(plan, dataclasses.replace(whole, loss=loss))
    with pytest.raises(ConfigError, match=r"unit.* is not finite.*gradients=real"):
        simulate(run, gradients="compiled")
