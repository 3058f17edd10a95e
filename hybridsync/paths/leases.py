"""A worker's side of leases: the stream of units it has been handed, fetched ahead so that it rarely waits."""

from __future__ import annotations

from concurrent.futures import Executor, Future

from hybridsync.clock import Clock
from hybridsync.errors import WaitTimeout
from hybridsync.messages import LeaseReply, LeaseRequest
from hybridsync.paths.allotment import Allotment
from hybridsync.plan import Epoch, Phase
from hybridsync.ports import WorkPort
from hybridsync.units import Range

LEASE_DEADLINE_SECS = 600.0
"""How long a worker waits for units before it gives up: others' last units may take long, the chief may restart."""


class LeaseStream:
    """The units of one phase in the order in which this worker (or its whole mesh) takes them.

    Attributes:
      called: the last `next` came back without units because everybody is called to a full synchronisation.

    Args:
      chief: whom to ask.
      worker, incarnation, phase: in whose name.
      clock: for the deadline.
      ahead: runs a renewal beside the training; None asks when there is nothing left.
    """

    def __init__(
        self,
        chief: WorkPort,
        worker: int,
        incarnation: int,
        phase: Phase,
        clock: Clock,
        ahead: Executor | None,
    ) -> None:
        self._chief, self._worker, self._incarnation, self._phase = chief, worker, incarnation, phase
        self._clock, self._ahead = clock, ahead
        self._units = Allotment()
        self._renewal: Future[LeaseReply] | None = None
        self.called = False

    @property
    def epoch(self) -> Epoch:
        """The phase of these units."""
        return self._phase.epoch

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Units received so far in this phase, in order."""
        return self._units.ranges

    @property
    def position(self) -> int:
        """Units taken so far in this phase."""
        return self._units.position

    def next(self, count: int) -> tuple[int, ...]:
        """Return the next `count` units, waiting for them; fewer only at the phase's end, none behind it.

        Raises:
          StaleEpoch, StaleIncarnation: this worker is out of date.
          WaitTimeout: the chief had nothing to give and did not end the phase in time.
        """
        deadline = self._clock.monotonic() + LEASE_DEADLINE_SECS
        self.called = False
        while self._units.lacks(count) and not self.called:
            renewal = self._renewal
            self._extend(renewal.result(timeout=LEASE_DEADLINE_SECS) if renewal else self._ask(self.position))
            if self._clock.monotonic() > deadline:
                raise WaitTimeout(
                    f"worker {self._worker} got no units from the chief for {LEASE_DEADLINE_SECS:g} s in epoch "
                    f"{self._phase.epoch}, and the phase did not end"
                )
        completed, units = self.position, self._units.take(count)
        if self._ahead is not None and self._units.is_low:
            self._renew(self._ahead, completed)
        return units

    def _renew(self, ahead: Executor, completed: int) -> None:
        """Fetch more before they are needed: the answer may take long, and units in hand are not to wait for it."""
        if self._renewal is None:
            self._renewal = ahead.submit(self._ask, completed)
        elif self._renewal.done():
            self._extend(self._renewal.result())

    def _ask(self, completed: int) -> LeaseReply:
        request = LeaseRequest(self._worker, self._incarnation, self._phase.epoch, self._units.known, completed)
        return self._chief.lease(request)

    def _extend(self, reply: LeaseReply) -> None:
        self._renewal, self.called = None, reply.meet
        self._units.extend(reply)
