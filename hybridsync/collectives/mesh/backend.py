"""The mesh backend as a runtime sees it. Importing this file loads no jax: a supervisor serves without it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from hybridsync.collectives.backend import NO_GROUP, Collectives, Communicator, CommunicatorPhase, Place, Service
from hybridsync.collectives.device_choice import NUM_DEVICES
from hybridsync.collectives.mesh.coordination_service import start_service
from hybridsync.collectives.mesh.process_group import ProcessGroup, stay_apart
from hybridsync.core.errors import HybridSyncError

if TYPE_CHECKING:
    from hybridsync.training.compiled_programs import Programs


class NoCollectives:
    """Has nobody to sum with: for a phase that needs others the chief has every worker start again, in a group.

    Args:
      worker: number of this worker.
    """

    def __init__(self, worker: int) -> None:
        self._worker = worker

    def prepare(self, *, sums: bool, groups: bool) -> None:
        """See `Collectives.prepare`."""

    def rest(self) -> None:
        """See `Collectives.rest`."""

    def communicator(self, phase: CommunicatorPhase) -> Communicator:
        """Refuse (see `Collectives.communicator`).

        Raises:
          HybridSyncError: always.
        """
        raise HybridSyncError(f"worker {self._worker} is to sum in phase {phase.id}, and has joined no process group")


class MeshBackend:
    """Sums over meshes of one process group (see `collectives.backend.Backend`)."""

    num_devices = NUM_DEVICES

    def serve(self, slots: tuple[int, ...], address: str) -> Service:
        """Start the coordination service (see `Backend.serve`)."""
        return start_service(len(slots), address)

    def join(self, place: Place) -> Callable[[Programs], Collectives]:
        """Join the process group (see `Backend.join`)."""
        if place.address == NO_GROUP:
            stay_apart(place.worker, place.num_devices)
            return lambda programs: NoCollectives(place.worker)
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
