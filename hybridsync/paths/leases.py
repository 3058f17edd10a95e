"""A worker's side of leases: the stream of units it has been handed, fetched ahead so that it rarely waits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future

from hybridsync.clock import Clock
from hybridsync.errors import WaitTimeout
from hybridsync.messages import LeaseReply, LeaseRequest
from hybridsync.paths.allotment import Allotment
from hybridsync.phase import Phase
from hybridsync.plan import Epoch
from hybridsync.ports import WorkPort
from hybridsync.units import Range
from hybridsync.watching import UNWATCHED, Watching

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
      idle: called when there is nothing to give and nothing left, before the wait for more; None tells nobody.
      watchdog: of the process; each answer is progress.
    """

    def __init__(
        self,
        chief: WorkPort,
        worker: int,
        incarnation: int,
        phase: Phase,
        clock: Clock,
        ahead: Executor | None,
        idle: Callable[[], None] | None = None,
        watchdog: Watching = UNWATCHED,
    ) -> None:
        self._watchdog = watchdog
        self._chief, self._worker, self._incarnation, self._phase = chief, worker, incarnation, phase
        self._clock, self._ahead, self._idle = clock, ahead, idle
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

    def at_hand(self, count: int) -> tuple[int, ...]:
        """Return up to `count` of the units that are here already."""
        return self._units.take(count)

    def next(self, count: int, *, some: bool = False) -> tuple[int, ...]:
        """Return the next `count` units, waiting for them; fewer only at the phase's end, none behind it.

        Args:
          count: how many.
          some: whether fewer will do, too, where the chief has no more to give now.

        Raises:
          StaleEpoch, StaleIncarnation: this worker is out of date.
          WaitTimeout: the chief had nothing to give and did not end the phase in time.
        """
        deadline, idle = self._clock.monotonic() + LEASE_DEADLINE_SECS, self._idle
        self.called = False
        while self._units.lacks(count) and not self.called:
            known = self._units.known
            self._watchdog.progress()
            if self._renewal is not None:
                self._extend(self._renewal.result(timeout=LEASE_DEADLINE_SECS))
            else:
                at_hand = some and known > self.position
                self._extend(self._ask(self.position, count, at_once=at_hand or idle is not None))
                if some and self._units.known > self.position:
                    if self._units.known == known:
                        break
                    continue
                if idle is not None and self._units.lacks(count):
                    idle()
                    idle = None  # from now on the answer may take its time
            if self._clock.monotonic() > deadline:
                raise WaitTimeout(
                    f"worker {self._worker} got no units from the chief for {LEASE_DEADLINE_SECS:g} s in epoch "
                    f"{self._phase.epoch}, and the phase did not end"
                )
        completed, units = self.position, self._units.take(count)
        if self._ahead is not None and self._units.is_low:
            self._renew(self._ahead, completed, count)
        return units

    def _renew(self, ahead: Executor, completed: int, wanted: int) -> None:
        """Fetch more before they are needed: the answer may take long, and units in hand are not to wait for it."""
        if self._renewal is None:
            self._renewal = ahead.submit(self._ask, completed, wanted, self._idle is not None)
        elif self._renewal.done():
            self._extend(self._renewal.result())

    def _ask(self, completed: int, wanted: int, at_once: bool) -> LeaseReply:
        known = self._units.known
        return self._chief.lease(
            LeaseRequest(self._worker, self._incarnation, self._phase.epoch, known, completed, at_once, wanted)
        )

    def _extend(self, reply: LeaseReply) -> None:
        self._renewal, self.called = None, reply.meet
        self._units.extend(reply)
