"""The mesh backend as a runtime sees it. Importing this file loads no jax: a supervisor serves without it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from hybridsync.collectives.backend import Collectives, Place, Service
from hybridsync.collectives.device_choice import NUM_DEVICES
from hybridsync.collectives.mesh.process_group import ProcessGroup, start_service

if TYPE_CHECKING:
    from hybridsync.training.compiled_programs import Programs


class MeshBackend:
    """Sums over meshes of one process group (see `collectives.backend.Backend`)."""

    num_devices = NUM_DEVICES

    def serve(self, slots: tuple[int, ...], address: str) -> Service:
        """Start the coordination service (see `Backend.serve`)."""
        return start_service(len(slots), address)

    def join(self, place: Place) -> Callable[[Programs], Collectives]:
        """Join the process group (see `Backend.join`)."""
        process_group = ProcessGroup.join(
            place.address,
            place.worker,
            len(place.slots),
            num_devices=place.num_devices,
            timeout_secs=place.timeout_secs,
            reborn=place.reborn,
            host=place.host,
            slots=place.slots,
        )
        from hybridsync.collectives.mesh.communicator import MeshCollectives  # it loads jax

        return functools.partial(MeshCollectives, process_group)
