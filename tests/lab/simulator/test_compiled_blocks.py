"""Where versions lie in the ring, and blocks of every size."""

from __future__ import annotations

from random import Random

import jax
import numpy as np
import pytest

from hybridsync.core.errors import TaskError
from hybridsync.data.arrays import ArraySource
from hybridsync.lab.simulator.compiled_blocks import UNREAD, Blocks, Record, laid_out
from hybridsync.training.compiled_programs import Parameters, Programs
from hybridsync.training.state import initial_state
from hybridsync.training.task import Task
from tests.tasks import mlp_task, momentum_sgd, programs_of


@pytest.mark.parametrize("seed", range(20))
def test_each_gradient_reads_the_version_that_it_names(seed: int) -> None:
    random, ring, slots, kept, newest = Random(seed), {1: 0}, {0: 1}, {0}, 0
    for _ in range(5):
        read, made, alive = [], [], sorted(kept)
        for _ in range(random.randint(1, 12)):
            read.append([random.choice(alive) for _ in range(random.randint(1, 3))])
            made.append(newest := newest + 1)
            alive.append(newest)
        kept = {newest, *random.sample(alive, random.randint(0, min(4, len(alive))))}
        layout = laid_out(read, made, kept, slots)
        reads = iter(layout.reads)
        for versions, version, slot in zip(read, made, layout.writes, strict=True):
            assert [ring[next(reads)] for _ in versions] == versions
            ring[slot] = version
        slots = layout.slots
        assert {version: ring[slot] for version, slot in slots.items()} == {version: version for version in kept}
        assert UNREAD not in slots.values()


def test_a_chain_of_versions_needs_two_slots() -> None:
    made = [*range(1, 101)]
    layout = laid_out([[version - 1] for version in made], made, {100}, {0: 1})
    assert set(layout.writes) == {1}


def record(number: int, versions: tuple[int, ...], units: tuple[int, ...]) -> Record:
    weights = (1.0,) * len(units)
    return Record(versions, units, weights, number, len(units), factor=float(len(units)), blend=1.0)


def one_by_one(programs: Programs, records: list[Record]) -> list:
    states = [initial_state(programs.task, programs.optimizer, 0)]
    for one in records:
        bases = [Parameters(states[version].params, states[version].model_state) for version in one.versions]
        made = [programs.gradient(base, unit) for base, unit in zip(bases, one.units, strict=True)]
        options = {"units": one.num_units, "factor": one.factor, "blend": one.blend}
        states.append(programs.update(states[-1], programs.sum(made), **options))
    return states


def test_a_ring_that_is_too_small_and_a_block_that_is_too_long_grow() -> None:
    programs = Programs(
        mlp_task(), momentum_sgd(0.002), unit_size=8, workload=400, seed=0, donate_parameters=False, donate_rest=False
    )
    records = [record(number, (max(0, number - 6),), (number,)) for number in range(1, 20)]
    records.append(record(20, (19,) * 300, tuple(range(300))))  # more units than a block has
    expected = one_by_one(programs, records)
    blocks = Blocks(programs, num_slots=2)
    blocks.continue_from(expected[0])
    blocks.load(0, expected[0])
    assert blocks.most_units < 300
    states = blocks.run(records[:10], [3, 10], kept=range(4, 11)) + blocks.run(records[10:], [10], kept=())
    for state, number in zip(states, (3, 10, 20), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), state, expected[number])
    assert blocks.unfit() == ()


class Ragged(ArraySource):
    """Serves shorter examples in odd units."""

    def batch(self, unit: int, *, unit_size: int, seed: int) -> dict[str, np.ndarray]:
        batch = super().batch(unit, unit_size=unit_size, seed=seed)
        return {"x": batch["x"][:, : 4 - unit % 2]}


def test_units_of_several_shapes_are_refused() -> None:
    def loss(params, model_state, batch, key):
        return (batch["x"] ** 2).sum() * params["w"].sum(), ({}, model_state)

    source = Ragged("ragged", {"x": np.ones((16, 4), np.float32)})
    task = Task(lambda key: ({"w": np.ones(2, np.float32)}, {}), loss, source)
    programs = programs_of(task, momentum_sgd(0.1))
    blocks = Blocks(programs)
    state = initial_state(task, programs.optimizer, 0)
    blocks.continue_from(state)
    blocks.load(0, state)
    with pytest.raises(TaskError, match=r"'x' has the shape \(8, 3\) in unit 1, \(8, 4\) in unit 0.*gradients=real"):
        blocks.run([record(1, (0,), (0,)), record(2, (0,), (1,))], [], kept=())
