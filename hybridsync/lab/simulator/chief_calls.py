"""Asks the chief for one simulated process. Where messages may be lost, a call is repeated until it is answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hybridsync.core.errors import NotRegistered, StaleIncarnation

if TYPE_CHECKING:
    from hybridsync.lab.simulator.simulated_process import Process

CALL_SECS = 1.5
"""After so long without an answer a call is repeated."""


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
        self._send(kind, number, answer, then)

    def on_reply(self, kind: str, number: int, then: Callable[[Any], object], reply: Any) -> None:
        """Act on an answer of the chief, unless it is a late or a second one."""
        process = self._process
        if process.halted(self.on_reply, kind, number, then, reply) or self._numbers.get(kind) != number:
            return
        if isinstance(reply, NotRegistered):  # a restarted chief: register, and repeat the call
            process.register()
            return
        self._numbers[kind] = number + 1  # whatever comes for that number from now on is late
        if isinstance(reply, StaleIncarnation):
            process.leave()
        else:
            then(reply)

    def _send(self, kind: str, number: int, answer: Callable[[], Any], then: Callable[[Any], object]) -> None:
        simulated, process = self._process.simulated, self._process
        simulated.network.message(process.port, simulated.chief.call, process, kind, number, answer, then)
        if not simulated.network.reliable:
            simulated.loop.after(CALL_SECS, self._repeat, kind, number, answer, then)

    def _repeat(self, kind: str, number: int, answer: Callable[[], Any], then: Callable[[Any], object]) -> None:
        if self._process.halted(self._repeat, kind, number, answer, then) or self._numbers.get(kind) != number:
            return
        self._send(kind, number, answer, then)
