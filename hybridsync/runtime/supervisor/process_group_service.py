"""Serves what the workers of a run join, one group after another; lives in the supervisor."""

from __future__ import annotations

from absl import logging

from hybridsync.collectives.backend import NO_GROUP, STOP_SECS, Service
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.runtime.agent.role_addresses import RoleAddresses
from hybridsync.runtime.wiring import collectives_of

LINGER_SECS = 5.0
"""How long a former group is served on.

A call of a worker that was killed may still be in progress in it, and ends this process if the service stops right
then.
"""


class ProcessGroupService:
    """Serves a process group, and the next one when its meshes are used up.

    Args:
      collective: kind of collectives among the workers.
      addresses: addresses at which the group may be served.
      lease_secs: seconds that a worker that was given up may live on, on a host that does not hear it.
      is_needed: whether workers are to sum among themselves. While they are not, nothing is served: the listening
        socket neither encrypts nor authenticates its callers.

    Attributes:
      address: address at which the workers join the present group; "" before there is one.
      slots: numbers of the workers that have a place in it, ascending.
      is_complete: whether every slot has joined it once, or, with shared memory or none served, whether one has.
      was_complete: whether this group is complete, or a former one was.
      is_needed: as given; setting it has a new group served.
    """

    def __init__(
        self, collective: str, addresses: RoleAddresses, lease_secs: float = 0.0, *, is_needed: bool = True
    ) -> None:
        self._collective, self._addresses, self._linger_secs = collective, addresses, LINGER_SECS + lease_secs
        self._service: Service | None = None
        self._former: list[tuple[float, Service]] = []
        self._alone: dict[int, Service] = {}
        self.address = ""
        self.slots: tuple[int, ...] = ()
        self.is_complete, self.was_complete, self.is_needed = False, False, is_needed

    def serve(self, slots: tuple[int, ...]) -> None:
        """Serve a new group; the former one is stopped later.

        Raises:
          HybridSyncError: it cannot be served, or the installed packages are unsuited.
        """
        for service in (self._service, *self._alone.values()):
            self._linger(service)
        self._alone.clear()
        self._service = self._serve(slots) if self.is_needed else None
        self.address = NO_GROUP if self._service is None else self._service.address
        self.slots, self.is_complete = slots, False

    def place_of(self, slot: int) -> tuple[str, tuple[int, ...]]:
        """Return where a worker joins, and the slots of that group.

        A worker that has no place in the present group gets a group of its own: it can push and pull at once, and joins
        the others in the next group. To wait for it, or to start all again because of it, would cost the others time.
        """
        if slot in self.slots or self.address == NO_GROUP:
            return self.address, self.slots
        self._linger(self._alone.pop(slot, None))
        self._alone[slot] = self._serve((slot,))
        return self._alone[slot].address, (slot,)

    def _serve(self, slots: tuple[int, ...]) -> Service:
        return collectives_of(self._collective).serve(slots, self._addresses.next_service())

    def _linger(self, service: Service | None) -> None:
        if service is not None:
            self._former.append((SYSTEM_CLOCK.monotonic() + self._linger_secs, service))

    def joined(self, address: str) -> None:
        """Take note that a worker has joined the group at an address, and with it every worker."""
        self.is_complete = self.is_complete or address == self.address != ""
        self.was_complete = self.was_complete or self.is_complete

    def stop_former(self) -> None:
        """Stop former groups that have lingered for long enough. Nobody waits for their ends."""
        now = SYSTEM_CLOCK.monotonic()
        self._former = [
            (until, service) for until, service in self._former if until > now or not service.stop(wait_secs=0.0)
        ]

    def stop(self) -> None:
        """Stop serving; every role has ended. A service that does not end in time is left behind and named."""
        served = [service for _, service in self._former] + [*self._alone.values()]
        if self._service is not None:
            served.append(self._service)
        for service in served:
            service.stop(wait_secs=0.0)
        until = SYSTEM_CLOCK.monotonic() + STOP_SECS
        late = [each.address for each in served if not each.stop(max(0.0, until - SYSTEM_CLOCK.monotonic()))]
        if late:
            who = ", ".join(late)
            logging.warning("the service that workers joined at %s does not end within %g s", who, STOP_SECS)
