"""Names the backend that carries sums between processes. Loads neither jax nor grpc: the supervisor imports it."""

from __future__ import annotations

from hybridsync.collectives.backend import Backend
from hybridsync.collectives.mesh.backend import MeshBackend

COLLECTIVES: Backend = MeshBackend()
"""How worker processes sum and average among themselves."""
