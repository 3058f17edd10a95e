"""Carries out an engine's requests by blocking calls of this thread; what is begun goes to an executor.

How soon a blocked thread hears that its phase was revoked depends on its calls: the thread that revokes the phase makes
them raise. Once that has happened, every call in progress has to end soon, with a reply or an error, because an engine
that is revoked still waits for the end of what it began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from traceback import clear_frames
from typing import Any

from hybridsync.core.deadlines import MEMBERS_SECS
from hybridsync.core.errors import HybridSyncError
from hybridsync.core.futures import result_within
from hybridsync.worker.requests import IO, Join, Start

JOIN_SECS = 1.1 * MEMBERS_SECS
"""How long a thread waits for what was begun: longer than any call in it, shorter than a watchdog takes it for hung."""

Carriers = Mapping[type, Callable[[Any], Any]]
"""Kind of a request -> the call that carries it out; returns its reply, or raises."""


Beside = Mapping[type, Executor]
"""Kind of a request -> what carries it out when it is begun, beside the computation."""


class ThreadTicket:
    """A request that was begun (see `Ticket`).

    Args:
      where: executor that runs the call.
      call: carries out the request.
      now: monotonic seconds.
    """

    def __init__(self, where: Executor, call: Callable[[], Any], now: Callable[[], float]) -> None:
        self.span = (0.0, 0.0)
        self._future: Future[Any] = where.submit(self._carry_out, call, now)

    def done(self) -> bool:
        """Return whether it has ended (see `Ticket`)."""
        return self._future.done()

    def peek(self) -> Any:
        """Return its reply, if it is here (see `Ticket`)."""
        return self._future.result() if self._future.done() and self._future.exception() is None else None

    def result(self) -> Any:
        """Wait for the reply.

        Raises:
          WaitTimeout: the reply did not come in time.
          Exception: the error that the request met.
        """
        late = f"a request that was begun has not ended within {JOIN_SECS:g} s"
        return result_within(self._future, JOIN_SECS, late)

    def _carry_out(self, call: Callable[[], Any], now: Callable[[], float]) -> Any:
        started = now()
        try:
            return call()
        finally:
            self.span = started, now()


def drive(io: IO, carriers: Carriers, beside: Beside, now: Callable[[], float]) -> None:
    """Run an engine to its end.

    Args:
      io: requests of the engine.
      carriers: carry out the requests.
      beside: kind of a request -> executor that carries it out when it is begun.
      now: monotonic seconds, for the spans of tickets.

    Only a HybridSyncError is thrown into the engine, because it survives no other kind of error. A StopIteration of the
    user's code would come out of a generator as another error.

    Raises:
      HybridSyncError: the engine did not survive it.
      Exception: a request met it.
    """
    try:
        _drive(io, carriers, beside, now)
    except HybridSyncError as error:
        # Some frames refer to the error. In such a cycle they would keep what the phase works with, its links' memory
        # above all, until Python looks for cycles, which takes several phases.
        clear_frames(error.__traceback__)
        raise


def _drive(io: IO, carriers: Carriers, beside: Beside, now: Callable[[], float]) -> None:
    def begin(start: Start) -> ThreadTicket:
        request = start.request
        kind = type(request)
        return ThreadTicket(beside[kind], partial(carriers[kind], request), now)

    of_all: Carriers = {**carriers, Start: begin, Join: lambda join: join.ticket.result()}
    step: Callable[[Any], Any] = io.send
    value: Any = None
    try:
        while True:
            try:
                request = step(value)
            except StopIteration:
                return
            try:
                value, step = of_all[type(request)](request), io.send
            except HybridSyncError as error:
                value, step = error, io.throw
    finally:
        io.close()
