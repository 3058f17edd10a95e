"""Carries out a worker engine's requests in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hybridsync.core.errors import HybridSyncError, PhaseRevoked, RoleLost, StalePhase, WaitTimeout
from hybridsync.interfaces.phase import Phase
from hybridsync.worker.requests import IO, ComputeUnit, Join, LeaseUnits, RunBeside, Start, Ticket

if TYPE_CHECKING:
    from hybridsync.lab.simulator.simulated_worker import Worker
    from hybridsync.worker.phase_runner import PhaseEngine

PENDING: Any = object()
"""A carrier returns this where its reply comes later."""
Then = Callable[[Any], None]
Carrier = Callable[[Any, Then], Any]
"""(request, what takes its reply or error) -> the reply where it is known at once, else PENDING."""
Carriers = Mapping[type, Carrier]


class EventTicket:
    """A request that was begun (see `hybridsync.worker.requests.Ticket`)."""

    __slots__ = ("_driver", "_is_awaited", "reply", "span")

    def __init__(self, driver: EventDriver) -> None:
        self._driver, self._is_awaited = driver, False
        self.reply: Any = PENDING
        now = driver.now
        self.span = (now, now)

    def done(self) -> bool:
        return self.reply is not PENDING

    def peek(self) -> Any:
        return self.reply if self.done() and not isinstance(self.reply, HybridSyncError) else None

    def complete(self, reply: Any) -> None:
        """Take the reply, or the error that it is."""
        if self._driver.is_over:
            return
        self.reply, self.span = reply, (self.span[0], self._driver.now)
        if self._is_awaited:
            self._driver.resume(reply)

    def join(self) -> Any:
        """Return the reply; PENDING where the engine is resumed with it later."""
        self._is_awaited = self.reply is PENDING
        return self.reply


class PartBeside:
    """A part of an engine that goes on beside the rest of it.

    Args:
      driver: driver of the engine.
      io: requests of the part.
      then: called with None when the part has ended, or with the error that ended it.
    """

    def __init__(self, driver: EventDriver, io: IO, then: Then) -> None:
        self._driver, self._io, self._then = driver, io, then

    def resume(self, reply: Any) -> None:
        """Go on with the reply that the part waits for, or with the error that it is."""
        if self._driver.is_stale(self.resume, reply):
            return
        io, driver = self._io, self._driver
        try:
            while reply is not PENDING:
                request = io.throw(reply) if isinstance(reply, HybridSyncError) else io.send(reply)
                reply = driver.carry_out(request, self.resume)
        except StopIteration:
            self._then(None)
        except HybridSyncError as error:
            self._then(error)

    def close(self) -> None:
        """End with the process."""
        self._io.close()


class EventDriver:
    """Drives one engine through one phase.

    Args:
      worker: worker that the engine belongs to.
      phase: phase that the worker takes part in.
      engine: the engine, which yields the requests.
      carriers: carry out the requests of the phase's mode, in addition to units and leases; called with the function
        that resumes the engine.

    Attributes:
      is_over: the engine has ended or was revoked: what comes now is not for it any more.
    """

    __slots__ = (
        *("_beside", "_carriers", "_gradient", "_io", "_loop", "_revoked", "_wire"),
        *("is_over", "leases", "phase", "simulated", "worker"),
    )

    def __init__(
        self, worker: Worker, phase: Phase, engine: PhaseEngine, carriers: Callable[[EventDriver], Carriers]
    ) -> None:
        self.worker, self.phase, self.simulated = worker, phase, worker.simulated
        self.leases = engine.leases
        self._loop, self._io = worker.simulated.loop, engine.run()
        self._gradient, self._wire = worker.simulated.arithmetic.gradient, phase.protocol.wire_dtype
        self.is_over = self._revoked = False
        self._beside: PartBeside | None = None
        self._carriers: Carriers = {
            LeaseUnits: self._lease,
            ComputeUnit: self.compute,
            Start: self._start,
            Join: self._join,
            RunBeside: self._run_beside,
            **carriers(self),
        }

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self._loop.now

    def begin(self) -> None:
        """Take part in the phase."""
        self.resume(None)

    def resume(self, reply: Any, *, revokes: bool = False) -> None:
        """Carry out requests, from a reply or an error on, until the reply to one comes later.

        A stopped process hears it later, and an engine that is over never, unless it is what `revokes` it.
        """
        if not revokes and (self.is_over or (self.worker.stopped and self.worker.halted(self.resume, reply))):
            return
        io, carriers, resume = self._io, self._carriers, self.resume
        try:
            while reply is not PENDING:  # hot path: `carry_out` without a call
                request = io.throw(reply) if isinstance(reply, HybridSyncError) else io.send(reply)
                reply = carriers[type(request)](request, resume)
        except StopIteration:
            self._end("")
        except (PhaseRevoked, RoleLost, StalePhase, WaitTimeout) as error:  # as the worker's loop over phases
            self._end(f"{type(error).__name__}: {error}")
        except HybridSyncError:  # for instance, another process has this place: this one ends
            self.worker.leave()

    def revoke(self, reason: str) -> None:
        """Throw the revocation in; what is under way has failed."""
        if not (self.is_over or self.worker.out_of_reach):
            self.is_over = self._revoked = True
            self.resume(PhaseRevoked(reason), revokes=True)

    def close(self) -> None:
        """End with the process."""
        self.is_over = True
        self._io.close()
        if self._beside is not None:
            self._beside.close()

    def is_stale(self, call: Callable[..., object], *args: Any) -> bool:
        """Return whether what comes now is not for this engine, or not yet: a stopped process hears it later."""
        return self.is_over or self.worker.halted(call, *args)

    def carry_out(self, request: Any, then: Then) -> Any:
        """Return the reply to a request; PENDING where `then` takes it later."""
        return self._carriers[type(request)](request, then)

    def compute(self, request: ComputeUnit, then: Then) -> Any:
        """Compute a unit's contribution, which takes as long as the worker's device takes."""
        loop, worker, unit = self._loop, self.worker, request.unit
        contribution = self._gradient(request.parameters, unit, self._wire)
        # Hot path: without a call where no worker is slow.
        secs = worker.unit_secs(unit) if self.simulated.slow else next(worker.seconds)
        loop.plan_later((loop.now + secs, loop.turn(), then, (contribution,)))
        return PENDING

    def _end(self, failure: str) -> None:
        self.is_over = True
        self.worker.end_phase(failure)

    # --- requests of every mode ---

    def _lease(self, request: LeaseUnits, then: Then) -> Any:
        simulated = self.simulated

        def given(reply: Any) -> None:
            if not self.is_over:
                if not isinstance(reply, HybridSyncError):
                    simulated.watch.leased(self.worker, self.phase, reply)
                then(reply)

        self.worker.calls.ask("lease", lambda: simulated.units_for(request.request), given)
        return PENDING

    def _run_beside(self, request: RunBeside, then: Then) -> Any:
        self._beside = PartBeside(self, request.io, then)
        self._beside.resume(None)
        return PENDING

    def _start(self, request: Start, then: Then) -> Ticket:
        ticket = EventTicket(self)
        reply = self.carry_out(request.request, ticket.complete)
        if reply is not PENDING:
            ticket.complete(reply)
        return ticket

    def _join(self, request: Join, then: Then) -> Any:
        ticket = request.ticket
        assert isinstance(ticket, EventTicket)
        if self._revoked and not ticket.done():
            return PhaseRevoked("the phase is over, and nobody answers any more")
        return ticket.join()
