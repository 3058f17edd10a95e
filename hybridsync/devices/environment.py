"""What a worker's process is given for its devices: environment variables, in the order that starts it. Pure.

>>> worker_environment(DeviceConfig(platform="cuda", memory_fraction=0.4))
{'JAX_PLATFORMS': 'cuda,cpu', 'XLA_CLIENT_MEM_FRACTION': '0.4'}
>>> worker_environment(DeviceConfig(mesh={"fsdp": 2, "tensor": 2}))
{'JAX_NUM_CPU_DEVICES': '4'}
>>> worker_environment(DeviceConfig(mesh={"fsdp": -1}))
Traceback (most recent call last):
...
hybridsync.core.errors.ConfigError: devices.mesh {'fsdp': -1} leaves the number of a worker process's devices open, and
on platform 'auto' there are as many as asked for; set devices.per_worker
"""

from __future__ import annotations

from hybridsync.config.device_config import DeviceConfig
from hybridsync.core.errors import ConfigError

NUM_CPU_DEVICES = "JAX_NUM_CPU_DEVICES"


def worker_environment(config: DeviceConfig) -> dict[str, str]:
    """Return the environment of a worker's process; of chief and servers nothing here is needed, they are on CPU.

    Raises:
      ConfigError: the number of the devices is open.
    """
    environment = {}
    on_cpu = config.platform in ("auto", "cpu")
    if config.platform != "auto":  # "auto": what the user's JAX_PLATFORMS names, or else the CPU
        environment["JAX_PLATFORMS"] = "cpu" if on_cpu else f"{config.platform},cpu"
    if on_cpu and not config.size:
        raise ConfigError(
            f"devices.mesh {config.mesh} leaves the number of a worker process's devices open, and on platform "
            f"{config.platform!r} there are as many as asked for; set devices.per_worker"
        )
    if on_cpu and config.size > 1:
        environment[NUM_CPU_DEVICES] = str(config.size)
    if config.memory_fraction is not None:
        environment["XLA_CLIENT_MEM_FRACTION"] = str(config.memory_fraction)
    return environment
