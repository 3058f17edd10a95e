"""The probe: what looks at one leaf at a time may be divided, what looks at several may not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hybridsync.core.errors import OptimizerError
from hybridsync.server.divisibility import TOLERANCE, check_divisible
from hybridsync.server.partition import prune, shares
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.optimizer import Optimizer
from tests.sweeps import swept

pytestmark = pytest.mark.usefixtures("quickly_compiled")

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


def after_two(transformation, other):
    """Do as the one for two updates, and as the other from the third on."""

    def init(params):
        return jnp.int32(0), transformation.init(params), other.init(params)

    def update(updates, state, params=None):
        first, early = transformation.update(updates, state[1], params)
        later, late = other.update(updates, state[2], params)
        chosen = jax.tree.map(lambda a, b: jnp.where(state[0] < 2, a, b), first, later)
        return chosen, (state[0] + 1, early, late)

    return optax.GradientTransformation(init, update)


def late_mean(learning_rate):
    return after_two(optax.sgd(learning_rate), mean_over_all_leaves(learning_rate))


def is_largest(params):
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    return jax.tree.map(lambda leaf: leaf.size == max(sizes), params)


def are_many(params):
    return jax.tree.map(lambda leaf: len(jax.tree.leaves(params)) > 3, params)


UNTRAINABLE = {"a leaf that needs another", "a state as long as the tree"}
"""What has no part to be trained."""
BEHIND_A_NORM = {"lamb behind a global norm", "adafactor behind a global norm", "muon behind a global norm"}


def limited(make, norm=1.0):
    """Limit the norm over all leaves in front of an optimizer."""
    return lambda learning_rate: optax.chain(optax.clip_by_global_norm(norm), make(learning_rate))


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
    "a limit that only huge gradients reach": (limited(optax.sgd, 1e9), "on the whole tree and"),
    "lamb behind a global norm": (limited(optax.lamb), "on the whole tree and"),
    "adafactor behind a global norm": (
        limited(lambda learning_rate: optax.adafactor(learning_rate, min_dim_size_to_factor=2)),
        "on the whole tree and",
    ),
    "muon behind a global norm": (limited(optax.contrib.muon, 1e-3), "on the whole tree and"),
    "a mean from the third update on": (late_mean, "after update 3 .* on the whole tree and"),
    "a mask of the largest leaf": (
        lambda learning_rate: optax.masked(optax.sgd(learning_rate, 0.9), is_largest),
        "(on the whole tree and|and is absent on the whole)",
    ),
    "a mask by the number of leaves": (
        lambda learning_rate: optax.masked(optax.sgd(learning_rate, 0.9), are_many),
        "(on the whole tree and|and is absent on the whole)",
    ),
    "a state as long as the tree": (counts_leaves, r"inner_state has the shape .* of shape \(4,\)"),
}


@pytest.mark.parametrize("num_servers", [3, 6])
@pytest.mark.parametrize("name", swept([*DIVISIBLE], 3))
def test_an_optimizer_that_treats_each_leaf_by_itself_may_be_divided(name, num_servers):
    check_divisible(Optimizer(DIVISIBLE[name], learning_rate=0.1), PARAMS, num_servers)


@pytest.mark.parametrize("name", sorted(UNTRAINABLE))
def test_an_optimizer_that_cannot_begin_with_a_part_is_refused(name):
    check_refused(name, 2)


def check_refused(name: str, num_servers: int) -> None:
    factory, text = INDIVISIBLE[name]
    with pytest.raises(OptimizerError, match=text) as refusal:
        check_divisible(Optimizer(factory, learning_rate=0.1), PARAMS, num_servers)
    assert "cannot be divided" in str(refusal.value) and "use one server" in str(refusal.value)


def worst_difference(factory, num_servers: int) -> float:
    """Train the whole tree and its parts for 30 updates; return by how much of a leaf's size a parameter differs."""
    optimizer = Optimizer(factory, learning_rate=0.1)
    layout = Layout.of(PARAMS)
    generator = np.random.default_rng(7)

    def drawn(scale):
        return layout.treedef.unflatten(
            [jnp.asarray(generator.standard_normal(leaf.shape) * scale, jnp.float32) for leaf in layout.leaves]
        )

    start, gradients = drawn(1.0), [drawn(10.0**size) for size in np.linspace(-2, 10, 30)]

    def trained(kept):
        params = prune(start, kept)
        state, history, update = optimizer.init(params), [], jax.jit(optimizer.update)
        for gradient in gradients:
            updates, state = update(prune(gradient, kept), state, params, jnp.float32(0.1))
            params = optax.apply_updates(params, updates)
            leaves = jax.tree_util.tree_leaves_with_path(params)
            history.append({jax.tree_util.keystr(path): np.asarray(leaf, np.float64) for path, leaf in leaves})
        return history

    whole = trained(range(len(layout.leaves)))
    pairs = [
        (value, then[path])
        for kept in shares(layout, num_servers)
        for now, then in zip(trained(kept), whole, strict=True)
        for path, value in now.items()
    ]
    return max(float(np.abs(ours - theirs).max() / np.abs(theirs).max()) for ours, theirs in pairs)


EVERY = {**DIVISIBLE, **{name: case[0] for name, case in INDIVISIBLE.items()}}


@pytest.mark.parametrize("num_servers", [2, pytest.param(3, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", sorted({*EVERY} - UNTRAINABLE - BEHIND_A_NORM) + swept(sorted(BEHIND_A_NORM), 0))
def test_exactly_those_are_refused_with_both_values_whose_parts_train_otherwise_than_the_whole(name, num_servers):
    differs = worst_difference(EVERY[name], num_servers) > TOLERANCE
    assert differs == (name in INDIVISIBLE)
    if differs:
        check_refused(name, num_servers)
    else:
        check_divisible(Optimizer(EVERY[name], learning_rate=0.1), PARAMS, num_servers)


def test_gradients_that_are_added_up_are_refused_by_name():
    def several(learning_rate):
        return optax.MultiSteps(optax.contrib.muon(learning_rate), every_k_schedule=2).gradient_transformation()

    with pytest.raises(OptimizerError, match="MultiSteps"):
        check_divisible(Optimizer(several, learning_rate=0.1), PARAMS, 2)


def test_parameters_of_few_bits_are_no_reason_to_refuse():
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float16), PARAMS)
    check_divisible(Optimizer(DIVISIBLE["sgd"], learning_rate=0.1), params, 2)


def test_clipping_on_the_worker_takes_its_place():
    optimizer = Optimizer(lambda learning_rate: optax.sgd(learning_rate), learning_rate=0.1, clip=1.0)
    check_divisible(optimizer, PARAMS, 2)
