"""What a worker's process is given for its devices: environment variables, in the order that starts it. Pure.

>>> config = DeviceConfig(platform="cuda")
>>> for environment in worker_environments(config, num_workers=3, environ={"CUDA_VISIBLE_DEVICES": "4,GPU-c0ffee"}):
...     print(environment)
{'JAX_PLATFORMS': 'cuda,cpu', 'CUDA_VISIBLE_DEVICES': '4', 'XLA_CLIENT_MEM_FRACTION': '0.45'}
{'JAX_PLATFORMS': 'cuda,cpu', 'CUDA_VISIBLE_DEVICES': 'GPU-c0ffee', 'XLA_CLIENT_MEM_FRACTION': '0.9'}
>>> worker_environments(DeviceConfig(mesh={"fsdp": 2, "tensor": 2}), num_workers=2, environ={})
({'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': '4'},)
>>> worker_environments(DeviceConfig(mesh={"fsdp": -1}), num_workers=2, environ={})
Traceback (most recent call last):
...
hybridsync.core.errors.ConfigError: devices.mesh {'fsdp': -1} leaves the number of a worker process's devices open, and
on platform 'auto' there are as many as asked for; set devices.per_worker
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hybridsync.config.device_config import DeviceConfig
from hybridsync.core.errors import ConfigError
from hybridsync.devices.mesh import divide

PLATFORMS = "JAX_PLATFORMS"
NUM_CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
GPU_PLATFORMS = ("cuda", "gpu")
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
MEMORY_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""The name in use, and the deprecated one: jaxlib refuses to see both."""
USABLE_MEMORY = 0.9
"""Share of a GPU's memory that its workers get together; what is left is for CUDA's own contexts."""


def host_gpus(environ: Mapping[str, str], device_files: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the GPUs that this host's processes may use, as CUDA_VISIBLE_DEVICES names them.

    CUDA is not asked: a process that has loaded it cannot be forked.

    Args:
      environ: environment of this process; where it names GPUs, by index, UUID or MIG instance, these are all.
      device_files: names of the files in /dev.
    """
    if (named := environ.get(VISIBLE_GPUS)) is not None:
        names = (name.strip() for name in named.split(","))
        # CUDA itself takes none from the first one on that it does not know, such as -1.
        return tuple(itertools.takewhile(re.compile(r"\d+|(GPU|MIG)-.+").fullmatch, names))
    # A container may have /dev/nvidia3 alone: CUDA numbers what there is from 0.
    files = [name for name in device_files if re.fullmatch(r"nvidia\d+", name)]
    return tuple(map(str, range(len(files))))


def own_gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that the order of a worker's process names; () where it computes on something else."""
    return host_gpus(environ) if environ.get(PLATFORMS, "").startswith(GPU_PLATFORMS) else ()


def worker_environments(
    config: DeviceConfig, num_workers: int, environ: Mapping[str, str], device_files: Iterable[str] = ()
) -> tuple[dict[str, str], ...]:
    """Return the environment of a worker's process for each seat of this host; workers are spread evenly over them.

    On GPUs a seat has devices of its own alone. Elsewhere there is one seat, for all. Chief and servers need nothing of
    this: they are on CPU, as the process that they are forked from.

    Args:
      config: devices of each worker.
      num_workers: most workers that this host runs.
      environ: environment of this process.
      device_files: names of the files in /dev.

    Raises:
      ConfigError: the number of the devices is open, there are too few, or a share of memory is given twice.
    """
    platforms = environ.get(PLATFORMS) or "cpu"  # where the user names none, JAX would take a GPU that it finds
    if config.platform != "auto":
        platforms = "cpu" if config.platform == "cpu" else f"{config.platform},cpu"
    named = [name for name in MEMORY_FRACTIONS if environ.get(name)]
    given = [f"{name}={environ[name]}" for name in named]
    if config.memory_fraction is not None:
        given.append(f"devices.memory_fraction={config.memory_fraction}")
    if not platforms.startswith("cpu") and len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} give the share of an accelerator's memory twice; leave one out")
    if platforms.startswith(GPU_PLATFORMS):
        gpus = host_gpus(environ, device_files)
        return _on_gpus(config, num_workers, gpus, {PLATFORMS: platforms}, is_fraction_named=bool(named))
    environment = {PLATFORMS: platforms}
    if platforms.startswith("cpu") and not config.size:
        raise ConfigError(
            f"devices.mesh {config.mesh} leaves the number of a worker process's devices open, and on platform "
            f"{config.platform!r} there are as many as asked for; set devices.per_worker"
        )
    if platforms.startswith("cpu") and config.size > 1:
        environment[NUM_CPU_DEVICES] = str(config.size)
    if config.memory_fraction is not None:
        environment[MEMORY_FRACTIONS[0]] = str(config.memory_fraction)
    return (environment,)


def _on_gpus(
    config: DeviceConfig, num_workers: int, gpus: Sequence[str], common: Mapping[str, str], *, is_fraction_named: bool
) -> tuple[dict[str, str], ...]:
    if not gpus:
        raise ConfigError(
            "workers are to compute on GPUs, and this host has 0: CUDA_VISIBLE_DEVICES names none, or, where it is "
            "not set, there is no /dev/nvidia0; use --platform=cpu, or set CUDA_VISIBLE_DEVICES to those there are"
        )
    try:
        division = divide(replace(config, collective="auto"), num_workers, len(gpus))  # each in a process of its own
    except ConfigError as error:
        raise ConfigError(f"{error} (GPUs of this host: {', '.join(gpus)})") from None
    environments = []
    for seat in range(division.seats):
        own = gpus[seat * division.size : (seat + 1) * division.size]
        environment = {**common, VISIBLE_GPUS: ",".join(own)}
        if not is_fraction_named:
            sharers = len(range(seat, num_workers, division.seats))
            fraction = USABLE_MEMORY / sharers if config.memory_fraction is None else config.memory_fraction
            environment[MEMORY_FRACTIONS[0]] = f"{fraction:.3g}"
        environments.append(environment)
    return tuple(environments)
