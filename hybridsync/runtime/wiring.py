"""Names the transports that carry calls between processes, and the backends that carry sums: a new one is a line here.

Loads neither jax nor grpc: the supervisor imports it.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from hybridsync.collectives.backend import Backend
from hybridsync.collectives.mesh.backend import MeshBackend
from hybridsync.collectives.shared_memory.backend import SharedMemoryBackend
from hybridsync.collectives.shared_memory.backend import suits as shared_memory_suits
from hybridsync.core.errors import ConfigError

if TYPE_CHECKING:
    from hybridsync.security.keyring import Keyring
    from hybridsync.transport.grpc.transport import GrpcTransport
    from hybridsync.transport.link import Transport

AUTO, SHARED_MEMORY = "auto", "shm"
GRPC, TCP = "grpc", "tcp"
LINKS = (AUTO, GRPC, SHARED_MEMORY, TCP)
"""Values of --link."""

HOST = "host"
COLLECTIVES = (AUTO, HOST, SHARED_MEMORY)
"""Values of --collective."""

_BACKENDS: dict[str, Backend] = {HOST: MeshBackend(), SHARED_MEMORY: SharedMemoryBackend()}

KINDS = tuple(_BACKENDS)
"""Every kind that a run may have used."""


def transport_of(kind: str, keys: Keyring) -> Transport:
    """Return how the roles of a run serve and reach each other, in processes of their own; all show the run's token.

    Only what that kind needs is imported.

    Args:
      kind: "grpc"; "shm" where buffers stay in memory that the processes of a host share; or "tcp" where they go over
        sockets of their own, between hosts.
      keys: keys of this process.
    """
    return {GRPC: _grpc, SHARED_MEMORY: _shared_memory, TCP: _tcp}[kind](keys)


def head_transport(keys: Keyring) -> GrpcTransport:
    """Return how the agents of a run's hosts reach its head: by certificates alone.

    Args:
      keys: keys of this process, without a token.
    """
    from hybridsync.transport.grpc.transport import GrpcTransport

    return GrpcTransport(keys)


def _grpc(keys: Keyring) -> Transport:
    from hybridsync.transport.grpc.transport import GrpcTransport

    return GrpcTransport(keys)


def _shared_memory(keys: Keyring) -> Transport:
    from hybridsync.transport.shared_memory.transport import SharedMemoryTransport

    return SharedMemoryTransport(keys)


def _tcp(keys: Keyring) -> Transport:
    from hybridsync.transport.tcp.transport import TcpTransport

    return TcpTransport(keys)


def choose_link(asked: str, *, sockets: bool, hosts: int = 1) -> str:
    """Return the kind of transport of a run.

    Args:
      asked: one of `LINKS`.
      sockets: whether the roles serve on sockets.
      hosts: on which the roles run.

    Raises:
      ConfigError: shared memory, or TCP, was asked for, and does not suit.
    """
    is_linux = platform.system() == "Linux"
    suits = sockets and is_linux
    if asked == SHARED_MEMORY and not suits:
        raise ConfigError("--link=shm needs Linux, and roles that serve on sockets; leave out --bind, or --link")
    if asked == TCP and not is_linux:
        raise ConfigError(f"--link=tcp needs Linux, and this is {platform.system()}; take --link=grpc")
    if asked != AUTO:
        return asked
    if hosts > 1:
        return TCP if is_linux else GRPC
    return SHARED_MEMORY if suits else GRPC


def collectives_of(kind: str) -> Backend:
    """Return how worker processes sum and average among themselves.

    Args:
      kind: one of `KINDS`: "host", over TCP with gloo, or "shm", over memory that the processes of a host share.
    """
    return _BACKENDS[kind]


def choose_collective(asked: str, num_workers: int, *, sockets: bool) -> str:
    """Return the kind of collectives of a run whose workers are all on this host.

    The kind decides how a process divides its work, and with it the last bits, so that it is part of a run's record.

    Args:
      asked: one of `COLLECTIVES`.
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
