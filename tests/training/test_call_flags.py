"""Flags by which a model's call is told that it trains: found by any name, asked for, or refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from hybridsync.core.errors import TaskError
from hybridsync.data import ArraySource
from hybridsync.training.task import Task

pytestmark = pytest.mark.usefixtures("quickly_compiled")

IMAGE = np.random.RandomState(0).randn(16, 8).astype(np.float32)
SOURCE = ArraySource("images", {"image": IMAGE, "label": np.arange(16, dtype=np.int32) % 3})


def linen_net(call: Callable[..., Any], **fields: Any) -> linen.Module:
    annotated = {"__annotations__": {name: type(value) for name, value in fields.items()}, **fields}
    return type("Net", (linen.Module,), {**annotated, "__call__": linen.compact(call)})()


def drops(x: jax.Array, off: bool) -> jax.Array:
    return linen.Dense(3)(linen.Dropout(0.5, deterministic=off)(x))


def norms(x: jax.Array, off: bool) -> jax.Array:
    return linen.Dense(3)(linen.BatchNorm(use_running_average=off)(x))


def trains_and_evaluates(task: Task) -> None:
    """Check that training draws or computes statistics, and that evaluation does not."""
    params, state = task.init(jax.random.key(0))
    batch = {name: jnp.asarray(field) for name, field in SOURCE.batch(0, unit_size=8, seed=0).items()}
    losses, states = [], []
    for seed in range(4):
        value, (_, after) = task.loss(params, state, batch, jax.random.key(seed))
        losses.append(float(value))
        states.append(after)
    moved = not jax.tree.all(jax.tree.map(np.array_equal, state, states[0]))
    assert moved or len(set(losses)) > 1
    assert task.evaluate is not None
    assert float(task.evaluate(params, state, batch)["count"]) == 8


FOUND: dict[str, Callable[..., Any]] = {
    "train, no default": lambda self, x, train: drops(x, not train),
    "inference, no default": lambda self, x, inference: drops(x, inference),
    "eval_mode": lambda self, x, eval_mode=True: drops(x, eval_mode),
    "enable_dropout": lambda self, x, *, enable_dropout=False: drops(x, not enable_dropout),
    "is_eval of BatchNorm": lambda self, x, is_eval: norms(x, is_eval),
    "among others": lambda self, x, verbose=False, testing=True, *, scale=1.0: drops(x * scale, testing),
    "dropout_rng": lambda self, x, dropout_rng=None: linen.Dense(3)(
        linen.Dropout(0.5)(x, deterministic=dropout_rng is None, rng=dropout_rng)
    ),
    "attention": lambda self, x, deterministic=True: linen.Dense(3)(
        linen.MultiHeadDotProductAttention(2, dropout_rate=0.5)(x[:, None], deterministic=deterministic)[:, 0]
    ),
    "remat": lambda self, x, train=False: linen.Dense(3)(linen.remat(linen.Dropout)(0.5, deterministic=not train)(x)),
    "own random numbers": lambda self, x, sample=False: linen.Dense(3)(
        x + jax.random.normal(self.make_rng("noise"), x.shape) if sample else x
    ),
}


@pytest.mark.parametrize("call", FOUND.values(), ids=FOUND)
def test_a_flag_of_any_name_is_found(call):
    trains_and_evaluates(Task.from_linen(linen_net(call), SOURCE))


def annotated(self, x, inference: bool | None = None):
    return drops(x, inference is not False)


def test_a_flag_is_found_by_its_annotation():
    trains_and_evaluates(Task.from_linen(linen_net(annotated), SOURCE))


class Block(linen.Module):
    rate: float = 0.5
    inference: bool = True

    @linen.compact
    def __call__(self, x):
        return linen.Dropout(self.rate, deterministic=self.inference)(x)


OFF: dict[str, tuple[linen.Module, str]] = {
    "an attribute": (linen_net(lambda self, x: drops(x, self.deterministic), deterministic=True), "layer Dropout_0"),
    "a submodule's attribute": (linen_net(lambda self, x: linen.Dense(3)(Block()(x))), "layer Block_0/Dropout_0"),
    "a word": (linen_net(lambda self, x, mode="eval": drops(x, mode == "eval")), "layer Dropout_0"),
    "hidden": (linen_net(lambda self, x, **kw: drops(x, not kw.get("train", False))), "layer Dropout_0"),
    "BatchNorm": (linen_net(lambda self, x: norms(x, True)), "BatchNorm_0, a BatchNorm, has use_running_average=True"),
}


@pytest.mark.parametrize(("module", "message"), OFF.values(), ids=OFF)
def test_a_layer_that_stays_off_in_training_is_refused_by_name(module, message):
    task = Task.from_linen(module, SOURCE)
    params, state = task.init(jax.random.key(0))
    batch = {name: jnp.asarray(field) for name, field in SOURCE.batch(0, unit_size=8, seed=0).items()}
    with pytest.raises(TaskError, match=message + r".*pass training=\{"):
        task.loss(params, state, batch, jax.random.key(0))
    meant = Task.from_linen(module, SOURCE, training={})
    assert np.isfinite(meant.loss(params, state, batch, jax.random.key(0))[0])


def counts(self, x):
    calls = self.variable("counts", "calls", jnp.zeros, ())
    calls.value += 1
    return linen.Dense(3)(x)


ON = [lambda self, x, mode="train": drops(x, mode == "eval"), counts]


@pytest.mark.parametrize("call", ON, ids=["dropout", "a counter"])
def test_module_that_trains_in_evaluation_is_refused_with_what_to_pass(call):
    task = Task.from_linen(linen_net(call), SOURCE)
    params, state = task.init(jax.random.key(0))
    batch = {name: jnp.asarray(field) for name, field in SOURCE.batch(0, unit_size=8, seed=0).items()}
    assert np.isfinite(task.loss(params, state, batch, jax.random.key(0))[0])
    assert task.evaluate is not None
    with pytest.raises(TaskError, match=r"Net trains in evaluation, too \(.*evaluation=\{'mode': 'eval'\}\)"):
        task.evaluate(params, state, batch)


def test_dropout_of_rate_zero_may_stay_off():
    task = Task.from_linen(linen_net(lambda self, x: linen.Dense(3)(Block(rate=0.0)(x))), SOURCE)
    batch = {name: jnp.asarray(field) for name, field in SOURCE.batch(0, unit_size=8, seed=0).items()}
    assert np.isfinite(task.loss(*task.init(jax.random.key(0)), batch, jax.random.key(0))[0])


@pytest.mark.parametrize("name", ["mode", "verbose"])
def test_an_argument_without_default_that_shows_nothing_is_asked_for(name):
    def call(self, x, mode):
        return drops(x, mode == "eval")

    def quiet(self, x, verbose):
        return linen.Dense(3)(x)

    with pytest.raises(TaskError, match=rf"takes '{name}', which has no default.*training={{'{name}': ...}}"):
        Task.from_linen(linen_net(call if name == "mode" else quiet), SOURCE)


@pytest.mark.parametrize("evaluation", [None, {"mode": "eval"}])
def test_what_a_call_is_told_may_be_passed(evaluation):
    def call(self, x, mode="eval"):
        return drops(x, mode == "eval")

    trains_and_evaluates(Task.from_linen(linen_net(call), SOURCE, training={"mode": "train"}, evaluation=evaluation))


class NnxNet(nnx.Module):
    """Tells its dropout in its call whether it trains, which `train()` does not change."""

    def __init__(self, rngs):
        self.dropout, self.scores = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)

    def drop(self, x, off):
        return self.scores(self.dropout(x, deterministic=off))


NNX_CALLS: dict[str, Callable[..., Any]] = {
    "train": lambda self, x, train=False: self.drop(x, not train),
    "inference": lambda self, x, *, inference=True: self.drop(x, inference),
    "several": lambda self, x, verbose=False, testing=True: self.drop(x, testing),
}


@pytest.mark.parametrize("call", NNX_CALLS.values(), ids=NNX_CALLS)
def test_a_flag_of_an_nnx_call_is_found(call):
    trains_and_evaluates(Task.from_nnx(type("Net", (NnxNet,), {"__call__": call}), SOURCE))


def test_what_an_nnx_call_is_told_may_be_passed():
    net = type("Net", (NnxNet,), {"__call__": lambda self, x, mode="eval": self.drop(x, mode == "eval")})
    trains_and_evaluates(Task.from_nnx(net, SOURCE, training={"mode": "train"}, evaluation={"mode": "eval"}))


class Average(nnx.Variable):
    """Is a user's own kind of state."""


class Careful(NnxNet):
    """Has flags that change its state and do not mean training."""

    def __init__(self, rngs):
        super().__init__(rngs)
        self.cache, self.average = nnx.Cache(jnp.zeros(3)), Average(jnp.zeros(3))

    def careful(self, x, off, *, decode=False, sow_weights=False, update_ema=False):
        scores = self.drop(x, off)
        if decode:
            self.cache[...] += 1
            scores = scores * 0
        if sow_weights:
            self.sow(nnx.Intermediate, "weights", scores)
        if update_ema:
            self.average[...] = 0.9 * self.average[...] + scores.mean(0)
        return scores


class Normed(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout, self.scores = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)


def noted_nnx(self, x, decode: bool = False, sow_weights=False, update_ema=False, inference=True):
    CALLS.append((decode, sow_weights, update_ema, inference))
    return self.careful(x, inference, decode=decode, sow_weights=sow_weights, update_ema=update_ema)


def noted_linen(self, x, decode: bool = False, sow_weights=False, update_ema=False, inference=True):
    CALLS.append((decode, sow_weights, update_ema, inference))
    cache = self.variable("cache", "steps", jnp.zeros, (3,))
    average = self.variable("averages", "mean", jnp.zeros, (3,))
    scores = drops(x, inference)
    if decode:
        cache.value += 1
        scores = scores * 0
    if sow_weights:
        self.sow("intermediates", "weights", scores)
    if update_ema:
        average.value = 0.9 * average.value + scores.mean(0)
    return scores


@pytest.mark.parametrize(
    ("attribute", "is_off"), [("deterministic", False), ("is_frozen", True)], ids=["of Flax", "of the model's own"]
)
def test_dropout_that_no_flag_reaches_is_named(attribute, is_off, caplog):
    def call(self, x):
        return self.scores(self.dropout(x, deterministic=getattr(self, attribute)))

    def make(rngs):
        made = type("Net", (Normed,), {"__call__": call})(rngs)
        setattr(made, attribute, True)
        return made

    task = Task.from_nnx(make, SOURCE)
    params, state = task.init(jax.random.key(0))
    batch = {name: jnp.asarray(field) for name, field in SOURCE.batch(0, unit_size=8, seed=0).items()}
    assert task.evaluate is not None
    task.evaluate(params, state, batch)
    for _ in range(2):
        task.loss(params, state, batch, jax.random.key(0))
    named = [record.getMessage() for record in caplog.records if "Nothing is dropped" in record.getMessage()]
    assert len(named) == is_off and all("the layer dropout, a Dropout" in text for text in named)


CALLS: list[tuple[bool, ...]] = []
NOTED = {
    "nnx": lambda: Task.from_nnx(type("Net", (Careful,), {"__call__": noted_nnx}), SOURCE),
    "linen": lambda: Task.from_linen(linen_net(noted_linen), SOURCE),
}


@pytest.mark.parametrize("made", NOTED.values(), ids=NOTED)
def test_a_default_stays_unless_the_other_value_draws_or_computes_statistics(made, caplog):
    caplog.set_level(logging.INFO, logger="absl")
    task = made()
    trains_and_evaluates(task)
    params, state = task.init(jax.random.key(0))
    batch = {name: jnp.asarray(field) for name, field in SOURCE.batch(0, unit_size=8, seed=0).items()}
    CALLS.clear()
    task.loss(params, state, batch, jax.random.key(0))
    task.evaluate(params, state, batch)
    assert CALLS == [(False, False, False, False), (False, False, False, True)]
    named = [record.getMessage() for record in caplog.records if "By trying" in record.getMessage()]
    assert named == ["By trying, the model's call gets inference=False in training."]


@pytest.mark.parametrize("transform", [lambda call: call, nnx.remat, nnx.jit], ids=["as is", "remat", "jit"])
@pytest.mark.parametrize("layer", ["norm", "dropout"])
@pytest.mark.parametrize("default", [True, False])
def test_a_flag_is_found_through_a_transformation(layer, transform, default):
    def norms(self, x, inference):
        return transform(lambda norm, x: norm(x, use_running_average=inference))(self.norm, x)

    def drops(self, x, inference):
        return transform(lambda dropout, x: dropout(x, deterministic=inference))(self.dropout, x)

    def call(self, x, inference=default):
        return self.scores({"norm": norms, "dropout": drops}[layer](self, x, inference))

    trains_and_evaluates(Task.from_nnx(type("Net", (Normed,), {"__call__": call}), SOURCE))


@pytest.mark.parametrize("made", ["nnx", "linen"])
def test_a_flag_without_default_that_fills_a_cache_is_asked_for(made):
    def nnx_call(self, x, decode: bool):
        return self.careful(x, True, decode=decode)

    def linen_call(self, x, decode):
        cache = self.variable("cache", "steps", jnp.zeros, (3,))
        if decode:
            cache.value += 1
        return linen.Dense(3)(x)

    with pytest.raises(TaskError, match="takes 'decode', which has no default"):
        if made == "linen":
            Task.from_linen(linen_net(linen_call), SOURCE)
        else:
            trains_and_evaluates(Task.from_nnx(type("Net", (Careful,), {"__call__": nnx_call}), SOURCE))
