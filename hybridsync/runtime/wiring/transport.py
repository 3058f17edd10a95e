"""Names the transports that carry calls between processes. Loads neither jax nor grpc: the supervisor imports it."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from hybridsync.core.errors import ConfigError

if TYPE_CHECKING:
    from hybridsync.transport.link import Transport

AUTO, GRPC, SHARED_MEMORY = "auto", "grpc", "shm"
CHOICES = (AUTO, GRPC, SHARED_MEMORY)
"""What a command line may ask for."""


def transport_of(kind: str, token: str) -> Transport:
    """Return how the roles of a run serve and reach each other, in processes of their own; all show the run's token.

    Args:
      kind: "grpc", or "shm" where buffers stay in memory that the processes of a host share.
      token: of the run.
    """
    from hybridsync.transport.grpc.transport import GrpcTransport
    from hybridsync.transport.shared_memory.transport import SharedMemoryTransport

    return {GRPC: GrpcTransport, SHARED_MEMORY: SharedMemoryTransport}[kind](token)


def choose(asked: str, *, sockets: bool) -> str:
    """Return the kind of transport of a run whose roles are all on this host.

    Args:
      asked: one of `CHOICES`.
      sockets: whether the roles serve on sockets.

    Raises:
      ConfigError: shared memory was asked for, and does not suit.
    """
    suits = sockets and platform.system() == "Linux"
    if asked == SHARED_MEMORY and not suits:
        raise ConfigError("--link=shm needs Linux, and roles that serve on sockets; leave out --bind, or --link")
    if asked != AUTO:
        return asked
    return SHARED_MEMORY if suits else GRPC
