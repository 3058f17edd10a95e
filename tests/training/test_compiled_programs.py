"""The three programs against mathematics written out on one device."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hybridsync.core.activity import follow
from hybridsync.core.errors import TaskError
from hybridsync.data.synthetic import SyntheticSource
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.compiled_programs import Parameters, Programs
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.state import TrainState, initial_state
from hybridsync.training.task import Task
from tests.compilations import count_compilations
from tests.sweeps import swept
from tests.tasks import adamw, batchnorm_task, copied, mlp_task, momentum_sgd, plain_sgd, programs_of, resnet_task

UNITS = (5, 2, 9, 0)


def parameters_of(state: TrainState) -> Parameters:
    return Parameters(state.params, state.model_state)


@functools.cache
def reference_of(programs: Programs) -> Callable[..., Any]:
    """Return what a unit's loss and gradient are by their definition, from the task alone."""
    task = programs.task

    def value_and_grad(params, model_state, batch, unit):
        data_key, model_key = jax.random.split(jax.random.fold_in(jax.random.key(programs.seed), unit))
        batch = task.source.augment(batch, data_key)
        return jax.value_and_grad(task.loss, has_aux=True)(params, model_state, batch, model_key)

    return jax.jit(value_and_grad)


def shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def relative_error(found: Any, expected: Any) -> float:
    """Return the norm of the difference of two trees over the norm of the second."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    square = sum(float(np.sum((np.asarray(a, np.float64) - b) ** 2)) for a, b in pairs)
    norm = sum(float(np.sum(np.asarray(b, np.float64) ** 2)) for b in jax.tree.leaves(expected))
    return (square / norm) ** 0.5


@functools.cache
def small_run(model: str) -> tuple[Programs, TrainState]:
    task = {"mlp": mlp_task, "batchnorm": batchnorm_task, "resnet8": resnet_task}[model]()
    programs = programs_of(task, plain_sgd(0.1))
    random = np.random.default_rng(0)  # drawn here: compiling a deep model's init takes longer than all of its steps

    def draw(leaf):
        return jnp.asarray(0.2 * random.standard_normal(leaf.shape), leaf.dtype)

    params = jax.tree.map(draw, programs.state.params)
    model_state = jax.tree.map(lambda leaf: 1 + jnp.abs(draw(leaf)), programs.state.model_state)
    counters = {"units": jnp.int32(0), "updates": jnp.int32(0)}
    return programs, TrainState(params, programs.optimizer.init(params), model_state, {}, counters)


@pytest.fixture(params=swept(["mlp", "batchnorm", "resnet8"], 2))
def case(request) -> tuple[Programs, TrainState]:
    return small_run(request.param)


def test_a_step_of_four_workers_is_the_mean_of_four_unit_gradients(case):
    programs, state = case
    contributions = tuple(programs.gradient(parameters_of(state), unit) for unit in UNITS)
    total = programs.total(contributions)
    after = programs.update(copied(state), total, units=4, factor=4.0, blend=1.0)

    reference = reference_of(programs)
    found = [reference(state.params, state.model_state, programs.batch(unit), unit) for unit in UNITS]
    mean = jax.tree.map(lambda *grads: np.mean([np.asarray(g, np.float64) for g in grads], 0), *[g for _, g in found])
    assert relative_error(jax.tree.map(lambda g: g / 4, total["floats"]["grads"]), mean) <= 1e-6
    expected = jax.tree.map(lambda p, g: np.asarray(p, np.float64) - 4 * 0.1 * g, state.params, mean)
    assert relative_error(after.params, expected) <= 1e-6
    states = [aux[1] for (_, aux), _ in found]
    if jax.tree.leaves(states[0]):
        merged = jax.tree.map(lambda *leaves: np.mean([np.asarray(leaf, np.float64) for leaf in leaves], 0), *states)
        assert relative_error(after.model_state, merged) <= 1e-6
        assert fingerprint(after.model_state) != fingerprint(state.model_state)
    assert float(total["floats"]["loss"]) == pytest.approx(sum(float(value) for (value, _), _ in found), rel=1e-5)
    assert jax.tree.map(int, after.counters) == {"units": 4, "updates": 1}


def test_a_hundred_free_running_steps_stay_with_those_of_one_device(case):
    programs, start = case
    reference = reference_of(programs)
    state, params, model_state = copied(start), start.params, start.model_state
    for step in range(100):
        units = range(4 * step, 4 * step + 4)
        total = programs.total(tuple(programs.gradient(parameters_of(state), unit) for unit in units))
        state = programs.update(state, total, units=4, factor=0.1, blend=1.0)
        found = [reference(params, model_state, programs.batch(unit), unit) for unit in units]
        mean = jax.tree.map(lambda *leaves: np.mean(leaves, 0), *[(aux[1], grads) for (_, aux), grads in found])
        model_state, params = mean[0], jax.tree.map(lambda p, g: p - np.float32(0.01) * g, params, mean[1])
    assert relative_error(state.params, params) <= 1e-4
    assert relative_error(state.params, start.params) > 1e-3, "it trained"


def test_idle_members_leave_the_mean_as_it_is(case):
    programs, state = case
    two = tuple(programs.gradient(parameters_of(state), unit) for unit in UNITS[:2])
    idle = (two[0], programs.zero, two[1], programs.zero)
    alone = programs.update(copied(state), programs.total(two), units=2, factor=2.0, blend=1.0)
    among = programs.update(copied(state), programs.total(idle), units=2, factor=2.0, blend=1.0)
    assert fingerprint(among) == fingerprint(alone)


def test_a_units_gradient_does_not_depend_on_its_neighbours(case):
    programs, state = case
    alone = programs.gradient(parameters_of(state), 5)
    programs.gradient(parameters_of(state), 9)
    again = programs.gradient(parameters_of(state), 5)
    assert fingerprint(alone) == fingerprint(again)
    other = programs.gradient(parameters_of(state), 9)
    assert fingerprint(other) != fingerprint(alone)


def test_an_asynchronous_worker_blends_its_statistics_into_the_shared_ones():
    programs, state = small_run("batchnorm")
    contribution = programs.gradient(parameters_of(state), 3)
    after = programs.update(copied(state), contribution, units=1, factor=1.0, blend=0.25)
    whole = programs.update(copied(state), contribution, units=1, factor=1.0, blend=1.0)
    expected = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, state.model_state, whole.model_state)
    assert relative_error(after.model_state, expected) <= 1e-6


def test_integer_model_state_takes_the_maximum():
    def init(key):
        del key
        return {"w": jnp.ones(2)}, {"seen": jnp.int32(0), "mean": jnp.zeros(())}

    def loss(params, model_state, batch, key):
        del key
        seen = model_state["seen"] + batch["label"].astype(jnp.int32).sum()
        return params["w"].sum(), ({}, {"seen": seen, "mean": batch["label"].astype(jnp.float32).mean()})

    source = SyntheticSource(64, (1,), num_classes=7, num_test=1)
    task = Task(init, loss, source)
    programs = programs_of(task, plain_sgd())
    state = initial_state(task, plain_sgd(), 0)
    total = programs.total(tuple(programs.gradient(parameters_of(state), unit) for unit in range(4)))
    after = programs.update(state, total, units=4, factor=4.0, blend=1.0)
    labels = [programs.batch(unit)["label"] for unit in range(4)]
    assert int(after.model_state["seen"]) == max(int(label.sum()) for label in labels)
    assert float(after.model_state["mean"]) == pytest.approx(np.mean(labels), rel=1e-6)


def test_the_gradient_of_a_unit_is_clipped_to_its_global_norm():
    task = mlp_task()
    free, state = small_run("mlp")
    clipping = Optimizer(lambda learning_rate: optax.sgd(learning_rate), learning_rate=1.0, clip=0.01)
    gradient = free.gradient(parameters_of(state), 1)["floats"]["grads"]
    clipped = programs_of(task, clipping).gradient(parameters_of(state), 1)["floats"]["grads"]
    assert float(optax.tree.norm(clipped)) == pytest.approx(0.01, rel=1e-5)
    scale = 0.01 / optax.tree.norm(gradient)
    assert relative_error(clipped, jax.tree.map(lambda g: g * scale, gradient)) < 1e-5


@pytest.mark.parametrize("workload", [400, 2**29], ids=["int32 examples", "float32 examples"])
def test_the_rate_reads_examples_applied_before_the_update(workload):
    seen = Optimizer(
        lambda learning_rate: optax.sgd(learning_rate), learning_rate=lambda examples: examples * 0.5 + 1.0
    )
    task = mlp_task()
    programs = programs_of(task, seen, workload=workload)
    state = initial_state(task, seen, 0)
    for units in (1, 3):
        total = programs.total(tuple(programs.gradient(parameters_of(state), unit) for unit in range(units)))
        state = programs.update(state, total, units=units, factor=float(units), blend=1.0)
    assert float(state.opt_state.hyperparams["learning_rate"]) == 3 * (1.0 + 0.5 * 1 * programs.unit_size)
    assert jax.tree.map(int, state.counters) == {"units": 4, "updates": 2}


def plain_loop(programs: Programs, transformation: Any, state: TrainState, units: int, *, fused: bool) -> Any:
    """Train as a plain program would: jitted value_and_grad, jitted optax update; or both in one jit."""
    task, key = programs.task, jax.random.key(programs.seed)

    def gradient(params, model_state, batch, unit):
        data_key, model_key = jax.random.split(jax.random.fold_in(key, unit))
        batch = task.source.augment(batch, data_key)
        return jax.grad(lambda p: task.loss(p, model_state, batch, model_key)[0])(params)

    def update(params, opt_state, grads):
        updates, opt_state = transformation.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    def both(params, opt_state, model_state, batch, unit):
        return update(params, opt_state, gradient(params, model_state, batch, unit))

    params, opt_state = state.params, transformation.init(state.params)
    gradient, update, both = jax.jit(gradient), jax.jit(update), jax.jit(both)
    for unit in range(units):
        batch = programs.batch(unit)
        if fused:
            params, opt_state = both(params, opt_state, state.model_state, batch, np.int32(unit))
        else:
            grads = gradient(params, state.model_state, batch, np.int32(unit))
            params, opt_state = update(params, opt_state, grads)
    return params


PLAIN = {
    "momentum sgd": (momentum_sgd, lambda: optax.sgd(0.05, 0.9)),
    "adamw": (adamw, lambda: optax.adamw(1e-3, weight_decay=1e-2)),
}


@pytest.mark.parametrize("fused", [False, True], ids=["two jits", "one fused jit"])
@pytest.mark.parametrize("name", PLAIN)
def test_one_worker_equals_a_plain_optax_loop(name, fused):
    """Bit for bit where the loop compiles gradient and update apart, as the programs do."""
    make, plain = PLAIN[name]
    task = mlp_task()
    programs = programs_of(task, make())
    state = start = initial_state(task, make(), 0)
    for unit in range(200):
        contribution = programs.gradient(parameters_of(state), unit)
        state = programs.update(copied(state) if unit == 0 else state, contribution, units=1, factor=1.0, blend=1.0)
    expected = plain_loop(programs, plain(), start, 200, fused=fused)
    if fused:
        assert relative_error(state.params, expected) <= 1e-6
    else:
        assert fingerprint(state.params) == fingerprint(expected)


@pytest.mark.parametrize("donate_parameters", [False, True])
def test_the_second_step_compiles_nothing(donate_parameters):
    task = mlp_task()
    programs = programs_of(task, momentum_sgd(), donate_parameters=donate_parameters)
    state = jax.device_put(jax.device_get(initial_state(task, momentum_sgd(), 0)))

    def step(state, unit, idle):
        contributions = [programs.gradient(parameters_of(state), unit), programs.gradient(parameters_of(state), unit)]
        members = (contributions[0], programs.zero if idle else contributions[1])
        total = programs.total(members)
        return programs.update(state, total, units=2 - idle, factor=2.0 - idle, blend=1.0)

    with count_compilations() as compiled:
        state = step(state, 0, idle=0)
    assert compiled, "the first step compiles"
    with count_compilations() as compiled:
        state = step(state, 1, idle=1)
        step(state, 2, idle=0)
    assert compiled == []


def test_what_updates_are_made_of_is_described_before_anything_runs():
    programs, state = small_run("batchnorm")
    contribution = programs.gradient(parameters_of(state), 0)
    assert shapes(contribution) == shapes(programs.contribution) == shapes(programs.zero) == shapes(programs.one)
    after = programs.update(copied(state), contribution, units=1, factor=1.0, blend=1.0)
    assert shapes(after) == shapes(state)
    assert programs.contribution_layout.nbytes == len(programs.contribution_layout.pack(contribution))


class Padded(SyntheticSource):
    """Units of texts: those from 5 on are padded to another length."""

    def batch(self, unit: int, *, unit_size: int, seed: int) -> Any:
        batch = super().batch(unit, unit_size=unit_size, seed=seed)
        return {**batch, "image": batch["image"][:, : 4 if unit < 5 else 2]}


def test_a_worker_is_notified_while_data_are_read_and_once_for_each_shape_that_is_compiled() -> None:
    noted: list[str] = []

    class Worker:
        def reading(self) -> None:
            noted.append("reading")

        def has_read(self) -> None:
            noted.append("has read")

        def compiling(self) -> None:
            noted.append("compiling")

    def loss(params: Any, model_state: Any, batch: Any, key: Any) -> Any:
        return params["w"] * batch["image"].mean(), ({}, model_state)

    task = Task(lambda key: ({"w": jnp.ones(())}, {}), loss, Padded(64, (4, 4, 1), num_classes=4, num_test=1))
    programs = Programs(
        task,
        plain_sgd(0.1),
        unit_size=4,
        workload=10,
        seed=0,
        donate_parameters=False,
    )
    parameters = parameters_of(initial_state(task, plain_sgd(0.1), 0))

    def train() -> None:
        follow(Worker())
        programs.gradient(parameters, 0)
        noted.clear()
        for unit in (1, 5, 6, 2):
            jax.block_until_ready(programs.gradient(parameters, unit))
            noted.append(str(unit))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(120)
    read = ["reading", "has read"]
    assert noted == [*read, "1", *read, "compiling", "5", *read, "6", *read, "2"]


def served(change: Callable[[int, dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Task:
    """Return a task whose source serves what `change` makes of a unit."""

    class Source(SyntheticSource):
        def batch(self, unit, **options):
            return change(unit, super().batch(unit, **options))

    return dataclasses.replace(mlp_task(), source=Source(512, (4, 4, 1), num_classes=4, num_test=64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda field: field[:7], r"unit 5 has 7 examples, unit_size is 8: .* 'image' as .*\[7,4,4,1\]"),
        (lambda field: np.concatenate([field, field]), "unit 5 has 16 examples, unit_size is 8"),
        (lambda field: field[0, 0, 0, 0], "unit 5 has 0 examples, unit_size is 8"),
        (lambda field: field[:, 0], r"unit 5 has the field 'image' as .*\[8,4,1\], unit 0 as .*\[8,4,4,1\]"),
        (lambda field: field.astype(np.float16), r"unit 5 has the field 'image' as float16\[8,4,4,1\], unit 0 as "),
    ],
)
def test_a_unit_of_another_shape_or_type_than_the_first_is_refused_by_name(change, message):
    task = served(lambda unit, batch: {**batch, "image": change(batch["image"])} if unit == 5 else batch)
    programs = programs_of(task, plain_sgd())
    assert programs.batch(4).keys() == {"image", "label"}
    with pytest.raises(TaskError, match=message):
        programs.batch(5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda batch: {"image": batch["image"]}, r"unit 3 has the field 'label' as absent, unit 0 as uint8\[8\]"),
        (lambda batch: {**batch, "weight": batch["label"]}, "unit 3 has the field 'weight' as uint8.*unit 0 as absent"),
    ],
)
def test_a_unit_of_other_fields_than_the_first_is_refused_by_name(change, message):
    programs = programs_of(served(lambda unit, batch: change(batch) if unit == 3 else batch), plain_sgd())
    with pytest.raises(TaskError, match=message):
        programs.batch(3)


def test_a_first_unit_that_is_short_is_refused_when_the_programs_are_built():
    task = served(lambda unit, batch: {name: field[:3] for name, field in batch.items()})
    with pytest.raises(TaskError, match="unit 0 has 3 examples, unit_size is 8"):
        programs_of(task, plain_sgd())


def test_a_gradient_is_traced_once_for_its_shapes_and_its_first_call():
    task, traced = mlp_task(), []

    def loss(params, model_state, batch, key):
        traced.append(batch)
        return task.loss(params, model_state, batch, key)

    counted = dataclasses.replace(task, loss=loss)
    programs = programs_of(counted, plain_sgd(), unit_size=8, workload=16)
    state = jax.device_put(jax.device_get(initial_state(counted, plain_sgd(), seed=0)))
    assert len(traced) == 1, "programs have shapes"
    for unit in range(2):
        jax.block_until_ready(programs.gradient(parameters_of(state), unit))
    assert len(traced) == 1


def test_an_update_that_was_compiled_ahead_is_not_compiled_again():
    programs = programs_of(mlp_task(), momentum_sgd(0.03), unit_size=12, workload=48)
    state = jax.device_put(jax.device_get(initial_state(mlp_task(), momentum_sgd(0.03), seed=0)))
    contribution = programs.gradient(parameters_of(state), 0)
    host = jax.device_get(contribution)
    with count_compilations() as ahead:
        programs.compile_update().join()
    assert [name for name in ahead if "update" in name], "nothing was compiled: this test proves nothing"
    with count_compilations() as compiled:
        after = programs.update(state, contribution, units=1, factor=1.0, blend=1.0)
        jax.block_until_ready(programs.update(after, host, units=1, factor=1.0, blend=1.0))
    assert compiled == []


def test_an_update_that_cannot_be_compiled_ahead_raises_at_its_first_call():
    def factory(learning_rate):
        made = optax.sgd(learning_rate)

        def update(updates, state, params=None):
            if broken:
                raise ValueError("no update today")
            return made.update(updates, state, params)

        return optax.GradientTransformation(made.init, update)

    broken: list[bool] = []
    optimizer = Optimizer(factory, learning_rate=0.5)
    programs = programs_of(mlp_task(), optimizer, unit_size=8, workload=16)
    state = jax.device_put(jax.device_get(initial_state(mlp_task(), optimizer, seed=0)))
    contribution = programs.gradient(parameters_of(state), 0)
    broken.append(True)
    programs.compile_update().join()
    with pytest.raises(ValueError, match="no update today"):
        programs.update(state, contribution, units=1, factor=1.0, blend=1.0)
