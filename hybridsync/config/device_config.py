"""Which devices the workers of a run compute on, and where the leaves of a model lie on them.

>>> DeviceConfig(mesh={"fsdp": 2, "tensor": -1}, paths=(("qkv/kernel", ("fsdp", "model")),))
Traceback (most recent call last):
...
hybridsync.core.errors.ConfigError: devices.paths: the rule of 'qkv/kernel' names the axis 'model', the mesh has fsdp,
tensor; name one of these, or None for a dimension that is not divided
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from hybridsync.config.field_checks import check_types, require
from hybridsync.config.keywords import checked, did_you_mean
from hybridsync.config.typing import as_tuples
from hybridsync.core.errors import ConfigError

BATCH_AXES = ("replica", "data", "fsdp")
"""Axes over which the examples of a unit are divided."""
WORKER_AXIS = "worker"
"""Axis of the mesh that joins the workers of one process; a worker's own mesh may not have it."""
COMMON_AXES = frozenset(  # words of one text: in quotes of its own each would take a line
    "data replica diloco stage expert model fsdp fsdp_transpose autoregressive context context_autoregressive sequence "  # noqa: SIM905
    "tensor tensor_transpose tensor_sequence".split()
)
"""Axes that tables of rules for many meshes name, as MaxText's do: one that this mesh lacks divides nothing."""


@checked
@dataclass(frozen=True)
class DeviceConfig:
    """Says which devices each worker has, and how a model is divided among them.

    Args:
        platform: "auto" (JAX's default in one process, cpu in worker processes), "cpu", "cuda" or "tpu".
        per_worker: devices of each worker; 0 takes what the mesh needs, or an equal share of all for a -1 in it.
        mesh: axis -> size of each worker's own mesh, in the order of its axes; one size may be -1, for the rest. With
            several devices a worker and no mesh it is {"fsdp": -1}.
        rules: (logical axis, mesh axes) for models with annotations, as MaxText's `logical_axis_rules`: names may
            repeat, the first rule that fits holds, and no mesh axis is used twice for one leaf. Mesh axes are a name, a
            tuple of names, or None.
        paths: (end of a parameter's path, one entry for each of its dimensions) for leaves without annotations. Leaves
            without either are divided over `fsdp` along their largest dimension that it divides.
        memory_fraction: share of an accelerator's memory that each worker process may take; None leaves it to JAX.
        collective: how workers of one process sum: "threads", on one device; "xla", jitted over the devices of all;
            "auto" takes xla where each worker has devices of its own.
        micro_steps: parts in which a worker computes the gradient of a unit, one after the other, for less memory.

    Raises:
        ConfigError: a value is out of range, or a rule names an axis that the mesh lacks.
    """

    platform: Literal["auto", "cpu", "cuda", "tpu"] = "auto"
    per_worker: int = 0
    mesh: dict[str, int] = field(default_factory=dict)
    rules: tuple[tuple[str, Any], ...] = ()
    paths: tuple[tuple[str, Any], ...] = ()
    memory_fraction: float | None = None
    collective: Literal["auto", "threads", "xla"] = "auto"
    micro_steps: int = 1

    def __post_init__(self) -> None:
        for name in ("rules", "paths"):  # lists, as YAML and JSON have them
            object.__setattr__(self, name, as_tuples(getattr(self, name)))
        check_types(self, "devices.")
        require(self.per_worker >= 0, "devices.per_worker", "0 or more", self.per_worker, "0 takes what the mesh needs")
        require(self.micro_steps >= 1, "devices.micro_steps", "1 or more", self.micro_steps, "1 divides nothing")
        fraction = self.memory_fraction
        if fraction is not None:
            require(0 < fraction <= 1, "devices.memory_fraction", "in (0, 1] or none", fraction, "give a share")
        self._check_mesh()
        self._check_rules()

    @property
    def axes(self) -> dict[str, int]:
        """The mesh of each worker, with a -1 as it stands; {} for one device."""
        return dict(self.mesh) or ({"fsdp": -1} if self.per_worker > 1 else {})

    @property
    def size(self) -> int:
        """The number of devices of each worker; 0 where it is a share of those that there are."""
        if self.per_worker or -1 in self.mesh.values():
            return self.per_worker
        return math.prod(self.mesh.values())

    def sizes(self, size: int) -> dict[str, int]:
        """Return the mesh of a worker with `size` devices.

        Raises:
            ConfigError: the mesh does not fit them.
        """
        fixed = math.prod(length for length in self.axes.values() if length != -1)
        rest = size // fixed
        if rest * fixed != size or (rest != 1 and -1 not in self.axes.values()):
            raise ConfigError(
                f"devices.mesh {self.axes} does not fit {size} devices a worker: its sizes multiply to {fixed}; change "
                "them, devices.per_worker or the number of workers"
            )
        return {axis: rest if length == -1 else length for axis, length in self.axes.items()}

    def check_unit(self, unit_size: int, sizes: dict[str, int]) -> None:
        """Check that a unit can be divided over the axes for examples of a mesh, and into its micro steps.

        Raises:
            ConfigError: the unit has another number of examples.
        """
        shares = math.prod(sizes.get(axis, 1) for axis in BATCH_AXES)
        if unit_size % shares:
            axes = ", ".join(f"{axis}={sizes[axis]}" for axis in BATCH_AXES if sizes.get(axis, 1) > 1)
            raise ConfigError(
                f"unit_size {unit_size} does not divide into {shares} equal parts, one for each device along {axes} of "
                "devices.mesh; change one of both"
            )
        if unit_size // shares % self.micro_steps:
            each = f", {unit_size // shares} for each device along the mesh's axes for examples," if shares > 1 else ""
            raise ConfigError(
                f"unit_size {unit_size}{each} does not divide into devices.micro_steps={self.micro_steps} equal parts; "
                "change one of both"
            )

    def _check_mesh(self) -> None:
        for axis, length in self.mesh.items():
            if not (isinstance(axis, str) and axis.isidentifier()) or axis == WORKER_AXIS:
                raise ConfigError(f"devices.mesh has an axis {axis!r}; use a name such as 'fsdp', but not 'worker'")
            if type(length) is not int or (length < 1 and length != -1):
                raise ConfigError(
                    f"devices.mesh: axis {axis!r} has the size {length!r}; use 1 or more, or -1 for the rest of a "
                    "worker's devices"
                )
        if list(self.mesh.values()).count(-1) > 1:
            raise ConfigError(f"devices.mesh {self.mesh} has -1 more than once; one axis alone can take the rest")
        if self.per_worker:
            self.sizes(self.per_worker)

    def _check_rules(self) -> None:
        axes = self.axes
        for name, to in self.rules:
            for axis in _names("rules", name, (to,)):
                if axis not in axes and axis not in COMMON_AXES:
                    known = sorted({*axes, *COMMON_AXES})
                    raise ConfigError(
                        f"devices.rules: the rule of {name!r} names the axis {axis!r}, the mesh has "
                        f"{', '.join(axes) or 'no axes'}; {did_you_mean(axis, known)}"
                    )
        for path, to in self.paths:
            if not isinstance(to, tuple):
                raise ConfigError(
                    f"devices.paths: the rule of {path!r} is {to!r}; give a tuple with an axis, several or None for "
                    "each dimension, such as ('fsdp', None)"
                )
            named = [*_names("paths", path, to)]
            for axis in named:
                if axis not in axes:
                    raise ConfigError(
                        f"devices.paths: the rule of {path!r} names the axis {axis!r}, the mesh has "
                        f"{', '.join(axes) or 'no axes'}; name one of these, or None for a dimension that is not "
                        "divided"
                    )
            if len(set(named)) < len(named):
                raise ConfigError(f"devices.paths: the rule of {path!r} uses an axis twice: {to!r}; use each once")


def _names(table: str, name: str, entries: tuple[Any, ...]) -> Iterator[str]:
    """Yield the mesh axes that the entries of a rule name."""
    for entry in entries:
        for axis in entry if isinstance(entry, tuple) else (entry,):
            if isinstance(axis, str):
                yield axis
            elif axis is not None or isinstance(entry, tuple):
                raise ConfigError(
                    f"devices.{table}: the rule of {name!r} has {axis!r} for an axis; use the name of an axis of the "
                    "mesh, a tuple of names, or None"
                )
