"""Names the backends that carry sums between processes. Loads neither jax nor grpc: the supervisor imports it."""

from __future__ import annotations

from hybridsync.collectives.backend import Backend
from hybridsync.collectives.mesh.backend import MeshBackend
from hybridsync.collectives.shared_memory.backend import SharedMemoryBackend
from hybridsync.collectives.shared_memory.backend import suits as shared_memory_suits
from hybridsync.core.errors import ConfigError

AUTO, HOST, SHARED_MEMORY = "auto", "host", "shm"
CHOICES = (AUTO, HOST, SHARED_MEMORY)
"""Values of --collective."""

_BACKENDS: dict[str, Backend] = {HOST: MeshBackend(), SHARED_MEMORY: SharedMemoryBackend()}

KINDS = tuple(_BACKENDS)
"""Every kind that a run may have used."""


def collectives_of(kind: str) -> Backend:
    """Return how worker processes sum and average among themselves.

    Args:
      kind: one of `KINDS`: "host", over TCP with gloo, or "shm", over memory that the processes of a host share.
    """
    return _BACKENDS[kind]


def choose(asked: str, num_workers: int, *, sockets: bool) -> str:
    """Return the kind of collectives of a run whose workers are all on this host.

    The kind decides how a process divides its work, and with it the last bits, so that it is part of a run's record.

    Args:
      asked: one of `CHOICES`.
      num_workers: number of workers of the run.
      sockets: whether there is a folder for sockets.

    Raises:
      ConfigError: shared memory was asked for, and does not suit.
    """
    suits = sockets and shared_memory_suits(num_workers)
    if asked == SHARED_MEMORY and not suits:
        raise ConfigError(
            f"--collective=shm does not suit {num_workers} workers here: it needs Linux on x86-64, a place for "
            "sockets, at most 250 workers and 6 open files for each (`ulimit -n`); leave the flag out"
        )
    if asked != AUTO:
        return asked
    return SHARED_MEMORY if suits else HOST
