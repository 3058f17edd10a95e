"""The shared-memory backend as a runtime sees it. Importing this file loads neither jax nor numpy."""

from __future__ import annotations

import functools
import platform
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING

from hybridsync.collectives.backend import Collectives, Place, Service
from hybridsync.collectives.shared_memory.doorbells import MOST_WORKERS

if TYPE_CHECKING:
    from hybridsync.training.compiled_programs import Programs


_DESCRIPTORS, _OTHER_DESCRIPTORS = 6, 64
"""A supervisor opens a doorbell, a process and pipes for each worker, and some files besides."""


class SharedMemoryBackend:
    """Sums among the processes of one host (see `collectives.backend.Backend`).

    A member that is lost spoils nothing, so there is always another device choice: it only counts the losses.
    """

    num_devices = 1 << 30

    def serve(self, slots: tuple[int, ...], address: str) -> Service:
        """Start what hands out the memory (see `Backend.serve`)."""
        from hybridsync.collectives.shared_memory.service import SumService

        return SumService(len(slots), address)

    def join(self, place: Place) -> Callable[[Programs], Collectives]:
        """Map the memory (see `Backend.join`). JAX may have been used before, and nobody else is waited for."""
        from hybridsync.collectives.shared_memory.service import join

        joined = join(place.address, place.slots.index(place.worker), place.worker, place.timeout_secs)
        from hybridsync.collectives.shared_memory.communicator import SharedMemoryCollectives  # it loads jax

        return functools.partial(SharedMemoryCollectives, joined, place.slots, place.worker)


def suits(num_workers: int) -> bool:
    """Return whether so many workers can join, and this machine's processors keep the order that `rounds` relies on."""
    may_open, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    fits = num_workers <= MOST_WORKERS and _DESCRIPTORS * num_workers + _OTHER_DESCRIPTORS <= may_open
    return fits and platform.system() == "Linux" and platform.machine() == "x86_64"
