"""The partition: whole leaves, evenly, and bit for bit the same state in parts as in one piece."""

from __future__ import annotations

import functools
import weakref

import jax
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridsync.core.errors import HybridSyncError, OptimizerError
from hybridsync.server.partition import Contributions, Cut, initial_part, join, owners, partition, place, prune, shares
from hybridsync.training.buffer_layout import Layout, fingerprint
from hybridsync.training.compiled_programs import Parameters, Programs
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.state import initial_state
from tests.tasks import adamw, batchnorm_task, mlp_task, momentum_sgd, programs_of

SHAPES = st.lists(st.lists(st.integers(0, 40), max_size=3).map(tuple), min_size=1, max_size=12)


def tree_of(shapes: list[tuple[int, ...]]) -> dict[str, np.ndarray]:
    return {f"leaf{index:02}": np.arange(np.prod(s), dtype=np.float32).reshape(s) for index, s in enumerate(shapes)}


@given(SHAPES, st.integers(1, 6))
def test_every_leaf_has_one_server_and_no_server_is_fuller_than_the_emptiest_by_more_than_its_smallest_leaf(
    shapes, num_servers
):
    layout = Layout.of(tree_of(shapes))
    found = owners(layout, num_servers)
    assert found == owners(layout, num_servers)
    assert len(found) == len(layout.leaves) and set(found) <= set(range(num_servers))
    sizes = [
        [leaf.nbytes for leaf, owner in zip(layout.leaves, found, strict=True) if owner == s]
        for s in range(num_servers)
    ]
    emptiest = min(map(sum, sizes))
    assert all(sum(size) - min(size) <= emptiest for size in sizes if size)


@given(SHAPES, st.integers(1, 6))
def test_a_tree_is_the_union_of_its_parts(shapes, num_servers):
    tree = tree_of(shapes)
    layout = Layout.of(tree)
    cuts = [Cut.of(layout, prune(tree, kept)) for kept in shares(layout, num_servers)]
    parts = [cut.part_of(tree) for cut in cuts]
    assert fingerprint(join(cuts, parts)) == fingerprint(tree)
    whole = layout.empty()
    for cut, part in zip(cuts, parts, strict=True):
        cut.inside.pack(part, out=whole)
    assert fingerprint(layout.unpack(whole)) == fingerprint(tree)
    for cut, part in zip(cuts, parts, strict=True):
        assert fingerprint(cut.inside.unpack(whole)) == fingerprint(part)


@given(SHAPES, st.integers(1, 6))
def test_a_server_keeps_what_it_owns_and_never_a_single_leaf_where_there_are_more(shapes, num_servers):
    layout = Layout.of(tree_of(shapes))
    belongs = owners(layout, num_servers)
    num_filled = sum(leaf.nbytes > 0 for leaf in layout.leaves)
    for server, kept in enumerate(shares(layout, num_servers)):
        own = [index for index, owner in enumerate(belongs) if owner == server]
        assert set(own) <= set(kept) and len(kept) - len(own) <= (len(own) == 1)
        assert len(kept) != 1 or num_filled <= 1


def test_the_tree_of_a_single_server_goes_through_as_it_is_and_that_of_several_is_cut_and_joined():
    programs = programs_of(mlp_task(), momentum_sgd())
    tree = programs.one
    (alone,) = partition(programs, 1)
    assert alone.contribution.part_of(tree) is tree
    assert join([alone.contribution], [tree]) is tree
    cuts = [part.contribution for part in partition(programs, 2)]
    assert not any(cut.is_whole for cut in cuts)
    parts = [cut.part_of(tree) for cut in cuts]
    assert not any(part is tree for part in parts)
    assert fingerprint(join(cuts, parts)) == fingerprint(tree)


def test_the_largest_leaf_is_the_primarys():
    layout = Layout.of({"a": np.zeros(3), "b": np.zeros(50), "c": np.zeros(40), "d": np.zeros(20)})
    assert owners(layout, 2) == (0, 0, 1, 1)


@functools.cache
def programs(name: str) -> Programs:
    return {
        "momentum": lambda: programs_of(mlp_task(), momentum_sgd()),
        "adamw": lambda: programs_of(batchnorm_task(), adamw()),
    }[name]()


@pytest.mark.parametrize("num_servers", [1, 2, 3, 7])
@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_updates_of_the_parts_are_the_updates_of_the_whole_bit_for_bit(name, num_servers):
    whole = programs(name)
    parts = partition(whole, num_servers)
    state = jax.device_get(initial_state(whole.task, whole.optimizer, 0))
    shards = [jax.device_put(part.state.part_of(state)) for part in parts]
    at = Parameters(state.params, state.model_state)
    contributions = [jax.device_get(whole.gradient(at, unit)) for unit in range(3)]
    running = jax.device_put(state)
    for units, factor, blend in ((1, 1.0, 0.25), (2, 2.0, 0.5)):
        total = contributions[0] if units == 1 else whole.total(tuple(contributions[1:]))
        running = whole.update(running, total, units=units, factor=factor, blend=blend)
        for index, part in enumerate(parts):
            offered = [part.contribution.part_of(c) for c in contributions]
            total = offered[0] if units == 1 else part.programs.total(tuple(offered[1:]))
            shards[index] = part.programs.update(shards[index], total, units=units, factor=factor, blend=blend)
    joined = join([part.state for part in parts], jax.device_get(shards))
    assert fingerprint(joined) == fingerprint(jax.device_get(running))


def test_model_state_and_losses_are_the_primarys_and_counters_everyones():
    parts = partition(programs("adamw"), 3)
    assert [len(jax.tree.leaves(part.programs.state.model_state)) for part in parts] == [2, 0, 0]
    assert [len(jax.tree.leaves(part.programs.state.counters)) for part in parts] == [2, 2, 2]
    assert [part.programs.contribution["floats"]["loss"] is None for part in parts] == [False, True, True]


def test_parts_that_disagree_on_a_leaf_that_all_keep_are_refused_with_both_values():
    parts = partition(programs("momentum"), 2)
    layout = programs("momentum").state_layout
    state = layout.unpack(layout.empty())
    whole, taken = layout.empty(), set[str]()
    place(parts[0].state, parts[0].state.part_of(state), whole, taken)
    other = parts[1].state.part_of(state)
    place(parts[1].state, other, whole, set(taken))
    counters = {**other.counters, "units": np.int32(7)}
    with pytest.raises(HybridSyncError, match=r"counters/units.* is 0 on one and 7 on another"):
        place(parts[1].state, other.replace(counters=counters), whole, taken)


def whole_or_nothing(learning_rate: float) -> optax.GradientTransformation:
    def init(params):
        return {"sum": params["w"] + params["v"]}

    return optax.GradientTransformation(init, lambda updates, state, params=None: (updates, state))


def test_an_optimizer_that_cannot_be_set_up_on_a_part_is_refused():
    optimizer = Optimizer(whole_or_nothing, learning_rate=0.1)
    params = {"w": np.ones(3), "v": np.ones(3)}
    optimizer.init(params)
    with pytest.raises(OptimizerError, match=r"on a part of the parameters its init raises .*use one server"):
        initial_part(optimizer, prune(params, (0,)))


@pytest.mark.parametrize("is_view", [True, False])
def test_views_of_a_contribution_are_made_once_and_live_no_longer_than_its_memory(is_view):
    (part,) = partition(programs_of(mlp_task(), momentum_sgd()), 1)
    contributions, layout = Contributions(part), part.contribution.layout
    memory = np.zeros(layout.nbytes, np.uint8)
    buffer = memory[:] if is_view else memory
    tree = contributions.unpack(buffer)
    assert (contributions.unpack(buffer) is tree) == is_view
    layout.pack(jax.tree.map(np.ones_like, tree), out=buffer)
    assert all(np.all(leaf == 1) for leaf in jax.tree.leaves(contributions.unpack(buffer))), "later writes are not seen"
    alive = weakref.ref(memory)
    del memory, buffer, tree
    assert alive() is None and not contributions._known
