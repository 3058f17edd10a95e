"""Divides the devices of a process among its workers. Pure.

>>> divide(DeviceConfig(mesh={"fsdp": -1, "tensor": 2}), num_workers=2, num_devices=8)
Division(seats=2, axes={'fsdp': 2, 'tensor': 2}, kind='xla')
>>> divide(DeviceConfig(), num_workers=6, num_devices=4)  # workers 0 and 4 share a device
Division(seats=4, axes={}, kind='threads')
>>> divide(DeviceConfig(mesh={"fsdp": 4}), num_workers=2, num_devices=4)
Traceback (most recent call last):
...
hybridsync.core.errors.ConfigError: 2 workers with 4 devices each (devices.mesh {'fsdp': 4}) need 8 devices, there are
4; lower the number of workers or the sizes of the mesh
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hybridsync.config.device_config import DeviceConfig
from hybridsync.core.errors import ConfigError

THREADS, XLA = "threads", "xla"


@dataclass(frozen=True)
class Division:
    """Equal parts of a process's devices.

    Attributes:
      seats: number of the parts; worker k computes on part k modulo this number.
      axes: mesh of each part, in the order of its axes; {} for one device.
      kind: how workers sum among themselves, which decides the last bits: "threads", on one part, or "xla", over all.
    """

    seats: int
    axes: dict[str, int]
    kind: str = THREADS

    @property
    def size(self) -> int:
        """The number of devices of each part."""
        return math.prod(self.axes.values())


def divide(config: DeviceConfig, num_workers: int, num_devices: int) -> Division:
    """Return how `num_devices` devices are divided among the workers of a process.

    Workers share devices only where the configuration asks for one device a worker, or for none in particular.

    Raises:
      ConfigError: the mesh does not fit the devices, or the collective does not suit the division.
    """
    size = config.size
    if not size:  # what the fixed axes leave over is the rest's: with fewer devices than workers they share
        size = max(1, num_devices // num_workers) if config.mesh else 1
        fixed = math.prod(length for length in config.mesh.values() if length != -1)
        size = max(fixed, size // fixed * fixed)
    axes = config.sizes(size)
    needed, is_asked = num_workers * size, size > 1 or config.per_worker
    if is_asked and needed > num_devices:
        raise ConfigError(
            f"{num_workers} workers with {size} devices each (devices.mesh {config.axes}) need {needed} devices, there "
            f"are {num_devices}; lower the number of workers or the sizes of the mesh"
        )
    seats = min(num_workers, num_devices // size)
    if config.collective == XLA and seats < num_workers:
        raise ConfigError(
            f"devices.collective 'xla' needs devices of its own for each of the {num_workers} workers, there are "
            f"{num_devices}; use 'threads' or 'auto', or lower the number of workers"
        )
    return Division(seats, axes, XLA if seats == num_workers > 1 and config.collective != THREADS else THREADS)
