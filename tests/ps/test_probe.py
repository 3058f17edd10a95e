"""The probe: what looks at one leaf at a time may be divided, what looks at several may not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest

from hybridsync.errors import OptimizerError
from hybridsync.optimizer import Optimizer
from hybridsync.ps.probe import check_divisible

SHAPES = {
    "first": {"kernel": (8, 4), "bias": (4,)},
    "second": {"kernel": (4, 130), "bias": (3,)},
}
PARAMS = jax.tree.map(
    lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), SHAPES, is_leaf=lambda x: isinstance(x, tuple)
)
MASK = {"first": True, "second": {"kernel": True, "bias": False}}

DIVISIBLE = {
    "sgd": lambda learning_rate: optax.sgd(learning_rate, 0.9, nesterov=True),
    "adamw": lambda learning_rate: optax.adamw(learning_rate),
    "adamw with a mask that is a function": lambda learning_rate: optax.adamw(
        learning_rate, mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)
    ),
    "lion": lambda learning_rate: optax.lion(learning_rate),
    "lamb": lambda learning_rate: optax.lamb(learning_rate),
    "adafactor": lambda learning_rate: optax.adafactor(learning_rate, min_dim_size_to_factor=2),
    "muon": lambda learning_rate: optax.contrib.muon(learning_rate),
    "a mask that is a tree": lambda learning_rate: optax.masked(optax.sgd(learning_rate), MASK),
}


def mean_over_all_leaves(learning_rate):
    """Centralize gradients over the whole tree."""

    def update(updates, state, params=None):
        mean = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(updates)) / 100.0
        return jax.tree.map(lambda leaf: -learning_rate * (leaf - mean), updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def needs_every_leaf(learning_rate):
    def update(updates, state, params=None):
        bias = updates["first"]["bias"]
        return jax.tree.map(lambda leaf: leaf + bias[0], updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def counts_leaves(learning_rate):
    def init(params):
        return jnp.zeros(len(jax.tree.leaves(params)))

    return optax.GradientTransformation(init, lambda updates, state, params=None: (updates, state))


INDIVISIBLE = {
    "a global norm": (
        lambda learning_rate: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(learning_rate)),
        r"params/\S+ is -?[\d.e+-]+ on the whole tree and -?[\d.e+-]+ on a part",
    ),
    "a generous global norm": (
        lambda learning_rate: optax.chain(optax.clip_by_global_norm(1000.0), optax.adam(learning_rate)),
        "on the whole tree and",
    ),
    "a mean over all leaves": (mean_over_all_leaves, "on the whole tree and"),
    "a leaf that needs another": (needs_every_leaf, "on a part of the parameters its init raises"),
    "a state as long as the tree": (counts_leaves, r"inner_state has the shape .* of shape \(4,\)"),
}


@pytest.mark.parametrize("num_servers", [2, 3, 6])
@pytest.mark.parametrize("name", DIVISIBLE)
def test_an_optimizer_that_treats_each_leaf_by_itself_may_be_divided(name, num_servers):
    check_divisible(Optimizer(DIVISIBLE[name], learning_rate=0.1), PARAMS, num_servers)


@pytest.mark.parametrize("name", INDIVISIBLE)
def test_an_optimizer_that_looks_at_several_leaves_is_refused_with_both_values(name):
    factory, text = INDIVISIBLE[name]
    with pytest.raises(OptimizerError, match=text) as refusal:
        check_divisible(Optimizer(factory, learning_rate=0.1), PARAMS, 2)
    assert "use one server" in str(refusal.value)


def test_clipping_on_the_worker_takes_its_place():
    optimizer = Optimizer(lambda learning_rate: optax.sgd(learning_rate), learning_rate=0.1, clip=1.0)
    check_divisible(optimizer, PARAMS, 2)
