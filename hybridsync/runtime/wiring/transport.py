"""Names the transport that carries calls between processes. Importing this file loads no jax."""

from __future__ import annotations

from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.link import Transport


def transport_of(token: str) -> Transport:
    """Return how the roles of a run serve and reach each other, in processes of their own; all show the run's token."""
    return GrpcTransport(token)
