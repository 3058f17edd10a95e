"""Asks the chief for one simulated process. Where messages may be lost, a call is repeated until it is answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridsync.core.errors import NotRegistered, StaleIncarnation

if TYPE_CHECKING:
    from hybridsync.lab.simulator.simulated_process import Process

CALL_SECS = 1.5
"""After so long without an answer a call is repeated."""


class Call(NamedTuple):
    """One call of a process: of the calls of its kind the number says which is the newest.

    Args:
      answer: returns the chief's answer; None while there is none.
      then: called with the answer, or the error that it was.
    """

    process: Process
    kind: str
    number: int
    answer: Callable[[], Any]
    then: Callable[[Any], object]


class ChiefCalls:
    """Asks the chief for one process.

    Args:
      process: process that asks.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._numbers: dict[str, int] = {}

    def ask(self, kind: str, answer: Callable[[], Any], then: Callable[[Any], object]) -> None:
        """Ask the chief; `then` gets the answer, or the error that it was.

        A later call of the same kind takes the place of this one.

        Args:
          kind: kind of the call.
          answer: computes the chief's answer; returns None while there is none; repeating it is harmless.
          then: called with the answer, or the error.
        """
        number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
        self._send(Call(self._process, kind, number, answer, then))

    def on_reply(self, call: Call, reply: Any) -> None:
        """Act on an answer of the chief, unless it is a late or a second one."""
        process = self._process
        if process.halted(self.on_reply, call, reply) or self._numbers.get(call.kind) != call.number:
            return
        if isinstance(reply, NotRegistered):  # a restarted chief: register, and repeat the call
            process.register()
            return
        self._numbers[call.kind] = call.number + 1  # whatever comes for that number from now on is late
        if isinstance(reply, StaleIncarnation):
            process.leave()
        else:
            call.then(reply)

    def _send(self, call: Call) -> None:
        simulated, process = self._process.simulated, self._process
        simulated.network.message(process.port, simulated.chief.call, call)
        if not simulated.network.reliable:
            simulated.loop.after(CALL_SECS, self._repeat, call)

    def _repeat(self, call: Call) -> None:
        if self._process.halted(self._repeat, call) or self._numbers.get(call.kind) != call.number:
            return
        self._send(call)
