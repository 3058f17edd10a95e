import dataclasses
import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from hybridsync import Optimizer, Task, TelemetryConfig, Trainer
from hybridsync.config import EmulationConfig
from hybridsync.core.errors import ResumeError, TaskError
from hybridsync.data import ArraySource
from hybridsync.lab.replay.logged_run import read_record
from hybridsync.lab.replay.verdict import replay
from hybridsync.lab.simulator.simulation import simulate
from hybridsync.losses import language_model
from hybridsync.training.compiled_programs import Parameters, traced_unit_gradient
from hybridsync.training.frozen import digests, frozen_leaves, joined, parted
from hybridsync.training.state import abstract_state
from tests.devices.decoders import source
from tests.lora import LinenLoRA, linen_task, lora_decoder, lora_task, write_embedding
from tests.tasks import momentum_sgd
from tests.trainers import LOGGED, fit_and_stop

pytestmark = pytest.mark.usefixtures("quickly_compiled")

ADAMW = Optimizer(optax.adamw, learning_rate=1e-2)
SLOW = EmulationConfig(compute_secs=0.02)
UNIT_SIZE = 8
ALIGNED_BYTES = 64


def numbers(tree: Any) -> int:
    return sum(np.size(leaf) for leaf in jax.tree.leaves(tree))


def trainer(task: Task, plan: str = "bsp", workload: int = 24, optimizer: Optimizer = ADAMW, **options: Any) -> Trainer:
    return Trainer(task, optimizer, unit_size=UNIT_SIZE, plan=plan, workload=workload, progress=False, **options)


@functools.cache
def plain_loop(num_units: int, seed: int = 0) -> float:
    """Train the LoRA leaves with Flax and optax alone; returns the loss on the held-out examples."""
    task = lora_task()
    init, frozen = task.init(jax.random.key(seed))[0], frozen_leaves(task, seed)
    model = task.model(joined(init, frozen), {})  # type: ignore[misc]
    sgd = nnx.Optimizer(model, optax.sgd(0.1, 0.9), wrt=nnx.LoRAParam)

    def loss(model: Any, batch: Any) -> Any:
        sums = language_model(model, batch)
        return sums["loss"] / sums["count"]

    @nnx.jit
    def step(model: Any, sgd: Any, batch: Any) -> None:
        sgd.update(model, nnx.grad(loss, argnums=nnx.DiffState(0, nnx.LoRAParam))(model, batch))

    for unit in range(num_units):
        step(model, sgd, source().batch(unit, unit_size=UNIT_SIZE, seed=seed))
    (batch,) = source().test_batches(512)
    return float(loss(model, {name: jnp.asarray(field) for name, field in batch.items()}))


@pytest.mark.parametrize("plan", ["bsp", "asp", "bsp:50%,asp"])
def test_lora_trains_as_in_a_plain_loop(plan: str) -> None:
    trained = trainer(lora_task(), plan, optimizer=momentum_sgd(0.1), workers=1).fit()
    assert trained.loss == pytest.approx(plain_loop(24), abs=1e-6)


@pytest.mark.parametrize("plan", ["bsp", "asp", "localsgd(steps=2)", "preduce", "diloco(steps=2)"])
def test_every_protocol_leaves_the_base_alone(plan: str) -> None:
    task = lora_task()
    result = trainer(task, plan, workers=2).fit()
    assert result.completed
    model = result.model()
    base = nnx.to_pure_dict(nnx.state(model, nnx.All(nnx.Param, nnx.Not(nnx.LoRAParam))))
    frozen: Any = frozen_leaves(task, 0)
    np.testing.assert_array_equal(base["tokens"]["embedding"], frozen["tokens"]["embedding"])
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), result.state.params, task.init(jax.random.key(0))[0])
    assert all(jax.tree.leaves(moved))


def test_messages_and_states_hold_the_trained_leaves_alone() -> None:
    task = lora_task()
    programs = trainer(task, workers=1)._run.programs(donate_parameters=False)
    trained = numbers(programs.state.params)
    assert trained == 1536
    loss_and_weight = 2 * ALIGNED_BYTES
    assert programs.contribution_layout.nbytes == 4 * trained + loss_and_weight
    assert programs.parameters_layout.nbytes == 4 * trained
    scalars = ALIGNED_BYTES * sum(leaf.shape == () for leaf in jax.tree.leaves(programs.state))
    assert programs.state_layout.nbytes == 4 * 3 * trained + scalars, "the leaves, and both of AdamW's moments"


def test_checkpoints_hold_the_trained_leaves_alone(tmp_path: Path) -> None:
    def saved(workdir: Path, task: Task) -> int:
        trainer(task, workload=2, workers=1, workdir=workdir).fit()
        return sum(file.stat().st_size for file in (workdir / "checkpoints").rglob("*") if file.is_file())

    whole = dataclasses.replace(lora_task(), frozen=None)  # the same model, all of which is trained
    whole = dataclasses.replace(whole, init=lambda key: (joined(lora_task().init(key)[0], lora_task().frozen(key)), {}))  # type: ignore[misc]
    base = 4 * numbers(lora_task().abstract_frozen)
    assert saved(tmp_path / "whole", whole) - saved(tmp_path / "lora", lora_task()) > 0.8 * 3 * base


def test_frozen_leaves_are_arguments_of_the_gradient() -> None:
    """As constants they would be in every compiled program."""
    task = lora_task()
    state = abstract_state(task, ADAMW)
    shapes = {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype)
        for name, x in source().batch(0, unit_size=UNIT_SIZE, seed=0).items()
    }
    program = traced_unit_gradient(task, None, Parameters(state.params, state.model_state), shapes)
    assert sum(np.size(constant) for constant in program.consts) < 100
    assert len(program.jaxpr.invars) == len(jax.tree.leaves((state.params, shapes, task.abstract_frozen))) + 2


def test_a_run_of_another_seed_has_its_own_base() -> None:
    programs = trainer(lora_task(), workers=1)._run.programs(donate_parameters=False)
    first: Any = programs.frozen.at(0)
    second: Any = programs.with_seed(1).frozen.at(0)
    assert not np.array_equal(first["tokens"]["embedding"], second["tokens"]["embedding"])
    assert programs.frozen.at(0) is first


def test_digests_are_in_the_order_of_the_paths_and_tell_seeds_apart() -> None:
    programs = trainer(lora_task(), workers=1)._run.programs(donate_parameters=False)
    by_path = digests(frozen_leaves(lora_task(), 0))
    assert programs.frozen.digests() == tuple(by_path[path] for path in sorted(by_path))
    assert programs.frozen.digests() != programs.with_seed(1).frozen.digests()


def test_a_resume_with_other_frozen_weights_is_refused_by_name(tmp_path: Path) -> None:
    """A checkpoint has the leaves that were trained on top of the others, and means nothing without them."""
    weights, workdir = tmp_path / "weights.npy", tmp_path / "run"
    task = lora_task(write_embedding(weights, 0.1))
    options: dict[str, Any] = {"workload": 2000, "workers": 1, "workdir": workdir, "emulation": SLOW}
    fit_and_stop(trainer(task, **options), units=8)
    assert "tokens/embedding" in json.loads((workdir / "config.json").read_text())["trained"]["frozen"]

    write_embedding(weights, 0.2)
    refused = r"another frozen leaf tokens/embedding: its digest was \w+, is \w+; .* or pass --accept_changes"
    with pytest.raises(ResumeError, match=refused):
        trainer(task, **options).fit()
    result = fit_and_stop(trainer(task, **options, accept_changes=True), units=16)
    assert (result.model().tokens.embedding[...] == np.float32(0.2)).all()


def test_a_run_replays_and_is_simulated_with_its_frozen_leaves(tmp_path: Path) -> None:
    options: dict[str, Any] = {"optimizer": momentum_sgd(0.1), "workdir": tmp_path, "telemetry": LOGGED}
    trained = trainer(lora_task(), "bsp:50%,asp", workers=1, **options)
    trained.fit()
    assert replay(read_record(tmp_path), trained._run).difference is None

    config = dataclasses.replace(trained._run.config, telemetry=TelemetryConfig())
    run = dataclasses.replace(trained._run, config=config, workdir=None)
    assert simulate(run, gradients="real").summary.final["loss"] == pytest.approx(plain_loop(24), abs=1e-6)


@pytest.mark.parametrize(
    ("trainable", "trained"),
    [
        ("lora_a/kernel", {"lora_a"}),
        (("lora_a/kernel", "lora_b/kernel"), {"lora_a", "lora_b"}),
        (lambda path, leaf: "lora" in path[0] and leaf.ndim == 2, {"lora_a", "lora_b"}),
    ],
)
def test_linen_trains_what_is_named(trainable: Any, trained: set[str]) -> None:
    task = linen_task(trainable)
    result = trainer(task, workload=4, workers=1).fit()
    assert {*result.state.params} == trained
    assert {*result.model()["params"]} == {"tokens", "base", "scores", "lora_a", "lora_b"}
    logits: Any = LinenLoRA().apply(result.model(), jnp.zeros((1, 4), jnp.int32))
    assert jnp.isfinite(logits).all()


def test_all_trained_is_as_without() -> None:
    assert linen_task(lambda path, leaf: True).frozen is None
    assert linen_task(None).frozen is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: linen_task("lora_c/kernel"), "trainable='lora_c/kernel' fits none of the model's parameters"),
        (lambda: linen_task(("lora_a/kernel", "lora_a")), "trainable='lora_a' fits none"),
        (lambda: linen_task(lambda path, leaf: False), "fits none of the model's parameters, which are base/bias"),
        (lambda: lora("tag"), "trainable='tag' fits none"),
        (lambda: lora(nnx.BatchStat), "fits none of the model's parameters, which are .* and 28 more"),
        (lambda: lora(5), "trainable=5, which is no filter of nnx"),
    ],
)
def test_a_filter_that_fits_nothing_is_refused(make: Callable[[], Task], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        make()


def lora(trainable: Any) -> Task:
    return Task.from_nnx(lora_decoder, source(), language_model, trainable=trainable)


def test_quantized_base_is_frozen_and_not_model_state() -> None:
    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.base = nnx.Param(jnp.arange(6, dtype=jnp.int8).reshape(2, 3))
            self.lora = nnx.LoRAParam(jnp.zeros((2, 3)))

        def __call__(self, x: jax.Array) -> jax.Array:
            return x @ (self.base[...].astype(jnp.float32) + self.lora[...])

    images = ArraySource("two", {"image": np.ones((8, 2), np.float32), "label": np.zeros(8, np.int32)})
    task = Task.from_nnx(Net, images, trainable=nnx.LoRAParam)
    params, model_state = task.init(jax.random.key(0))
    assert (list(params), model_state) == (["lora"], {})
    assert task.frozen is not None and list(task.frozen(jax.random.key(0))) == ["base"]
    result = Trainer(task, ADAMW, workload=4, unit_size=4, workers=1, plan="asp", progress=False).fit()
    assert result.model().base.dtype == jnp.int8


def test_plain_functions_get_frozen_leaves_among_their_parameters() -> None:
    def loss(params: Any, model_state: Any, batch: Any, key: Any) -> Any:
        del key
        return ((batch["image"] @ params["base"] + params["shift"]) ** 2).mean(), ({}, model_state)

    images = ArraySource("ones", {"image": np.ones((8, 2), np.float32)})
    init = {"shift": np.zeros(3, np.float32)}
    task = Task(lambda key: (init, {}), loss, images, frozen=lambda key: {"base": np.ones((2, 3), np.float32)})
    result = Trainer(task, ADAMW, workload=4, unit_size=4, workers=1, plan="asp", progress=False).fit()
    assert list(result.state.params) == ["shift"]
    assert result.model()["base"].shape == (2, 3)


def test_one_leaf_in_both_trees_is_refused() -> None:
    with pytest.raises(TaskError, match="both return something for one place"):
        joined({"a": {"b": 1}}, {"a": {"b": 2}})


def test_parts_join_to_the_whole() -> None:
    tree = {"a": {"b": {"c": 1, "d": 2}, "e": 3}, "f": 4}
    paths = [("a", "b", "c"), ("a", "b", "d"), ("a", "e"), ("f",)]
    for number in range(len(paths) + 1):
        for trained in itertools.combinations(paths, number):
            parts = parted(tree, trained)
            assert joined(*parts) == tree
            assert len(jax.tree.leaves(parts[0])) == number
