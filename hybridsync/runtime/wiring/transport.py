"""Names the transports that carry calls between processes. Loads neither jax nor grpc: the supervisor imports it."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from hybridsync.core.errors import ConfigError

if TYPE_CHECKING:
    from hybridsync.security.keyring import Keyring
    from hybridsync.transport.grpc.transport import GrpcTransport
    from hybridsync.transport.link import Transport

AUTO, GRPC, SHARED_MEMORY, TCP = "auto", "grpc", "shm", "tcp"
CHOICES = (AUTO, GRPC, SHARED_MEMORY, TCP)
"""Values of --link."""


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


def choose(asked: str, *, sockets: bool, hosts: int = 1) -> str:
    """Return the kind of transport of a run.

    Args:
      asked: one of `CHOICES`.
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
