"""The user's functions are tried before a run begins: a mistake in one is named with its line, and nothing is made."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from hybridsync import Optimizer, Task, Trainer
from hybridsync.core.errors import DataError, OptimizerError, RefusedInput, TaskError
from hybridsync.data import ArraySource
from hybridsync.workdir.trial import try_functions
from tests.compilations import count_compilations
from tests.tasks import mlp_task, momentum_sgd, plain_sgd
from tests.trainers import NEVER

HERE = Path(__file__).name
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(300)  # some start programs
SOURCE = ArraySource("numbers", {"x": np.ones((64, 3), np.float32)}, {"x": np.ones((8, 3), np.float32)})


def init(key: jax.Array) -> tuple[Any, Any]:
    return {"w": jnp.ones(3)}, {}


def loss(params: Any, model_state: Any, batch: Any, key: Any) -> Any:
    return (batch["x"] @ params["w"]).mean(), ({}, model_state)


def evaluate(params: Any, model_state: Any, batch: Any) -> Any:
    errors = batch["x"] @ params["w"]
    return {"count": jnp.float32(errors.size), "loss": errors.sum()}


TASK = Task(init, loss, SOURCE, evaluate)


class Other:
    """SOURCE with some of its methods replaced."""

    def __init__(self, **methods: Any) -> None:
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        return self._methods[name] if name in self._methods else getattr(SOURCE, name)


def raises(*args: Any, **kwargs: Any) -> Any:
    raise KeyError("mistake")


def leaves(*args: Any, **kwargs: Any) -> Any:
    sys.exit("mistake")


def task(**parts: Any) -> Task:
    return dataclasses.replace(TASK, **parts)


def source(**methods: Any) -> Task:
    return task(source=Other(**methods))


def batch_of(**fields: Any) -> Task:
    return source(batch=lambda unit, *, unit_size, seed: {"x": np.ones((unit_size, 3), np.float32), **fields})


class Raising(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layer = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        return self.layer(image)  # of another shape: flax raises, and this line is the user's


LINE = f"{HERE}, line "
LOSS = "return (loss, (metrics, model_state))"
MISTAKES: dict[str, tuple[Callable[[], Task], type[RefusedInput], tuple[str, ...]]] = {
    "init raises": (lambda: task(init=raises), TaskError, ("task.init raised", LINE, "'mistake'")),
    "init exits": (lambda: task(init=leaves), TaskError, ("task.init raised", LINE, "mistake")),
    "init returns parameters alone": (
        lambda: task(init=lambda key: {}),
        TaskError,
        ("must return (params, model_state)",),
    ),
    "loss raises": (lambda: task(loss=raises), TaskError, ("Task.loss raised", LINE, "KeyError: 'mistake'")),
    "loss exits": (lambda: task(loss=leaves), TaskError, ("Task.loss raised", LINE, "SystemExit: mistake")),
    "loss needs a value": (
        lambda: task(loss=lambda p, s, b, k: (p["w"].sum() if p["w"].sum() > 0 else 0.0, ({}, s))),
        TaskError,
        ("Task.loss raised", LINE, "TracerBoolConversionError"),
    ),
    "loss calls NumPy": (
        lambda: task(loss=lambda p, s, b, k: (np.sum(np.asarray(p["w"])), ({}, s))),
        TaskError,
        ("Task.loss raised", LINE, "TracerArrayConversionError"),
    ),
    "loss returns nothing": (lambda: task(loss=lambda p, s, b, k: None), TaskError, ("returned a NoneType", LOSS)),
    "loss is None": (lambda: task(loss=lambda p, s, b, k: (None, ({}, s))), TaskError, ("a loss of a NoneType", LOSS)),
    "loss is a vector": (
        lambda: task(loss=lambda p, s, b, k: (b["x"] @ p["w"], ({}, s))),
        TaskError,
        ("a loss of float32[8]", LOSS),
    ),
    "loss is a whole number": (
        lambda: task(loss=lambda p, s, b, k: (jnp.int32(1), ({}, s))),
        TaskError,
        ("a loss of int32[]", LOSS),
    ),
    "loss without its state": (
        lambda: task(loss=lambda p, s, b, k: (b["x"].sum() * p["w"].sum(), {})),
        TaskError,
        ("returned a dict of [] beside the loss", LOSS),
    ),
    "derivative raises": (lambda: task(loss=with_bad_derivative), TaskError, (LINE, "mistake")),
    "evaluate raises": (lambda: task(evaluate=raises), TaskError, ("Task.evaluate raised", LINE, "'mistake'")),
    "evaluate returns nothing": (lambda: task(evaluate=lambda p, s, b: None), TaskError, ("returned a NoneType",)),
    "evaluate without a count": (
        lambda: task(evaluate=lambda p, s, b: {"loss": p["w"].sum()}),
        TaskError,
        ("returned a dict of ['loss']", "'count'"),
    ),
    "evaluate returns rows": (
        lambda: task(evaluate=lambda p, s, b: {"count": 1.0, "loss": b["x"] @ p["w"]}),
        TaskError,
        ("returned float32[8] as 'loss'",),
    ),
    "a model of another shape": (
        lambda: Task.from_nnx(lambda rngs: Raising(rngs), mlp_task().source),
        TaskError,
        ("Task.loss raised", LINE, "TypeError"),
    ),
    "an objective that returns nothing": (
        lambda: Task.from_nnx(lambda rngs: Raising(rngs), mlp_task().source, cast(Any, lambda predict, batch: None)),
        TaskError,
        ("the loss returned NoneType",),
    ),
    "describe raises": (lambda: source(describe=raises), DataError, ("the source's describe raised", LINE)),
    "describe returns a text": (lambda: source(describe=lambda: "digits"), DataError, ("describe returned 'digits'",)),
    "describe returns an array": (
        lambda: source(describe=lambda: {"mean": np.ones(2)}),
        DataError,
        ("describe returned {'mean': array", "JSON"),
    ),
    "describe returns what JSON changes": (
        lambda: source(describe=lambda: {"shape": (2, 3)}),
        DataError,
        ("which JSON does not give back as it is",),
    ),
    "no examples": (lambda: source(num_examples=0), DataError, ("num_examples is 0",)),
    "batch raises": (lambda: source(batch=raises), DataError, ("the source's batch raised", LINE, "'mistake'")),
    "batch stops": (
        lambda: source(batch=lambda *args, **kwargs: next(iter(()))),
        DataError,
        ("the source's batch raised", LINE, "StopIteration"),
    ),
    "batch is nothing": (lambda: source(batch=lambda *a, **k: None), DataError, ("batch of unit 0 is NoneType",)),
    "batch is empty": (lambda: source(batch=lambda *a, **k: {}), DataError, ("return a dict of arrays",)),
    "a field of objects": (lambda: batch_of(text=np.array([{}] * 8)), DataError, ("type object", "field 'text'")),
    "a field of texts": (lambda: batch_of(text=np.array(["a"] * 8)), DataError, ("type <U1", "field 'text'")),
    "a field of dates": (lambda: batch_of(at=np.zeros(8, "M8[s]")), DataError, ("datetime64[s]", "field 'at'")),
    "a field that is a list": (lambda: batch_of(label=[1] * 8), DataError, ("a list in the field 'label'",)),
    "a field of another length": (lambda: batch_of(y=np.ones(7)), DataError, ("shape (7,) in the field 'y', for 8",)),
    "a field without a length": (lambda: batch_of(y=np.float32(1)), DataError, ("shape () in the field 'y'",)),
    "augment raises": (lambda: source(augment=raises), DataError, ("the source's augment raised", LINE)),
    "augment returns nothing": (lambda: source(augment=lambda batch, key: None), TaskError, ("Task.loss raised", LINE)),
    "prepare raises": (lambda: source(prepare=raises), DataError, ("the source's prepare raised", LINE)),
    "held-out examples of objects": (
        lambda: source(test_batches=lambda size: iter([{"x": np.array([{}])}])),
        DataError,
        ("held-out examples has the type object in the field 'x'",),
    ),
}


@jax.custom_vjp
def _scaled(x: jax.Array) -> jax.Array:
    return 2 * x


_scaled.defvjp(lambda x: (2 * x, None), raises)


def with_bad_derivative(params: Any, model_state: Any, batch: Any, key: Any) -> Any:
    return _scaled(batch["x"] @ params["w"]).mean(), ({}, model_state)


def trainer(task: Task, optimizer: Optimizer | None = None, **options: Any) -> Trainer:
    options = {"workload": 16, "unit_size": 8, "workers": 2, "progress": False, "checkpoint": NEVER, **options}
    return Trainer(task, optimizer or plain_sgd(0.01), **options)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_users_function_is_refused_in_one_line_before_anything_is_made(
    tmp_path: Path, name: str
) -> None:
    make, kind, named = MISTAKES[name]
    with pytest.raises(kind) as refusal:
        trainer(make(), workdir=tmp_path / "run").fit()
    said = str(refusal.value)
    assert all(part in said for part in named), said
    assert "\n" not in said and not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        (Optimizer(optax.sgd, learning_rate=lambda at: jnp.where(at < 64, 0.1, jnp.nan)), "nan at 64 of 128 examples"),
        (Optimizer(lambda learning_rate: optax.sgd(0.1), learning_rate=0.1), "does not use it"),
        (Optimizer(optax.adamw, learning_rate=0.1, mask=lambda params: {}["mistake"]), HERE),
        (Optimizer(lambda learning_rate: {}["mistake"], learning_rate=0.1), "mistake"),
    ],
)
def test_a_mistake_in_the_optimizer_is_refused_before_anything_is_made(
    tmp_path: Path, optimizer: Optimizer, named: str
) -> None:
    with pytest.raises(OptimizerError) as refusal:
        trainer(TASK, optimizer, workdir=tmp_path / "run").fit()
    assert named in str(refusal.value) and "\n" not in str(refusal.value) and not [*tmp_path.iterdir()]


def test_held_out_examples_that_cannot_be_read_are_no_reason_to_refuse_a_run() -> None:
    """They cost figures, which an event reports, and no training."""
    assert trainer(source(test_batches=raises), plan="asp").fit().completed


CONFIG = """
from dataclasses import replace

import jax.numpy as jnp

from configs import tally
from hybridsync.training.optimizer import Optimizer


def config():
    return replace(tally.config(), workers=2, workload=40)


def task(config):
    made = tally.task(config)

    def loss(params, model_state, batch, key):
        raise KeyError("mistake")

    return replace(made, loss=loss)


optimizer = tally.optimizer
"""


def train(tmp_path: Path, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hybridsync", "train", f"--workdir={tmp_path / 'run'}", *flags]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=variables)


@pytest.mark.parametrize("runtime", ["processes", "inprocess"])
def test_a_command_with_a_mistake_ends_with_1_and_the_users_line_and_no_role_is_started_twice(
    tmp_path: Path, runtime: str
) -> None:
    file = tmp_path / "job.py"
    file.write_text(CONFIG)
    done = train(tmp_path, f"--config={file}", f"--runtime={runtime}")
    assert done.returncode == 1, done.stderr
    *_, last = done.stderr.splitlines()
    assert last == f"error: Task.loss raised {file}, line 18: KeyError: 'mistake'; correct it"
    assert "restart" not in done.stdout + done.stderr
    assert not (tmp_path / "run" / "events.jsonl").exists()


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("XLA_FLAGS", "--xla_no_such_flag=1", "Unknown flag in XLA_FLAGS: --xla_no_such_flag=1"),
        ("XLA_FLAGS", "--xla_backend_optimization_level=high", "Couldn't interpret value high"),
        ("XLA_FLAGS", "/no/such/file", 'Could not open file "/no/such/file"'),
        ("JAX_PLATFORMS", "no_such_platform", "Unable to initialize backend 'no_such_platform'"),
        ("JAX_PLATFORMS", "cpu,no_such_platform", "Unable to initialize backend 'no_such_platform'"),
    ],
)
@pytest.mark.parametrize("runtime", ["processes", "inprocess"])
def test_an_environment_that_jax_refuses_is_an_input_that_is_refused_by_name(
    tmp_path: Path, runtime: str, variable: str, value: str, named: str
) -> None:
    flags = [f"--config={ROOT / 'configs' / 'tally.py'}", f"--runtime={runtime}", "--set=workload=40", "--workers=1"]
    done = train(tmp_path, *flags, **{variable: value})
    assert done.returncode == 1, done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert variable in error and named in error
    assert "restart" not in done.stdout + done.stderr


def test_flags_that_jaxlib_knows_are_passed_on(tmp_path: Path) -> None:
    flags = [f"--config={ROOT / 'configs' / 'tally.py'}", "--runtime=inprocess", "--set=workload=40", "--workers=1"]
    assert train(tmp_path, *flags, XLA_FLAGS="--xla_backend_optimization_level=1").returncode == 0


def test_the_trial_compiles_neither_gradient_nor_update_nor_evaluation() -> None:
    run = trainer(mlp_task(), momentum_sgd(0.01))._run
    with count_compilations() as compiled:
        found = try_functions(run)
    assert not [
        name for name in compiled if any(part in name for part in ("gradient", "update", "loss", "sums", "init"))
    ]
    assert found == try_functions(run)
    undigested = try_functions(run, digests_programs=False)
    assert (undigested.gradient, undigested.update) == ("", "")
    assert dataclasses.replace(undigested, gradient=found.gradient, update=found.update) == found
