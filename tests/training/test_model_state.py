"""The merge of what a loss returns as model state: by path and by type, in every program that merges."""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from hybridsync.core.errors import TaskError
from hybridsync.data.synthetic import SyntheticSource
from hybridsync.interfaces.messages import GroupReply
from hybridsync.server.partition import partition
from hybridsync.training.averaging import averaged_on_one_device
from hybridsync.training.compiled_programs import Parameters, Programs, _unit_gradient
from hybridsync.training.model_state import check_model_state
from hybridsync.training.state import initial_state
from hybridsync.training.task import Task
from tests.tasks import plain_sgd, programs_of

pytestmark = pytest.mark.usefixtures("quickly_compiled")

SOURCE = SyntheticSource(64, (1,), num_classes=7, num_test=1)
F32, F16, BF16, I8, I16, I32, U8, U16 = map(
    jnp.dtype, ("float32", "float16", "bfloat16", "int8", "int16", "int32", "uint8", "uint16")
)


def task_of(state: Any, change: Any) -> Task:
    """Return a task with this model state, which its loss changes by a function of it."""

    def loss(params, model_state, batch, key):
        del batch, key
        return params["w"].sum(), ({}, change(model_state))

    return Task(lambda key: ({"w": jnp.ones(2)}, state), loss, SOURCE)


def trained(task: Task, units: int, *, workers: int = 1, blend: float = 1.0) -> Any:
    """Return the model state after updates of `workers` units each."""
    programs = programs_of(task, plain_sgd())
    state = initial_state(task, plain_sgd(), 0)
    for first in range(0, units, workers):
        parameters = programs.parameters._replace(params=state.params, model_state=state.model_state)
        total = programs.sum([programs.gradient(parameters, first + worker) for worker in range(workers)])
        state = programs.update(state, total, units=workers, factor=1.0, blend=blend)
    return state.model_state


def plain(state: Any, change: Any, units: int) -> Any:
    for _ in range(units):
        state = jax.jit(change)(state)
    return state


def same(found: Any, expected: Any) -> bool:
    return jax.tree.structure(found) == jax.tree.structure(expected) and all(
        a.dtype == b.dtype and np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    )


@pytest.mark.parametrize(
    ("state", "change"),
    [
        *(({"mean": jnp.ones(3, dtype)}, lambda s: {"mean": s["mean"] * 0.5}) for dtype in (F32, F16, BF16)),
        *(({"calls": jnp.zeros((), t)}, lambda s: {"calls": s["calls"] + 1}) for t in (I8, I16, I32, U8, U16)),
        ({"left": jnp.int32(-3)}, lambda s: {"left": s["left"] - 1}),
        ({"place": jnp.int32(0)}, lambda s: {"place": (s["place"] + 3) % 7}),
        ({"wraps": jnp.uint8(250)}, lambda s: {"wraps": s["wraps"] + 1}),
        ({"lowest": jnp.float32(jnp.inf)}, lambda s: {"lowest": jnp.minimum(s["lowest"], 3.0)}),
        ({"empty": jnp.zeros((0, 3)), "n": jnp.zeros((0,), jnp.int32)}, lambda s: jax.tree.map(lambda x: x + 1, s)),
        ({"a": [jnp.int32(1), (jnp.ones(2), {})], "b": None}, lambda s: jax.tree.map(lambda x: x + 1, s)),
        ({"seen": jnp.int32(4), "rate": jnp.float32(2)}, lambda s: {"rate": 0.5, "seen": 9}),
        ({}, lambda s: s),
    ],
)
def test_one_worker_has_the_state_of_a_plain_loop(state, change):
    expected = plain(state, change, 8)
    if "rate" in state:  # of Python's numbers a plain loop makes arrays of a weak type
        expected = {"seen": jnp.int32(9), "rate": jnp.float32(0.5)}
    assert same(trained(task_of(state, change), 8), expected)


CONSTANTS = {
    "flag": jnp.bool_(True),
    "words": jax.random.key_data(jax.random.key(3)),
    "turns": jnp.complex64([1j, -1]),
    "mask": jnp.float32([-jnp.inf, 0.1, jnp.finfo(jnp.float32).min]),
    "table": jnp.int32([3, -7]),
    "wide": np.array([1 / 3]),
}


def test_what_the_loss_leaves_alone_keeps_its_bits_whatever_its_type_in_every_merge():
    task = task_of({**CONSTANTS, "calls": jnp.int32(0)}, lambda s: {**s, "calls": s["calls"] + 1})
    after = trained(task, 9, workers=3, blend=1 / 3)
    assert same({name: after[name] for name in CONSTANTS}, jax.tree.map(jnp.asarray, CONSTANTS))
    programs = programs_of(task, plain_sgd())
    assert [leaf.path for leaf in programs.contribution_layout.leaves if "stats" in leaf.path] == []
    states = [initial_state(task, plain_sgd(), 0)] * 3
    for state in averaged_on_one_device(states, GroupReply((0, 1, 2)), programs.moving):
        assert same(state.model_state, states[0].model_state)


def test_leaves_are_found_by_their_paths_whatever_their_order():
    def change(state):
        return OrderedDict([("b", state["b"] + 10), ("a", state["a"] * 2)])

    state = OrderedDict([("a", jnp.float32(1)), ("b", jnp.float32(2))])
    after = trained(task_of(state, change), 3)
    assert (float(after["a"]), float(after["b"])) == (8.0, 32.0)


def test_several_workers_average_floats_and_take_the_largest_integer():
    def loss(params, state, batch, key):
        del key
        label = batch["label"].astype(jnp.int32).sum()
        return params["w"].sum(), ({}, {"least": -label, "mean": label.astype(jnp.bfloat16)})

    start = {"least": jnp.int32(-1000), "mean": jnp.bfloat16(0)}
    task = Task(lambda key: ({"w": jnp.ones(2)}, start), loss, SOURCE)
    programs = programs_of(task, plain_sgd())
    labels = [int(programs.batch(unit)["label"].sum()) for unit in range(4)]
    state = initial_state(task, plain_sgd(), 0)
    parameters = programs.parameters._replace(params=state.params, model_state=state.model_state)
    members = [programs.gradient(parameters, unit) for unit in range(4)]
    total = programs.total((members[0], programs.zero, *members[1:]))
    after = programs.update(state, total, units=4, factor=1.0, blend=1.0).model_state
    assert int(after["least"]) == max(-label for label in labels), "an idle member has no say"
    assert float(after["mean"]) == float(jnp.bfloat16(np.mean([float(jnp.bfloat16(x)) for x in labels])))


def test_a_servers_integers_never_fall_by_an_older_version():
    programs = programs_of(task_of({"calls": jnp.int32(0)}, lambda s: {"calls": s["calls"] + 1}), plain_sgd())
    state = initial_state(programs.task, plain_sgd(), 0)
    old = programs.gradient(programs.parameters._replace(params=state.params, model_state=state.model_state), 0)
    ahead = programs.parameters._replace(params=state.params, model_state={"calls": jnp.int32(5)})
    state = programs.update(state, programs.gradient(ahead, 1), units=1, factor=1.0, blend=0.5)
    assert int(programs.update(state, old, units=1, factor=1.0, blend=0.5).model_state["calls"]) == 6


START = {"a": jnp.int32(1), "b": jnp.zeros(3), "nested": {"key": jax.random.key_data(jax.random.key(0))}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {"a": s["a"], "b": s["b"]}, r"leaf nested/key as absent, init as uint32\[2\]"),
        (lambda s: {**s, "c": s["b"]}, r"leaf c as float32\[3\], init as absent"),
        (lambda s: None, r"leaf a as absent, init as int32\[\]"),
        (lambda s: s["b"], r"leaf a as absent"),
        (lambda s: {**s, "a": s["a"] * 1.5}, r"leaf a as float32\[\], init as int32\[\]"),
        (lambda s: {**s, "a": s["a"] > 0}, r"leaf a as bool\[\], init as int32\[\]"),
        (lambda s: {**s, "b": s["b"].astype(jnp.bfloat16)}, r"leaf b as bfloat16\[3\], init as float32\[3\]"),
        (lambda s: {**s, "b": s["b"].mean()}, r"leaf b as float32\[\], init as float32\[3\]"),
        (lambda s: {**s, "b": 4.0}, r"leaf b as float32\[\], init as float32\[3\]"),
        (lambda s: {**s, "b": (s["b"], s["b"])}, r"leaf b as absent, init as float32\[3\]"),
        (lambda s: {**s, "b": "text"}, r"leaf b as a str, init as float32\[3\]"),
        (lambda s: {**s, "nested": {"key": s["nested"]["key"] + jnp.uint32(1)}}, r"leaf nested/key, uint32\[2\].*key"),
    ],
)
def test_state_of_another_structure_or_type_is_refused_when_the_programs_are_built(change, message):
    task = task_of(START, change)
    with pytest.raises(TaskError, match=message):
        programs_of(task, plain_sgd())
    with pytest.raises(TaskError, match=message):
        check_model_state(task, SOURCE.batch(0, unit_size=4, seed=0))


@pytest.mark.parametrize(
    ("leaf", "change", "advice"),
    [
        (jnp.bool_(False), lambda x: ~x, r"bool\[\].*keep an int32"),
        (jnp.uint32(0), lambda x: x + 1, r"uint32\[\].*the loss's key.*count in int32"),
        (jnp.complex64(1j), lambda x: x * 2, r"complex64\[\].*real and imaginary"),
        (jax.random.key(0), lambda x: jax.random.split(x)[0], r"key<fry>\[\].*the loss's key"),
        (jnp.zeros((), jnp.int4), lambda x: x + 1, r"int4\[\].*keep an int32"),
        (jnp.zeros((), jnp.float8_e4m3fn), lambda x: x + 1, r"float8_e4m3fn\[\].*keep a float32"),
    ],
)
def test_a_change_of_a_type_without_a_rule_is_refused_by_name(leaf, change, advice):
    task = task_of({"it": leaf}, lambda state: {"it": change(state["it"])})
    with pytest.raises(TaskError, match=f"the loss changes the model state's leaf it, {advice}"):
        check_model_state(task, SOURCE.batch(0, unit_size=4, seed=0))


@pytest.mark.parametrize("wide", ["float64", "int64", "uint64"])
def test_numbers_of_64_bits_may_be_constants_only(wide):
    with jax.enable_x64(True):
        task = task_of({"it": jnp.zeros((), wide)}, lambda state: {"it": state["it"] + 1})
        with pytest.raises(TaskError, match=rf"leaf it, {wide}\[\]"):
            check_model_state(task, SOURCE.batch(0, unit_size=4, seed=0))
        constant = task_of({"it": jnp.zeros((), wide)}, lambda state: state)
        check_model_state(constant, SOURCE.batch(0, unit_size=4, seed=0))


def test_a_key_that_stays_in_the_state_is_refused_with_what_to_keep():
    with pytest.raises(TaskError, match=r"model_state/it is a PRNG key array.*key_data"):
        programs_of(task_of({"it": jax.random.key(0)}, lambda state: state), plain_sgd())


def test_servers_keep_the_state_at_the_first_of_them():
    task = task_of({**CONSTANTS, "calls": jnp.int32(0)}, lambda s: {**s, "calls": s["calls"] + 1})
    programs: Programs = programs_of(task, plain_sgd())
    first, second = partition(programs, 2)
    assert [leaf.path for leaf in first.contribution.layout.leaves if leaf.path.startswith("ints")] == ["ints/calls"]
    assert not [leaf.path for leaf in second.contribution.layout.leaves if leaf.path.startswith(("ints", "stats"))]


TABLES = {
    "bool": jnp.bool_([True, False]),
    "key": jax.random.key(3),
    "uint32": jnp.uint32([5]),
    "complex": jnp.complex64([1j]),
    "float": jnp.float32([0.1, -jnp.inf]),
    "bfloat16": jnp.bfloat16([0.1]),
}


class NnxTable(nnx.Module):
    """Holds constants of every type and statistics, and computes with both."""

    def __init__(self, rngs):
        self.tables = nnx.Dict({name: nnx.Variable(table) for name, table in TABLES.items()})
        self.norm, self.scores = nnx.BatchNorm(1, rngs=rngs), nnx.Linear(1, 7, rngs=rngs)

    def __call__(self, x):
        return self.scores(jnp.where(self.tables["bool"][0], self.norm(x), x))


class NnxNet(nnx.Module):
    def __init__(self, rngs, transform):
        self.table, self.transform = NnxTable(rngs), transform

    def __call__(self, x):
        return self.transform(NnxTable.__call__)(self.table, x)


class LinenTable(linen.Module):
    """Does as `NnxTable`."""

    train: bool

    @linen.compact
    def __call__(self, x):
        tables = {name: self.variable("tables", name, lambda t=table: t) for name, table in LINEN_TABLES.items()}
        normed = linen.BatchNorm(use_running_average=not self.train)(x)
        return linen.Dense(7)(jnp.where(tables["bool"].value[0], normed, x))


LINEN_TABLES = {**TABLES, "key": jax.random.key_data(TABLES["key"])}


def linen_net(transform: Any) -> linen.Module:
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x, train=False):
            return transform(LinenTable)(train)(x)

    return Net()


def jitted(task: Task) -> Task:
    return dataclasses.replace(task, loss=jax.jit(task.loss))


def layers_scanned(task: Task) -> Task:
    """Return the task with its loss in loops and branches that carry the model state."""

    def loss(params, model_state, batch, key):
        def body(state, _):
            return task.loss(params, state, batch, key)[1][1], None

        state, _ = jax.lax.scan(body, model_state, length=2)
        state = jax.lax.fori_loop(0, jnp.asarray(2), lambda _, s: body(s, None)[0], state)
        state = jax.lax.cond(batch["label"][0] > 0, lambda s: s, lambda s: body(s, None)[0], state)
        return task.loss(params, state, batch, key)

    return dataclasses.replace(task, loss=loss)


TRANSFORMED = {
    "nnx": lambda: Task.from_nnx(lambda rngs: NnxNet(rngs, lambda call: call), SOURCE),
    "nnx.remat": lambda: Task.from_nnx(lambda rngs: NnxNet(rngs, nnx.remat), SOURCE),
    "nnx.jit": lambda: Task.from_nnx(lambda rngs: NnxNet(rngs, nnx.jit), SOURCE),
    "linen": lambda: Task.from_linen(linen_net(lambda layer: layer), SOURCE),
    "linen.remat": lambda: Task.from_linen(linen_net(linen.remat), SOURCE),
    "linen.jit": lambda: Task.from_linen(linen_net(linen.jit), SOURCE),
}


@pytest.mark.parametrize("wrap", [lambda task: task, jitted, layers_scanned], ids=["as is", "jit", "loops"])
@pytest.mark.parametrize("made", TRANSFORMED.values(), ids=TRANSFORMED)
def test_what_a_transformation_hands_on_does_not_travel_and_statistics_do(made, wrap):
    task = wrap(made())
    check_model_state(task, SOURCE.batch(0, unit_size=4, seed=0))
    params, state = task.init(jax.random.key(0))
    parameters = Parameters(params, state)
    batch = {name: jnp.asarray(field) for name, field in SOURCE.batch(0, unit_size=4, seed=0).items()}
    program = functools.partial(_unit_gradient, task, None, 1)
    contribution = jax.eval_shape(program, parameters, batch, jnp.int32(0), jax.random.key(0))
    offered = contribution["floats"]["stats"], contribution["ints"]
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(offered)]
    assert len(paths) == 2 and all("mean" in path or "var" in path for path in paths)
