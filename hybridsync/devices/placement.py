"""The devices of the workers of one process, and the only way onto them.

Each worker has a *seat*: a device, or a mesh of its own. A replica that all workers share lies on the *joint* mesh, the
seats with one more axis in front, so that each seat has all of it. A worker sees its part without a copy.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from flax import linen
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from hybridsync.config.device_config import BATCH_AXES, WORKER_AXIS
from hybridsync.core.errors import ConfigError
from hybridsync.devices.mesh import THREADS, Division
from hybridsync.devices.rules import Places

Rules = tuple[tuple[str, tuple[str, ...]], ...]
COPIED_BYTES = 1 << 20
JOINT = -1
"""In place of a seat's number: the joint mesh."""
# A call with three numbers of NumPy took 430 us of processor time on eight CPU devices, with three arrays there 97.
MOST_NUMBERS = 64
"""How many numbers lie on the joint mesh for the programs that take them."""


class Placement(Protocol):
    """Says where arrays lie. Trees that are there already are returned as they are."""

    @property
    def kind(self) -> str:
        """How workers of this process sum (see `Division.kind`)."""
        ...

    @property
    def axes(self) -> Mapping[str, int]:
        """Mesh of each seat; {} for one device."""
        ...

    @property
    def num_seats(self) -> int:
        """The number of seats; worker k has seat k modulo this number."""
        ...

    def traced(self, function: Callable) -> Callable:
        """Return `function` such that a model that is traced in it finds the mesh of a seat, and the rules."""
        ...

    def jit(self, function: Callable, **options: Any) -> Callable:
        """Return `function` compiled: its results lie where the first array among its arguments does.

        Args:
          function: a function of trees; keyword arguments are static.
          **options: further arguments of `jax.jit`.
        """
        ...

    def placed(self, program: Callable) -> Callable:
        """Return a compiled program such that its results lie where its arguments do; the same one for every call."""
        ...

    def put(self, tree: Any) -> Any:
        """Return a state that has just arrived, as arrays that programs may donate, where a replica lies."""
        ...

    def put_at_server(self, tree: Any) -> Any:
        """Return such a state where the server among the threads of this process has its own."""
        ...

    def at_replica(self, tree: Any) -> Any:
        """Return a tree where the replica of this process lies."""
        ...

    def at_worker(self, tree: Any, worker: int) -> Any:
        """Return a tree at a worker's seat."""
        ...

    def at_server(self, tree: Any) -> Any:
        """Return a tree where that server has its state."""
        ...

    def views(self, tree: Any) -> Sequence[Any]:
        """Return what each seat sees of a tree of the replica."""
        ...

    def batch(self, batch: Mapping[str, np.ndarray], worker: int) -> Any:
        """Return a unit's examples at a worker's seat, divided over the axes for examples."""
        ...

    def constant(self, kind: Callable[[Any], np.generic], value: float) -> Any:
        """Return a number that programs take again and again."""
        ...


class SharedDevice:
    """All workers share JAX's default device: nothing is moved, and programs take arrays of the host as they are.

    Args:
      axes: names of the axes that a mesh has elsewhere in the run, and a model may name: here they have size 1.
      rules: rules for the names of a model's dimensions.
    """

    num_seats, kind = 1, THREADS

    def __init__(self, axes: Sequence[str] = (), rules: Rules = ()) -> None:
        self.axes: Mapping[str, int] = dict.fromkeys(axes, 1)
        self._rules = rules

    def traced(self, function: Callable) -> Callable:
        if not self.axes:
            return function
        sizes = tuple(self.axes.values())
        return _within(function, AbstractMesh(sizes, (*self.axes,), axis_types=_auto(sizes)), self._rules)

    def jit(self, function: Callable, **options: Any) -> Callable:
        return jax.jit(self.traced(function), **options)

    def placed(self, program: Callable) -> Callable:
        return program

    def put(self, tree: Any) -> Any:
        return jax.block_until_ready(jax.device_put(jax.tree.map(_owned, tree)))

    def put_at_server(self, tree: Any) -> Any:
        return self.put(tree)

    def at_replica(self, tree: Any) -> Any:
        return tree

    def at_worker(self, tree: Any, worker: int) -> Any:
        return tree

    def at_server(self, tree: Any) -> Any:
        return tree

    def views(self, tree: Any) -> Sequence[Any]:
        return (tree,)

    def batch(self, batch: Mapping[str, np.ndarray], worker: int) -> Any:
        return batch

    def constant(self, kind: Callable[[Any], np.generic], value: float) -> Any:
        return _array_of(kind, value)


@functools.lru_cache(maxsize=1024)
def _array_of(kind: Callable[[Any], np.generic], value: float) -> jax.Array:
    """Return a number as an array: to make one of NumPy's takes JAX longer than many an update takes a leaf."""
    return jax.device_put(kind(value))


SHARED_DEVICE = SharedDevice()


def _owned(leaf: Any) -> Any:
    """Return a leaf of the host in memory of its own, or of JAX where it is large; an array of JAX as it is.

    An array that aliases memory of the host cannot be donated: its first update would copy it, and all of that memory
    would stay until then. jax 0.10.2 aliases what is aligned also where `may_alias` is False. A copy of its own arrays
    is a program of each shape, which small leaves are not worth.
    """
    if isinstance(leaf, jax.Array):
        return leaf
    return jax.device_put(leaf).copy() if leaf.nbytes >= COPIED_BYTES else np.array(leaf)


def let_go_of_arguments() -> None:
    """Have JAX let go of memory of the host that programs have read: it waits for its next call, or a collection."""
    gc.collect(0)


class DevicePlacement:
    """Gives each worker a seat among several devices.

    Args:
      devices: devices of this process.
      division: how they are divided into seats.
      places: places of the leaves on a seat's mesh.

    Attributes:
      joint: mesh of all seats; where there is one seat it is that.
    """

    def __init__(self, devices: Sequence[Any], division: Division, places: Places) -> None:
        inner = division.axes or {"device": 1}
        grid = np.array(devices[: division.seats * division.size]).reshape(division.seats, *inner.values())
        self.num_seats, self.kind, self.axes = division.seats, division.kind, division.axes
        self._places = places
        self._seats = [_mesh(part, tuple(inner)) for part in grid]
        self.joint = self._seats[0] if division.seats == 1 else _mesh(grid, (WORKER_AXIS, *inner))
        self._sets = {JOINT: set(self.joint.devices.flat)}
        self._sets |= {seat: set(mesh.devices.flat) for seat, mesh in enumerate(self._seats)}
        self._batch_axes = tuple(axis for axis in BATCH_AXES if axis in division.axes)
        self._num_parts = int(np.prod([division.axes[axis] for axis in self._batch_axes]))
        self._is_single = division.size == 1
        self._cached: dict[Any, list[Any]] = {}
        self._programs: dict[Callable, Callable] = {}
        self._numbers: dict[tuple[Any, Any], jax.Array] = {}
        # jax 0.10.2 lets several threads fill the list of an array's shards at the same time, and finds too many or
        # too few of them then. One at a time, before others see the array.
        self._splitting = threading.Lock()

    def traced(self, function: Callable) -> Callable:
        return self.traced_at(0, function)

    def traced_at(self, where: int, function: Callable) -> Callable:
        """Return `function` such that a model in it finds the mesh of that place, and the rules."""
        return _within(function, self.mesh(where).abstract_mesh, self._places.rules)

    def jit(self, function: Callable, **options: Any) -> Callable:
        return _Placed(self, function, options)

    def placed(self, program: Callable) -> Callable:
        return self._programs.setdefault(program, self.jit(program))

    def put(self, tree: Any) -> Any:
        return self._moved(tree, JOINT)

    def put_at_server(self, tree: Any) -> Any:
        return self._moved(tree, 0)

    def at_replica(self, tree: Any) -> Any:
        arrays = [leaf for leaf in jax.tree.leaves(tree) if not isinstance(leaf, np.generic)]
        return tree if self._lie(arrays, JOINT) else self._moved(tree, JOINT)  # a program takes the numbers there

    def at_worker(self, tree: Any, worker: int) -> Any:
        seat, leaves = worker % self.num_seats, jax.tree.leaves(tree)
        if self._lie(leaves, seat):
            return tree
        if self.num_seats > 1 and self.where(leaves) == JOINT:
            return self.views(tree)[seat]
        return self._moved(tree, seat)

    def at_server(self, tree: Any) -> Any:
        return self._moved(tree, 0)

    def views(self, tree: Any) -> Sequence[Any]:
        if self.num_seats == 1:
            return (tree,)
        leaves, treedef = jax.tree.flatten(tree)
        with self._splitting:
            parts = [{shard.device: shard.data for shard in leaf.addressable_shards} for leaf in leaves]
        if self._is_single:
            return [treedef.unflatten([part[device] for part in parts]) for device in self.joint.devices.flat]
        seen = []
        for seat, mesh in enumerate(self._seats):
            devices = [*mesh.devices.flat]
            seen.append(
                treedef.unflatten(
                    jax.make_array_from_single_device_arrays(leaf.shape, sharding, [part[each] for each in devices])
                    for leaf, part, sharding in zip(leaves, parts, self.shardings(tree, seat), strict=True)
                )
            )
        return seen

    def batch(self, batch: Mapping[str, np.ndarray], worker: int) -> Any:
        if self._is_single:  # the program takes it there, with less work for the interpreter
            return batch
        seat = worker % self.num_seats

        def sharding(examples: np.ndarray) -> Any:
            divides = self._batch_axes and examples.ndim and examples.shape[0] % self._num_parts == 0
            return self._sharding(seat, PartitionSpec(self._batch_axes) if divides else PartitionSpec())

        return jax.device_put(dict(batch), {name: sharding(examples) for name, examples in batch.items()})

    def constant(self, kind: Callable[[Any], np.generic], value: float) -> Any:
        return kind(value)  # an array of one device would be copied to the others with each call

    def on_each_seat(self, function: Callable) -> Callable:
        """Return a program that computes a function on each seat of one device, in one call, and each for itself.

        Args:
          function: (trees that all seats have, trees side by side along the first dimension) -> trees side by side.
        """
        shared, own = PartitionSpec(), PartitionSpec(WORKER_AXIS)
        mapped = jax.shard_map(function, mesh=self.joint, in_specs=(shared, own), out_specs=own, check_vma=False)
        return jax.jit(mapped)

    def divided(self, arrays: Sequence[np.ndarray]) -> jax.Array:
        """Return arrays of one shape, one for each seat of one device, side by side along the first dimension."""
        (size, *rest), own = arrays[0].shape, NamedSharding(self.joint, PartitionSpec(WORKER_AXIS))

        def part(index: Any) -> np.ndarray:
            return arrays[(index[0].start or 0) // size]

        return jax.make_array_from_callback((len(arrays) * size, *rest), own, part)

    def side_by_side(self, tree: Any) -> list[NamedSharding]:
        """Return how leaves lie that all seats have brought, side by side along the first dimension."""
        shardings = []
        for sharding, leaf in zip(self.shardings(tree, JOINT), jax.tree.leaves(tree), strict=True):
            first, *rest = (*sharding.spec, *[None] * (max(1, leaf.ndim) - len(sharding.spec)))
            along = (WORKER_AXIS, *([first] if isinstance(first, str) else first or ()))
            shardings.append(NamedSharding(self.joint, PartitionSpec(along, *rest)))
        return shardings

    def joined(self, columns: Sequence[Sequence[jax.Array]], shardings: Sequence[NamedSharding]) -> list[jax.Array]:
        """Return one array for each leaf of all seats, without a copy.

        Args:
          columns: for each seat the leaves of one tree, each of one dimension or more.
          shardings: what `side_by_side` says of them.
        """
        joint = []
        with self._splitting:
            for leaves, sharding in zip(zip(*columns, strict=True), shardings, strict=True):
                shape = (self.num_seats * leaves[0].shape[0], *leaves[0].shape[1:])
                shards = [*leaves] if self._is_single else self._in_order(leaves)
                joint.append(jax.make_array_from_single_device_arrays(shape, sharding, shards))
        return joint

    def _in_order(self, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        """Return the parts of what each seat has brought, in the order of the devices."""
        by_device = {shard.device: shard.data for leaf in leaves for shard in leaf.addressable_shards}
        return [by_device[device] for device in self.joint.devices.flat]

    def where(self, args: Any) -> int | None:
        """Return where the first array among arguments of a program lies; None for memory of the host or elsewhere."""
        for leaf in jax.tree.leaves(args):
            if isinstance(leaf, jax.Array):
                there = leaf.sharding.device_set
                return next((at for at, devices in self._sets.items() if devices == there), None)
        return None

    def _lie(self, leaves: Sequence[Any], where: int) -> bool:
        there = self._sets[where]
        return all(isinstance(leaf, jax.Array) and leaf.sharding.device_set == there for leaf in leaves)

    def numbers(self, leaves: Sequence[Any]) -> list[Any]:
        """Return leaves with arrays on the joint mesh in place of numbers of the host.

        A program puts a number on each device, which takes longer than all else in its call: so those of the last steps
        are kept.
        """
        return [self._number(leaf) if isinstance(leaf, np.generic) else leaf for leaf in leaves]

    def _number(self, value: np.generic) -> jax.Array:
        key = value.dtype, value.item()
        if (array := self._numbers.get(key)) is None:
            if len(self._numbers) >= MOST_NUMBERS:
                self._numbers.clear()
            array = self._numbers[key] = jax.device_put(value, self._sharding(JOINT, PartitionSpec()))
        return array

    def mesh(self, where: int) -> Mesh:
        """Return the mesh of a seat, or the joint one."""
        return self.joint if where == JOINT else self._seats[where]

    def shardings(self, tree: Any, where: int) -> list[Any]:
        """Return the sharding of each leaf of a tree of arrays or shapes."""
        leaves, treedef = jax.tree.flatten(tree)
        key = where, treedef, tuple(map(np.shape, leaves))
        if key not in self._cached:
            self._cached[key] = [
                self._sharding(where, _spec(self._places.place(_path(keys), np.shape(leaf))))
                for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)
            ]
        return self._cached[key]

    def _sharding(self, where: int, spec: PartitionSpec) -> Any:
        mesh = self.mesh(where)
        return SingleDeviceSharding(mesh.devices.flat[0]) if mesh.size == 1 else NamedSharding(mesh, spec)

    def _moved(self, tree: Any, where: int) -> Any:
        leaves, treedef = jax.tree.flatten(tree)
        if self._lie(leaves, where):
            return tree
        shardings = self.shardings(tree, where)
        # Memory of the host is lent and filled again: a copy, before this returns. For devices of a CPU, jax 0.10.2
        # uses aligned memory in place whatever `may_alias` says, so the copy is made here.
        alias = all(isinstance(leaf, jax.Array) for leaf in leaves)
        if not alias and self.joint.devices.flat[0].platform == "cpu":
            leaves = [leaf if isinstance(leaf, jax.Array) else np.array(leaf) for leaf in leaves]
        with self._splitting:  # which a copy between seats does, too
            return treedef.unflatten(jax.device_put(leaves, shardings, may_alias=alias))


def local_devices(platform: str) -> list[Any]:
    """Return the devices of this process on a platform; "auto" is JAX's default one.

    Raises:
      ConfigError: the platform has none here.
    """
    try:
        return jax.local_devices(backend=None if platform == "auto" else platform)
    except RuntimeError as error:
        raise ConfigError(
            f"devices.platform is {platform!r}, and JAX has no such devices here: {error}; name another, or 'auto'"
        ) from None


class _Placed:
    """A program compiled for each place: its results lie where the first array among its arguments does."""

    def __init__(self, placement: DevicePlacement, function: Callable, options: dict[str, Any]) -> None:
        self._placement, self._function, self._options = placement, function, options
        self._compiled: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **static: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        where = self._placement.where(leaves)
        key = where, structure, *static.items()
        program = self._compiled.get(key)
        if program is None:
            with self._lock:
                program = self._compiled.setdefault(key, self._compile(where, args, static))
        if where == JOINT and self._placement.num_seats > 1:
            args = structure.unflatten(self._placement.numbers(leaves))
        return program(*args, **static)

    def eval_shape(self, *args: Any) -> Any:
        """Return the shapes of the results for those of arguments, as a seat has them."""
        return jax.eval_shape(self._placement.traced(self._function), *args)

    def lower(self, *args: Any) -> Any:
        """Return the program that these arguments are computed with, lowered for them."""
        leaves, structure = jax.tree.flatten(args)
        return self._compiled[self._placement.where(leaves), structure].lower(*args)

    def _compile(self, where: int | None, args: Any, static: dict[str, Any]) -> Any:
        if where is None:
            return jax.jit(self._function, **self._options)
        function = self._placement.traced_at(where, self._function)
        shapes = jax.eval_shape(functools.partial(function, **static), *args)
        results = jax.tree.structure(shapes).unflatten(self._placement.shardings(shapes, where))
        return jax.jit(function, out_shardings=results, **self._options)


def _within(function: Callable, mesh: AbstractMesh, rules: Rules) -> Callable:
    """Return a function that is traced where the model's own sharding constraints find the mesh and the rules."""

    @functools.wraps(function)
    def traced(*args: Any, **static: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh), linen.logical_axis_rules(rules):
            return function(*args, **static)

    return traced


def _mesh(devices: np.ndarray, axes: tuple[str, ...]) -> Mesh:
    # Auto: with explicit axes a model's own `x @ y` raises
    return Mesh(devices, axes, axis_types=_auto(axes))


def _auto(axes: Sequence[Any]) -> tuple[AxisType, ...]:
    return (AxisType.Auto,) * len(axes)


def _spec(place: Sequence[tuple[str, ...]]) -> PartitionSpec:
    return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in place))


def _path(keys: Any) -> str:
    return jax.tree_util.keystr(keys, simple=True, separator="/")
