"""What carries bytes between the processes of a run. Importing this file loads no jax: the supervisor does it, too."""

from __future__ import annotations

from hybridsync.collectives.backend import Backend
from hybridsync.collectives.mesh.backend import MeshBackend
from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.link import Transport

COLLECTIVES: Backend = MeshBackend()
"""How worker processes sum and average among themselves."""
TRANSPORT: Transport = GrpcTransport()
"""How roles in processes of their own serve and reach each other."""
