"""Computes many recorded updates in one compiled program: a loop over updates, and in each one over its gradients.

A ring on the device holds the versions that gradients are computed on. An update names the slots that its gradients
read, and the slot that takes the version it makes; slot 0 takes those that nobody reads.

>>> laid_out([(0, 0), (0, 1)], made=[1, 2], kept={2}, slots={0: 1})  # update 1 reads versions 0 and 1, makes 2
Layout(reads=[1, 1, 1, 2], writes=[2, 2], slots={2: 2})
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridsync.core.errors import TaskError
from hybridsync.lab.simulator.unrolled_random import unrolled
from hybridsync.training.compiled_programs import Parameters, Programs
from hybridsync.training.state import TrainState

UNREAD = 0
"""Slot of a version that nobody reads."""
MOST_UNITS, MOST_BYTES = 256, 32 << 20
"""Most units of a block, and about the most bytes of their examples: a longer block saves no time any more."""


class Layout(NamedTuple):
    """Where a block reads and writes versions.

    Args:
      reads: slot that each gradient reads, in their order.
      writes: slot that each update's version takes.
      slots: version -> its slot after the block.
    """

    reads: list[int]
    writes: list[int]
    slots: dict[int, int]


def laid_out(
    read: Sequence[Sequence[int]], made: Sequence[int], kept: Collection[int], slots: Mapping[int, int]
) -> Layout:
    """Return where a block's versions lie; a slot is free again after the last gradient that reads it.

    Args:
      read: versions that the gradients of each update read, in the order of the gradients.
      made: version that each update makes.
      kept: versions that are needed after the block.
      slots: version -> its slot before the block.
    """
    last = {version: number for number, versions in enumerate(read) for version in versions}
    slots = {version: slot for version, slot in slots.items() if version in last or version in kept}
    num_slots = max(slots.values(), default=UNREAD) + 1
    free = sorted(set(range(1, num_slots)).difference(slots.values()), reverse=True)
    reads, writes = [], []
    for number, (versions, version) in enumerate(zip(read, made, strict=True)):
        reads += [slots[each] for each in versions]
        # Gradients read before the update writes, so a version may take the slot of one that it replaces.
        free += [slots.pop(each) for each in {*versions} if last[each] == number and each not in kept]
        if version not in last and version not in kept:
            writes.append(UNREAD)
            continue
        if not free:
            free, num_slots = [num_slots], num_slots + 1
        slots[version] = free.pop()
        writes.append(slots[version])
    return Layout(reads, writes, slots)


class Record(NamedTuple):
    """One update as it was recorded.

    Args:
      versions, units, weights: of each gradient: version it is computed on, unit, factor on it in the sum.
      made: version that the update makes.
      num_units, factor, blend: see `Programs.update`.
    """

    versions: tuple[int, ...]
    units: tuple[int, ...]
    weights: tuple[float, ...]
    made: int
    num_units: int
    factor: float
    blend: float


class Blocks:
    """Runs recorded updates, one block after another.

    Args:
      programs: programs of the run; nothing is donated to them.
      compiled: those of another seed, whose compiled loop is used again; None compiles one.
      num_slots: slots of the ring at first; more are made when they are needed, which compiles the loop again.

    Attributes:
      loop: the compiled loop, which serves runs of every seed.
      most_units: units of a block; one update of more makes a block alone, which compiles the loop again.
    """

    def __init__(self, programs: Programs, compiled: Blocks | None = None, num_slots: int = 8) -> None:
        self._programs = programs
        made = functools.partial(_loop, programs)
        self.loop = jax.jit(made, donate_argnames=("state", "ring")) if compiled is None else compiled.loop
        bytes_of_unit = sum(field.nbytes for field in programs.batch(0).values())
        self.most_units = max(1, min(MOST_UNITS, MOST_BYTES // max(1, bytes_of_unit)))
        self._state: Any = None
        self._ring: Any = None
        self._num_slots = num_slots
        self._slots: dict[int, int] = {}
        self._unchecked: list[tuple[jax.Array, list[tuple[int, ...]]]] = []

    def continue_from(self, state: TrainState) -> None:
        """Have the next block begin with `state`, which stays as it is."""
        self._state = jax.tree.map(jnp.copy, state)

    def load(self, version: int, state: TrainState) -> None:
        """Put the parameters of `state` into the ring as `version`."""
        parameters = Parameters(state.params, state.model_state)
        if self._ring is None:
            self._ring = jax.tree.map(lambda leaf: jnp.zeros((self._num_slots, *leaf.shape), leaf.dtype), parameters)
        taken = {UNREAD, *self._slots.values()}
        self._slots[version] = slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
        self._grow(slot + 1)
        self._ring = _written(self._ring, parameters, slot)

    def run(self, records: Sequence[Record], stops: Sequence[int], kept: Collection[int]) -> list[TrainState]:
        """Compute updates; returns the states after as many of them as `stops` says, in ascending order.

        Args:
          records: the updates, at least one.
          stops: numbers of updates.
          kept: versions that later gradients may be computed on.
        """
        read, made = [record.versions for record in records], [record.made for record in records]
        layout = laid_out(read, made, kept, self._slots)
        self._slots = layout.slots
        self._grow(max(layout.writes) + 1)
        units = [unit for record in records for unit in record.units]
        size = max(self.most_units, 1 << (len(units) - 1).bit_length())
        firsts = np.cumsum([0, *(len(record.units) for record in records)])
        columns = {
            "first": _filled(firsts, np.int32, size + 1),
            "write": _filled(layout.writes, np.int32, size),
            "num_units": _filled([record.num_units for record in records], np.int32, size),
            "factor": _filled([record.factor for record in records], np.float32, size),
            "blend": _filled([record.blend for record in records], np.float32, size),
            "read": _filled(layout.reads, np.int32, size),
            "unit": _filled(units, np.int32, size),
            "weight": _filled([weight for record in records for weight in record.weights], np.float32, size),
        }
        work = jax.device_put((columns, self._batches(units, size)))
        # The host stays one block ahead of the device: the examples of more blocks would fill the memory.
        jax.block_until_ready(self._state)
        fixed = {"work": work, "key": unrolled(self._programs.keys[0]), "frozen": self._programs.frozen.at(0)}
        states, start = [], 0
        for stop in sorted({*stops, len(records)}):
            limits = np.int32(start), np.int32(stop)
            self._state, self._ring, unfit = self.loop(state=self._state, ring=self._ring, limits=limits, **fixed)
            self._unchecked.append((unfit, [record.units for record in records]))
            if stop in stops:
                states.append(jax.tree.map(jnp.copy, self._state))
            start = stop
        return states

    def unfit(self) -> tuple[int, ...]:
        """Return the units of the first update that was not finite; () where all were. Waits for what is computed."""
        for number, units in self._unchecked:
            if int(number) >= 0:
                return units[int(number)]
        self._unchecked = []
        return ()

    def _batches(self, units: Sequence[int], size: int) -> dict[str, np.ndarray]:
        """Return the examples of units, each field with the units on its first axis.

        Raises:
          TaskError: the units' shapes differ.
        """
        rows = [self._programs.batch(unit) for unit in units]
        found = {name: np.empty((size, *field.shape), field.dtype) for name, field in rows[0].items()}
        for place, row in enumerate(rows):
            for name, field in row.items():
                if field.shape != found[name].shape[1:]:
                    raise TaskError(
                        f"field {name!r} has the shape {field.shape} in unit {units[place]}, {found[name].shape[1:]} "
                        f"in unit {units[0]}: compiled blocks need units of one shape; use gradients=real"
                    )
                found[name][place] = field
        return found

    def _grow(self, num_slots: int) -> None:
        if num_slots > self._num_slots:
            more = 1 << (num_slots - 1).bit_length()
            wider = ((0, more - self._num_slots),)
            self._ring = jax.tree.map(lambda leaf: jnp.pad(leaf, (*wider, *((0, 0),) * (leaf.ndim - 1))), self._ring)
            self._num_slots = more


def _filled(values: Any, dtype: Any, size: int) -> np.ndarray:
    column = np.zeros(size, dtype)
    column[: len(values)] = values
    return column


@functools.partial(jax.jit, donate_argnums=0)
def _written(ring: Parameters, parameters: Parameters, slot: jax.Array) -> Parameters:
    """Return the ring with `parameters` in a slot."""
    return jax.tree.map(lambda leaf, value: lax.dynamic_update_index_in_dim(leaf, value, slot, 0), ring, parameters)


def _loop(
    programs: Programs, state: TrainState, ring: Parameters, work: Any, limits: Any, key: Any, frozen: Any
) -> tuple[TrainState, Parameters, jax.Array]:
    """Make the updates from limits[0] to limits[1]; returns also the first that was not finite, -1 for none. Traced."""
    columns, batches = work
    lowest = np.iinfo(np.int32).min  # as `Programs.zero`, which would be a constant as large as the model
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), programs.contribution["floats"])
    nothing = {
        "floats": zeros,
        "ints": jax.tree.map(lambda leaf: jnp.full(leaf.shape, lowest, leaf.dtype), programs.contribution["ints"]),
    }

    def row(tree: Any, place: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, place, keepdims=False), tree)

    def add(place: jax.Array, total: Any, ring: Parameters) -> Any:
        one = row({name: columns[name] for name in ("read", "unit", "weight")}, place)
        made = programs.unit_gradient(row(ring, one["read"]), row(batches, place), one["unit"], key, frozen)
        grads = jax.tree.map(lambda g: g * one["weight"], made["floats"]["grads"])
        return programs.total((total, {**made, "floats": {**made["floats"], "grads": grads}}))

    def update(number: jax.Array, carried: Any) -> Any:
        state, ring, unfit = carried
        first, last = columns["first"][number], columns["first"][number + 1]
        total = lax.fori_loop(first, last, lambda place, total: add(place, total, ring), nothing)
        finite = jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(total["floats"])]).all()
        one = row({name: columns[name] for name in ("write", "num_units", "factor", "blend")}, number)
        state = programs.updated(state, total, one["num_units"], one["factor"], one["blend"])
        ring = _written(ring, Parameters(state.params, state.model_state), one["write"])
        return state, ring, jnp.where((unfit < 0) & ~finite, number, unfit)

    return lax.fori_loop(limits[0], limits[1], update, (state, ring, jnp.int32(-1)))
