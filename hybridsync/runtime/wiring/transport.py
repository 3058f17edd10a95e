"""Names the transport that carries calls between processes. Importing this file loads no jax, and what it needs."""

from __future__ import annotations

from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.link import Transport

TRANSPORT: Transport = GrpcTransport()
"""How roles in processes of their own serve and reach each other."""
