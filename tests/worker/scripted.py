"""Drives engines by hand: a test answers each request, and says when what was begun ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridsync.core.errors import HybridSyncError
from hybridsync.worker.member import PhaseMember
from hybridsync.worker.requests import IO, Join, Start
from hybridsync.worker.stats import WorkerRecorder
from tests.roles import phase_of
from tests.telemetry.clocks import ManualClock


class Ticket:
    """A request that was begun; it ends when it is joined, or when a test says so."""

    def __init__(self, end: Callable[[], Any]) -> None:
        self._end = end
        self.span = (0.0, 0.0)
        self._reply: Any = None
        self._error: HybridSyncError | None = None
        self._is_done = False

    def end(self) -> None:
        if self._is_done:
            return
        self._is_done = True
        try:
            self._reply = self._end()
        except HybridSyncError as error:
            self._error = error

    def done(self) -> bool:
        return self._is_done

    def peek(self) -> Any:
        return self._reply

    def result(self) -> Any:
        self.end()
        if self._error is not None:
            raise self._error
        return self._reply


class Script:
    """Answers an engine's requests.

    Args:
      answer: request -> reply; raises what the request meets.
    """

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self._answer = answer
        self.requests: list[Any] = []
        self.begun: list[Ticket] = []

    def drive(self, io: IO) -> Any:
        """Run an engine, or a part of one, to its end; returns what that returns."""
        step: Callable[[Any], Any] = io.send
        value: Any = None
        while True:
            try:
                request = step(value)
            except StopIteration as end:
                return end.value
            self.requests.append(request)
            try:
                value, step = self._carry_out(request), io.send
            except HybridSyncError as error:
                step, value = io.throw, error

    def _carry_out(self, request: Any) -> Any:
        if isinstance(request, Start):
            self.begun.append(Ticket(lambda: self._answer(request.request)))
            return self.begun[-1]
        if isinstance(request, Join):
            assert isinstance(request.ticket, Ticket)
            return request.ticket.result()
        return self._answer(request)


def member_of(spec: str = "asp", worker: int = 2, clock: ManualClock | None = None) -> PhaseMember:
    """Return a worker of incarnation 1 in phase 1."""
    recorder = WorkerRecorder(worker, clock or ManualClock(), keep_spans=False)
    recorder.incarnation = 1
    phase = phase_of(1, spec)
    recorder.enter(phase.id)
    return PhaseMember(worker, phase, recorder)
