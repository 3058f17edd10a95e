"""A first hour with the Trainer: the trained model, its parameters' types, and arguments that it does not know."""

from __future__ import annotations

import dataclasses
import pickle  # noqa: TID251 users' sweeps send results so
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

from hybridsync import CheckpointConfig, EmulationConfig, FitResult, RunConfig, Trainer
from hybridsync.core.errors import ConfigError, HybridSyncError, TaskError
from hybridsync.data.synthetic import SyntheticSource
from hybridsync.lab.replay.logged_run import read_record
from hybridsync.lab.replay.verdict import replay
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.run import Run
from hybridsync.training.task import Task
from tests.tasks import mlp_task, momentum_sgd, plain_sgd, tally_task
from tests.trainers import LOGGED, NEVER, events_of, fit_and_stop, mlp_trainer, tally_trainer

pytestmark = pytest.mark.usefixtures("quickly_compiled")


class Layered(nnx.Module):
    """A list, batch statistics, dropout and a table that is not learned."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(16, 8, rngs=rngs), nnx.Linear(8, 4, rngs=rngs)])
        self.norm = nnx.BatchNorm(8, momentum=0.5, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.order = nnx.Param(jnp.arange(4))

    def __call__(self, image: jax.Array) -> jax.Array:
        hidden = self.dropout(nnx.relu(self.norm(self.layers[0](image.reshape(len(image), -1)))))
        return self.layers[1](hidden)[:, self.order[...]]


class LayeredLinen(linen.Module):
    @linen.compact
    def __call__(self, image: jax.Array, train: bool = False) -> jax.Array:
        hidden = linen.BatchNorm(use_running_average=not train, momentum=0.5)(
            linen.Dense(8)(image.reshape(len(image), -1))
        )
        return linen.Dense(4)(linen.Dropout(0.5, deterministic=not train)(linen.relu(hidden)))


SOURCE = SyntheticSource(512, (4, 4, 1), num_classes=4, num_test=64)


def fit(task: Task, **options: Any) -> FitResult:
    options = {"workload": 12, "unit_size": 8, "workers": 2, "progress": False, "checkpoint": NEVER, **options}
    return Trainer(task, momentum_sgd(), **options).fit()


def accuracy(scores_of: Callable[[jax.Array], Any]) -> float:
    right = total = 0
    for batch in SOURCE.test_batches(16):
        decoded = SOURCE.prepare({name: jnp.asarray(values) for name, values in batch.items()})
        right += int((scores_of(decoded["image"]).argmax(-1) == decoded["label"]).sum())
        total += len(decoded["label"])
    return right / total


def test_the_result_is_a_model_of_the_users_class_with_parameters_and_statistics_in_place():
    result = fit(Task.from_nnx(lambda rngs: Layered(rngs), SOURCE), plan="bsp:50%,asp")
    model = result.model()
    assert type(model) is Layered
    np.testing.assert_array_equal(model.layers[1].kernel[...], result.state.params["layers"]["1"]["kernel"])
    np.testing.assert_array_equal(model.norm.mean[...], result.state.model_state["norm"]["mean"])
    assert float(jnp.abs(model.norm.mean[...]).max()) > 0
    assert accuracy(model) == pytest.approx(result.accuracy)
    model.train()
    nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)  # it is an ordinary module
    assert model(jnp.ones((2, 4, 4, 1))).shape == (2, 4)


@pytest.mark.parametrize(
    "made", [lambda: Task.from_nnx(Layered, SOURCE), lambda: Task.from_linen(LayeredLinen(), SOURCE)]
)
def test_a_result_can_be_pickled_and_says_what_is_left_out(made: Callable[[], Task]) -> None:
    task = made()
    result = fit(task)
    found = pickle.loads(pickle.dumps(result))  # noqa: S301 our own bytes
    assert (found.accuracy, found.summary) == (result.accuracy, result.summary)
    assert fingerprint(found.state) == fingerprint(result.state)
    with pytest.raises(
        HybridSyncError,
        match=r"task\.model\(task\.whole\(result\.state\.params, result\.seed\), result\.state\.model_state\)",
    ):
        found.model()


def test_a_result_and_its_state_are_shown_in_one_line_without_their_arrays() -> None:
    result = fit(mlp_task(), plan="bsp")
    assert re.fullmatch(
        r"FitResult\(completed: 12 of 12 units in \d+\.\d s, loss \d\.\d+, accuracy [\d.]+\)", repr(result)
    ), repr(result)
    assert repr(result.state).startswith("TrainState(params=<4 arrays, 676 numbers>, opt_state=<")
    assert repr(result.state).endswith("units=12, updates=6)") and len(repr(result.state)) < 200


def test_the_result_of_linen_is_the_variables_to_apply():
    module = LayeredLinen()
    result = fit(Task.from_linen(module, SOURCE))
    variables = result.model()
    assert sorted(variables) == ["batch_stats", "params"]
    assert accuracy(lambda image: module.apply(variables, image)) == pytest.approx(result.accuracy)


def test_the_result_of_plain_functions_is_the_parameters_or_what_the_task_makes_of_them():
    result = tally_trainer("asp", 16).fit()
    assert result.model() is result.state.params
    own = dataclasses.replace(tally_task(16), model=lambda params, model_state: sorted(params))
    assert Trainer(own, plain_sgd(), workload=16, unit_size=1, progress=False).fit().model() == sorted(
        result.state.params
    )


def test_a_completed_run_that_is_asked_again_returns_its_model(tmp_path):
    task = Task.from_nnx(lambda rngs: Layered(rngs), SOURCE)
    first, again = (fit(task, workdir=tmp_path / "run").model() for _ in range(2))
    assert fingerprint(nnx.to_pure_dict(nnx.state(again, nnx.Param))) == fingerprint(
        nnx.to_pure_dict(nnx.state(first, nnx.Param))
    )


# --- parameters of few bits ---


def task_of(dtype: Any) -> Task:
    return Task.from_nnx(lambda rngs: nnx.Sequential(*layers_of(dtype, rngs)), SOURCE)


def layers_of(dtype: Any, rngs: nnx.Rngs) -> list[Callable[..., jax.Array]]:
    first = nnx.Linear(16, 16, param_dtype=dtype, dtype=dtype, rngs=rngs)
    last = nnx.Linear(16, 4, param_dtype=dtype, rngs=rngs)
    return [lambda image: image.reshape(len(image), -1), first, nnx.relu, last]


@pytest.mark.parametrize("plan", ["bsp:25%,asp:50%,bsp", "bsp:50%,localsgd(steps=4)"])
def test_bfloat16_parameters_train_and_are_handed_over_bit_for_bit(plan, tmp_path):
    result = fit(task_of(jnp.bfloat16), plan=plan, workload=240, workdir=tmp_path / "run")
    assert {leaf.dtype for leaf in jax.tree.leaves(result.state.params)} == {np.dtype(jnp.bfloat16)}
    assert result.accuracy is not None and result.accuracy >= 0.9
    entered, ended = (events_of(tmp_path / "run", f"phase_{how}") for how in ("entered", "ended"))
    assert [event["fingerprint"] for event in entered[1:]] == [event["fingerprint"] for event in ended[:-1]]
    again = fit(task_of(jnp.bfloat16), plan=plan, workload=240, workdir=tmp_path / "run")  # from the checkpoint
    assert fingerprint(again.state) == fingerprint(result.state) == ended[-1]["fingerprint"]


def test_bfloat16_parameters_resume_from_their_checkpoint_to_the_state_of_an_unbroken_run(tmp_path):
    config = RunConfig(64, unit_size=8, workers=2, plan="bsp", emulation=EmulationConfig(compute_secs=0.02))
    trainer = Trainer(task_of(jnp.bfloat16), momentum_sgd(), config, workdir=tmp_path / "run", progress=False)
    assert fit_and_stop(trainer, 8).summary.exit == "preempted"
    resumed = fit(task_of(jnp.bfloat16), workdir=tmp_path / "run", plan="bsp", workload=64)
    assert fingerprint(resumed.state) == fingerprint(fit(task_of(jnp.bfloat16), plan="bsp", workload=64).state)


def test_a_run_of_bfloat16_parameters_replays_bit_for_bit(tmp_path):
    config = RunConfig(32, unit_size=8, workers=2, plan="bsp:50%,asp", telemetry=LOGGED)
    task, optimizer = task_of(jnp.bfloat16), momentum_sgd()
    assert Trainer(task, optimizer, config, workdir=tmp_path, progress=False).fit().completed
    found = replay(read_record(tmp_path), Run(config, task, optimizer, tmp_path))
    assert found.difference is None, str(found)


@pytest.mark.parametrize(
    ("dtype", "named"),
    [
        (jnp.float16, "parameter layers/1/bias is float16, .*; use bfloat16 or float32"),
        (jnp.complex64, "parameter layers/1/bias is complex64, which cannot be trained; use float32 or bfloat16"),
    ],
)
def test_parameters_that_cannot_be_trained_are_refused_with_what_to_use(dtype, named):
    with pytest.raises(TaskError, match=named):
        fit(task_of(dtype))


# --- arguments ---


def misspelt(**fields: Any) -> dict[str, Any]:
    """Return arguments that a type checker does not look at."""
    return fields


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: mlp_trainer(batch_size=32), "Trainer has no argument 'batch_size'; did you mean 'unit_size'?"),
        (lambda: mlp_trainer(work_dir="run"), "Trainer has no argument 'work_dir'; did you mean 'workdir'?"),
        (lambda: mlp_trainer(config=RunConfig(400), num_workers=2), "'num_workers'; did you mean 'workers'?"),
        (lambda: mlp_trainer(zzz=3), "Trainer has no argument 'zzz'; known: workload, unit_size, workers,"),
        (lambda: Trainer(mlp_task(), momentum_sgd()), "RunConfig: missing a required argument: 'workload'"),
        (lambda: CheckpointConfig(**misspelt(sec=3.0)), "CheckpointConfig has no argument 'sec'; did you mean 'secs'?"),
        (lambda: RunConfig(**misspelt(workload=4, pln="bsp")), "RunConfig has no argument 'pln'; did you mean 'plan'?"),
    ],
)
def test_an_argument_that_is_not_known_or_missing_is_refused_by_name(make, named):
    with pytest.raises(ConfigError) as refusal:
        make()
    assert named in str(refusal.value)
