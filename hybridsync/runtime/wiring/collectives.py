"""Which backend carries sums between processes. Importing this file loads neither jax nor grpc: the supervisor does."""

from __future__ import annotations

from hybridsync.collectives.backend import Backend
from hybridsync.collectives.mesh.backend import MeshBackend

COLLECTIVES: Backend = MeshBackend()
"""How worker processes sum and average among themselves."""
