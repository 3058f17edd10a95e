from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hybridsync import Optimizer, Task, Trainer
from hybridsync.data import ArraySource
from hybridsync.server.divisibility import check_divisible
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.state import TrainState, initial_state

NUMBERS = ArraySource("numbers", {"x": np.random.RandomState(0).normal(size=(64, 8)).astype(np.float32)})


def task(dtype: Any) -> Task:
    """Return a fit whose gradients are small beside its parameters: bfloat16 alone takes up none of their steps."""

    def loss(params: Any, model_state: Any, batch: Any, key: Any) -> Any:
        del key
        fitted = batch["x"] @ jax.lax.stop_gradient(params["w"]).astype(jnp.float32)
        slope = (jnp.sign(fitted) * batch["x"]).mean(0)
        return (params["w"].astype(jnp.float32) * slope).sum() + 0.1 * params["b"].sum(), ({}, model_state)

    init = {"w": jnp.linspace(1.0, 2.0, 8).astype(dtype), "b": jnp.ones(2)}
    return Task(lambda key: (init, {}), loss, NUMBERS)


def adamw(master: bool, rate: float = 1e-3) -> Optimizer:
    return Optimizer(optax.adamw, learning_rate=rate, master=master)


def trained(dtype: Any, optimizer: Optimizer, updates: int) -> TrainState:
    run: dict[str, Any] = {"unit_size": 8, "workload": 100, "seed": 0}
    programs = Programs(task(dtype), optimizer, **run, donate_parameters=False)
    contributions = Programs(task(jnp.float32), adamw(False), **run, donate_parameters=False)
    state = initial_state(task(dtype), optimizer, 0)
    start = contributions.task.init(jax.random.key(0))
    for unit in range(updates):  # the same gradients, whatever the parameters are
        parameters = contributions.parameters._replace(params=start[0], model_state={})
        total = contributions.gradient(parameters, unit)
        state = programs.update(state, total, units=1, factor=1.0, blend=1.0)
    return state


def masters(state: TrainState) -> Any:
    low = state.opt_state.inner_state.low
    return jax.tree.map(lambda p, more: np.asarray(p, np.float32) + np.asarray(more), state.params, low)


@pytest.mark.parametrize("updates", [1, 30])
def test_bfloat16_with_masters_is_float32_rounded(updates: int) -> None:
    plain, state = trained(jnp.float32, adamw(False), updates), trained(jnp.bfloat16, adamw(True), updates)
    start = np.asarray(jnp.linspace(1.0, 2.0, 8).astype(jnp.bfloat16), np.float32) - np.linspace(1.0, 2.0, 8)
    np.testing.assert_allclose(masters(state)["w"] - start, plain.params["w"], atol=3e-5)
    assert state.params["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(state.params["w"], jnp.asarray(masters(state)["w"]).astype(jnp.bfloat16))


def test_float32_parameters_have_the_bits_they_have_without_masters() -> None:
    plain, state = trained(jnp.float32, adamw(False), 10), trained(jnp.float32, adamw(True), 10)
    for name in ("w", "b"):
        np.testing.assert_array_equal(plain.params[name], state.params[name])


def test_small_steps_are_lost_without_masters_alone() -> None:
    start = task(jnp.bfloat16).init(jax.random.key(0))[0]["w"]
    lost, kept = (trained(jnp.bfloat16, adamw(master), 30).params["w"] for master in (False, True))
    assert (lost == start).sum() >= 6
    assert (kept != start).sum() >= 6


def test_a_mean_over_workers_moves_the_masters() -> None:
    """`localsgd` and `diloco` replace parameters and leave the optimizer's state: the next step begins from theirs."""
    state = trained(jnp.bfloat16, adamw(True), 3)
    moved = state.replace(params=jax.tree.map(lambda p: p + 1, state.params))  # type: ignore[attr-defined]
    for name in ("w", "b"):
        np.testing.assert_allclose(masters(moved)[name], masters(state)[name] + 1, atol=2e-2)


def test_masters_divide_among_servers() -> None:
    check_divisible(adamw(True), task(jnp.bfloat16).init(jax.random.key(0))[0], 2)


@pytest.mark.parametrize("plan", ["bsp", "asp", "diloco(steps=2)", "localsgd(steps=2)", "preduce"])
def test_runs_of_every_kind_keep_the_types(plan: str) -> None:
    trainer = Trainer(task(jnp.bfloat16), adamw(True), workload=24, unit_size=8, workers=2, plan=plan, progress=False)
    state = trainer.fit().state
    assert state.params["w"].dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(state.opt_state.inner_state.low)} == {np.dtype(np.float32)}
    assert {leaf.dtype for leaf in jax.tree.leaves(state.opt_state.inner_state.inner[0].mu)} == {np.dtype(np.float32)}
