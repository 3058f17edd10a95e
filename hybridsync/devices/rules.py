"""Where the leaves of a model lie on a worker's mesh: by annotation, by path, or by size. Pure.

>>> rules = (("embed", ("fsdp", "context")), ("embed", "fsdp"), ("mlp", "tensor"), ("vocab", "tensor"))
>>> resolve(("embed", "mlp"), rules, {"fsdp": 2, "tensor": 2})
(('fsdp',), ('tensor',))
>>> resolve(("mlp", "vocab"), rules, {"fsdp": 2, "tensor": 2})  # one axis divides one dimension
(('tensor',), ())
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping

from hybridsync.config.device_config import DeviceConfig
from hybridsync.core.errors import ConfigError, TaskError

Names = tuple[str | tuple[str, ...] | None, ...]
"""What a model calls the dimensions of a leaf; a tuple names axes of the mesh."""
Place = tuple[tuple[str, ...], ...]
"""The mesh axes that divide each dimension of a leaf; () for a leaf that every device has whole."""
WHOLE: Place = ()
LEAST_SIZE = 1 << 10
"""Numbers in the smallest leaf that is divided by its size: messages for smaller ones cost more than their memory."""


def resolve(names: Names, rules: Iterable[tuple[str, object]], axes: Mapping[str, int]) -> Place | None:
    """Return the place of a leaf with named dimensions; None where no name stands for an axis.

    The rules hold as Flax and MaxText read them on a mesh that has all axes that they name: the first rule that fits
    holds for a dimension, also one whose axes this mesh lacks. A name without a rule may be an axis itself.
    """
    places = [name if isinstance(name, tuple) else None for name in names]
    ruled = set()
    for name, to in rules:
        ruled.add(name)
        if name not in names:
            continue
        found = _axes_of(to)
        used = {axis for place in places if place for axis in place}
        position = names.index(name)
        if places[position] is None and used.isdisjoint(found):
            places[position] = found
    used = {axis for place in places if place for axis in place}
    for position, name in enumerate(names):
        if isinstance(name, str) and name in axes and name not in ruled and name not in used:
            places[position] = (name,)
    if all(place is None for place in places):
        return None
    return tuple(tuple(axis for axis in place or () if axis in axes) for place in places)


def on_mesh(rules: Iterable[tuple[str, object]], axes: Iterable[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return rules without the axes that a mesh lacks, for a model that asks Flax for them while it is traced."""
    known = set(axes)
    return tuple((name, tuple(axis for axis in _axes_of(to) if axis in known)) for name, to in rules)


def _axes_of(to: object) -> tuple[str, ...]:
    # What a model's annotation holds is checked by Flax, not by types.
    return (to,) if isinstance(to, str) else tuple(to or ())  # type: ignore[call-overload]


class Places:
    """Finds the place of each leaf of a run's trees by its path and its shape.

    Leaves that belong to a parameter, such as its gradient and its momentum, have paths that end with the parameter's,
    and its shape: they lie where it lies.

    Args:
      config: rules and paths.
      axes: mesh of a worker.
      shapes: path of each parameter -> its shape.
      names: path of each annotated leaf of the model -> what it calls the dimensions.

    Attributes:
      rules: rules for annotations, on this mesh.
      whole: for each parameter that an axis does not divide: its path, the dimension and the axes' size.

    Raises:
      ConfigError: a rule of `devices.paths` fits no parameter.
      TaskError: an annotation does not fit its leaf.
    """

    def __init__(
        self,
        config: DeviceConfig,
        axes: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...]],
        names: Mapping[str, Names],
    ) -> None:
        self._axes, self._paths, self.rules = axes, config.paths, on_mesh(config.rules, axes)
        self._annotated: dict[str, Place] = {}
        self.whole: dict[str, str] = {}
        for path, named in names.items():
            if path in shapes and len(named) != len(shapes[path]):
                raise TaskError(
                    f"parameter {path} has the shape {list(shapes[path])} and the axes {list(named)}: annotate each "
                    "dimension, with None for one that is not divided"
                )
            place = resolve(named, config.rules, axes)
            if place is not None:
                self._annotated[path] = place
        self._check_paths(shapes)
        for path, shape in shapes.items():
            if (uneven := self._uneven(self._ruled(path, shape), shape)) is not None:
                self.whole[path] = uneven

    def place(self, path: str, shape: tuple[int, ...]) -> Place:
        """Return the place of a leaf: what does not divide is whole on every device."""
        ruled = self._ruled(path, shape)
        if ruled is None:
            return self._by_size(shape)
        return WHOLE if self._uneven(ruled, shape) else ruled

    def _ruled(self, path: str, shape: tuple[int, ...]) -> Place | None:
        parts = path.split("/")
        for start in range(len(parts)):
            place = self._annotated.get("/".join(parts[start:]))
            if place is not None and len(place) == len(shape):
                return place
        for ending, entries in self._paths:
            if ends(path, ending) and len(entries) == len(shape):
                return tuple(map(_axes_of, entries))
        return None

    def _by_size(self, shape: tuple[int, ...]) -> Place:
        parts = self._axes.get("fsdp", 1)
        if parts > 1 and math.prod(shape) >= LEAST_SIZE:
            for dimension in sorted(range(len(shape)), key=lambda d: -shape[d]):
                if shape[dimension] % parts == 0:
                    return tuple(("fsdp",) if d == dimension else () for d in range(len(shape)))
        return WHOLE

    def _uneven(self, place: Place | None, shape: tuple[int, ...]) -> str | None:
        """Say which dimension of a leaf its axes do not divide; None where they divide all."""
        for dimension, (axes, length) in enumerate(zip(place or (), shape, strict=False)):
            parts = math.prod(self._axes[axis] for axis in axes)
            if length % parts:
                return f"dimension {dimension} of {list(shape)} does not divide into {parts} parts ({', '.join(axes)})"
        return None

    def _check_paths(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        for ending, entries in self._paths:
            found = {path: shape for path, shape in shapes.items() if ends(path, ending)}
            if not found:
                near = difflib.get_close_matches(ending, shapes, n=1, cutoff=0.0)
                raise ConfigError(
                    f"devices.paths: no parameter's path ends with {ending!r}; the nearest is {near[0]!r}, correct it"
                )
            if all(len(shape) != len(entries) for shape in found.values()):
                path, shape = next(iter(found.items()))
                raise ConfigError(
                    f"devices.paths: the rule of {ending!r} is for {len(entries)} dimensions, parameter {path} has the "
                    f"shape {list(shape)}; give one entry for each"
                )


def ends(path: str, ending: str) -> bool:
    """Return whether a leaf's path ends with the parts of another one."""
    return path == ending or path.endswith(f"/{ending}")
