"""What becomes of the momentum at a switch to asynchrony: in the optax state, in each runtime, resumed, replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hybridsync.config import EmulationConfig, PolicyConfig, RunConfig, check_resumable, to_json
from hybridsync.core.errors import OptimizerError, ResumeError
from hybridsync.lab.replay.logged_run import read_record
from hybridsync.lab.replay.verdict import replay
from hybridsync.lab.simulator.cluster import Cluster, Device, Scenario
from hybridsync.lab.simulator.event_loop import Loop, VirtualClock
from hybridsync.lab.simulator.gradients import RealArithmetic
from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster
from hybridsync.lab.testing.log_order import follow
from hybridsync.server.partition import partition
from hybridsync.telemetry.recorder import Recorder
from hybridsync.trainer import Trainer
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.compiled_programs import Parameters, Programs
from hybridsync.training.optimizer import Optimizer, momentum_slots, without_momentum
from hybridsync.training.run import Run
from hybridsync.training.state import initial_state
from tests.sweeps import swept
from tests.tasks import UNIT_SIZE, adamw, mlp_task, momentum_sgd, plain_sgd
from tests.trainers import LOGGED, NEVER, fit_and_stop

VARIANTS = ["zero", "scaled", "ramp_linear", "ramp_steps", "ramp_stages"]
PARAMS = {"mu": jnp.arange(4.0), "trace": jnp.ones(3)}
GRADS = {"mu": jnp.full(4, 0.5), "trace": jnp.full(3, -1.0)}


def run_of(variant: Any, plan: str = "bsp:40%,asp", optimizer: Optimizer | None = None, **fields: Any) -> Run:
    values = {"workload": 60, "unit_size": UNIT_SIZE, "workers": 4, "seed": 3, "checkpoint": NEVER, **fields}
    config = RunConfig(plan=plan, telemetry=LOGGED, policy=PolicyConfig(momentum=variant, ramp=0.3), **values)
    return Run(config, mlp_task(), optimizer or momentum_sgd(0.02), None)


def trainer(run: Run, workdir: Path, **fields: Any) -> Trainer:
    return Trainer(run.task, run.optimizer, run.config, workdir=workdir, progress=False, **fields)


def check_replay(run: Run, workdir: Path) -> None:
    found = replay(read_record(workdir), Run(run.config, run.task, run.optimizer, workdir))
    assert found.difference is None, str(found)


def simulated(run: Run) -> Any:
    loop = Loop()
    scenario = Scenario(cluster=Cluster(devices=(Device(0.05, spread=0.3),)))
    simulated = SimulatedCluster(run, scenario, RealArithmetic(run), Recorder.null(VirtualClock(loop)), loop)
    assert simulated.run().exit == "completed"
    return jax.device_get(simulated.final)


# --- the optax state ---


def test_a_share_of_the_coefficient_is_that_coefficient_and_the_state_keeps_its_own() -> None:
    whole, half = (
        momentum_sgd(),
        Optimizer(
            lambda learning_rate, momentum: optax.sgd(learning_rate, momentum), learning_rate=0.05, momentum=0.45
        ),
    )
    states = [whole.init(PARAMS), half.init(PARAMS)]
    for _ in range(3):
        got, states[0] = whole.update(GRADS, states[0], PARAMS, jnp.float32(0.1), jnp.float32(0.5))
        expected, states[1] = half.update(GRADS, states[1], PARAMS, jnp.float32(0.1))
        assert jax.tree.all(jax.tree.map(np.array_equal, got, expected))
    assert float(states[0].hyperparams["momentum"]) == np.float32(0.9)


@pytest.mark.parametrize("optimizer", [momentum_sgd(), adamw(), Optimizer(optax.lion, learning_rate=0.1)])
def test_zeroing_takes_the_momentum_and_leaves_parameters_of_that_name_and_everything_else(optimizer: Any) -> None:
    _, state = optimizer.update(GRADS, optimizer.init(PARAMS), PARAMS, jnp.float32(0.1))
    after = without_momentum(state)
    (path,) = momentum_slots(state)
    name = path[-1].name
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(optax.tree.get(after, name, filtering=named_field)))
    put_back = optax.tree.set(after, named_field, **{name: optax.tree.get(state, name, filtering=named_field)})
    assert fingerprint(put_back) == fingerprint(state) != fingerprint(after)


def named_field(path: Any, value: Any) -> bool:
    return isinstance(path[-1], optax.tree_utils.NamedTupleKey)


def programs_of(run: Run) -> Programs:
    return run.programs(donate_parameters=False)


def test_a_phase_begins_with_zeroed_slots_where_the_switch_is_and_nowhere_else() -> None:
    programs, run = programs_of(run_of("zero")), run_of("zero")
    state = initial_state(run.task, run.optimizer, 3)
    state = programs.update(state, programs.gradient(state_parameters(state), 0), units=24, factor=4.0, blend=1.0)
    assert int(state.counters["units"]) == 24
    after = programs.entered(state)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(optax.tree.get(after.opt_state, "trace")))
    assert fingerprint(after.params) == fingerprint(state.params)
    assert fingerprint(programs.entered(after)) == fingerprint(after)
    stepped = programs.update(state, programs.gradient(state_parameters(state), 1), units=1, factor=1.0, blend=1.0)
    assert programs.entered(stepped) is stepped


def test_servers_zero_their_parts_of_what_one_server_would() -> None:
    run = run_of("zero")
    programs = programs_of(run)
    state = initial_state(run.task, run.optimizer, 3)
    state = programs.update(state, programs.gradient(state_parameters(state), 0), units=24, factor=4.0, blend=1.0)
    whole = programs.entered(state)
    for part in partition(programs, 2):
        mine = part.programs.entered(part.state.part_of(state))
        assert fingerprint(mine) == fingerprint(part.state.part_of(whole)) != fingerprint(part.state.part_of(state))


def state_parameters(state: Any) -> Any:
    return Parameters(state.params, state.model_state)


# --- refused ---


@pytest.mark.parametrize("variant", ["scaled", "ramp_linear", "ramp_steps"])
@pytest.mark.parametrize("optimizer", [plain_sgd(), adamw()])
def test_a_coefficient_that_the_factory_does_not_name_cannot_be_changed(variant: str, optimizer: Optimizer) -> None:
    with pytest.raises(OptimizerError, match=rf"policy.momentum={variant}.*no momentum.*names its hyperparameters"):
        run_of(variant, optimizer=optimizer).check()


def test_an_optimizer_without_slots_has_nothing_to_zero() -> None:
    with pytest.raises(OptimizerError, match=r"policy.momentum=zero.*no field trace or mu"):
        run_of("zero", optimizer=plain_sgd()).check()
    run_of("zero", optimizer=adamw()).check()


@pytest.mark.parametrize(
    "change", [{"plan": "bsp:20%,asp"}, {"workers": 2}, {"policy": PolicyConfig()}], ids=["plan", "workers", "policy"]
)
def test_a_resume_may_not_change_what_the_momentum_rests_on_unless_it_is_kept(change: dict[str, Any]) -> None:
    saved = to_json(run_of("scaled").config)
    (name,) = change
    with pytest.raises(ResumeError, match=rf"{name}.*while its momentum is handled"):
        check_resumable(saved, run_of(**{"variant": "scaled", **_fields(change)}).config)
    if name != "policy":
        check_resumable(to_json(run_of("keep").config), run_of(**{"variant": "keep", **change}).config)


def _fields(change: dict[str, Any]) -> dict[str, Any]:
    return {"variant": "keep"} if "policy" in change else change


# --- the runtimes ---


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_in_one_process_replays_bit_for_bit_and_so_does_the_simulator(tmp_path: Path, variant: str) -> None:
    run = run_of(variant)
    result = trainer(run, tmp_path).fit()
    check_replay(run, tmp_path)
    followed = follow(run, read_record(tmp_path).phases, RealArithmetic(run))
    assert fingerprint(jax.device_get(followed)) == fingerprint(result.state)


@pytest.mark.parametrize(
    ("variant", "plan"), [("ramp_linear", "bsp:40%,psplus"), ("zero", "psplus:20%,bsp:20%,asp:30%,bsp")]
)
def test_workers_that_step_by_themselves_and_later_stages_replay_too(tmp_path: Path, variant: str, plan: str) -> None:
    run = run_of(variant, plan)
    trainer(run, tmp_path).fit()
    check_replay(run, tmp_path)


@pytest.mark.parametrize("variant", swept(["zero", "ramp_steps"]))
def test_what_is_done_at_the_switch_is_done_once_also_in_a_run_that_is_resumed_behind_it(
    tmp_path: Path, variant: str
) -> None:
    run = run_of(variant, workload=160)
    stopped = trainer(run, tmp_path, emulation=EmulationConfig(compute_secs=0.02))
    units = fit_and_stop(stopped, 70).summary.units.applied
    assert 64 < units < 160
    assert trainer(run, tmp_path).fit().completed
    check_replay(run, tmp_path)


def test_every_variant_trains_alike_up_to_the_switch_and_otherwise_behind_it() -> None:
    lockstep = {fingerprint(simulated(run_of(variant, "bsp")).params) for variant in ("keep", *VARIANTS)}
    switched = {fingerprint(simulated(run_of(variant)).params) for variant in ("keep", *VARIANTS)}
    assert (len(lockstep), len(switched)) == (1, 1 + len(VARIANTS))


def test_a_root_scaled_run_replays_bit_for_bit(tmp_path: Path) -> None:
    run = run_of("keep", "bsp:40%,gba:30%,backup", workers=4)
    values = PolicyConfig(rate="sqrt")
    first = trainer(run, tmp_path, policy=values)
    first.fit()
    scaled = Run(first._run.config, run.task, run.optimizer, tmp_path)
    check_replay(scaled, tmp_path)
    assert {entry.rate for entry in read_record(tmp_path).entries} >= {2.0}
