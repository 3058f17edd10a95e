"""The training state: one structure, whatever computes it."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

from hybridsync.core.errors import OptimizerError, TaskError
from hybridsync.training.buffer_layout import Layout, fingerprint
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.state import abstract_state, initial_state
from hybridsync.training.task import Task
from tests.tasks import adamw, mlp_task, momentum_sgd


def test_the_abstract_state_is_the_real_one_without_its_values():
    task = mlp_task()
    state = initial_state(task, adamw(), seed=0)
    abstract = abstract_state(task, adamw())
    assert Layout.of(abstract).schema_hash == Layout.of(state).schema_hash
    assert jax.tree.structure(abstract) == jax.tree.structure(state)


def test_the_initial_state_is_a_pure_function_of_the_seed():
    first, again, other = (initial_state(mlp_task(), momentum_sgd(), seed) for seed in (3, 3, 4))
    assert fingerprint(first) == fingerprint(again)
    assert fingerprint(first) != fingerprint(other)


def test_a_state_begins_at_unit_zero_with_integer_counters_and_no_protocol_state():
    state = initial_state(mlp_task(), momentum_sgd(), seed=0)
    assert jax.tree.map(int, state.counters) == {"units": 0, "updates": 0}
    assert {leaf.dtype for leaf in jax.tree.leaves(state.counters)} == {np.dtype(np.int32)}
    assert state.protocol_state == {}


def test_an_init_that_forgets_the_model_state_is_refused():
    task = mlp_task()
    broken = Task(lambda key: task.init(key)[0], task.loss, task.source)
    with pytest.raises(TaskError, match="dict; it must return"):
        initial_state(broken, momentum_sgd(), seed=0)


def test_the_optimizer_is_checked_when_the_state_is_made():
    lookahead = Optimizer(lambda learning_rate: optax.lookahead(optax.sgd(learning_rate), 5, 0.5), learning_rate=0.1)
    with pytest.raises(OptimizerError):
        abstract_state(mlp_task(), lookahead)


def test_shapes_are_traced_once_for_an_init_and_an_optimizer():
    traced: list[str] = []

    def init(key):
        traced.append("init")
        return mlp_task().init(key)

    task, optimizer = Task(init=init, loss=mlp_task().loss, source=mlp_task().source), adamw()
    assert abstract_state(task, optimizer) is abstract_state(task, optimizer)
    assert traced == ["init"]
    kept = abstract_state(task, optimizer, ("diloco",))
    assert set(kept.protocol_state) == {"diloco"} and len(traced) == 2
    assert Layout.of(abstract_state(task, momentum_sgd()).opt_state) != Layout.of(kept.opt_state)
