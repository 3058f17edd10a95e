"""Makes all servers of a phase enter it at once, and waits for the last of them while the record goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from hybridsync.chief.run_control import RunControl
from hybridsync.core.clock import Clock
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.errors import Preempted, RoleLost, WaitTimeout
from hybridsync.interfaces.messages import StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import ServerPort
from hybridsync.phases.member_waits import TICK_SECS

T = TypeVar("T")

SAY_SECS = 5.0
"""How long a hand-over goes on without a word, and between two words about it."""
SPARE_SECS = 60.0
"""A call on a server ends by itself; this much later it is given up without an answer."""

Begin = Callable[[Callable[[], StateVersion]], "Future[StateVersion]"]
"""Begins a call, and returns its end."""


def side_by_side(call: Callable[[], T]) -> Future[T]:
    """Run a call in a thread of its own, which keeps no process alive."""
    ended: Future[T] = Future()

    def run() -> None:
        try:
            ended.set_result(call())
        except BaseException as error:
            ended.set_exception(error)
            if not isinstance(error, Exception):
                raise

    threading.Thread(target=run, name="enter", daemon=True).start()
    return ended


def in_turn(call: Callable[[], T]) -> Future[T]:
    """Run a call to its end before the next one: a simulation has one thread."""
    ended: Future[T] = Future()
    ended.set_result(call())
    return ended


class ServerEntry:
    """Has servers take over the state of a phase.

    Args:
      control: the members and their reports; a wait there ends when something ends the phase.
      clock: for deadlines.
      tick: called every TICK_SECS meanwhile.
      say: shows the user a line when it takes long.
      begin: begins each server's call.
    """

    def __init__(
        self,
        control: RunControl,
        clock: Clock,
        tick: Callable[[], None],
        say: Callable[[str], None],
        begin: Begin = side_by_side,
    ) -> None:
        self._control, self._clock, self._tick, self._say, self._begin = control, clock, tick, say, begin

    def enter(self, phase: Phase, servers: Mapping[str, ServerPort], num_bytes: int) -> None:
        """Return when every server serves `phase`; one that is lost, or refuses, ends the wait at once.

        Args:
          phase: to enter.
          servers: address -> server, by their number.
          num_bytes: of the state that each fetches.

        Raises:
          PhaseBroken: the phase before was broken meanwhile.
          Preempted: the run was asked to stop.
          RoleLost: a server is gone.
          WaitTimeout: a server did not answer in time.
          HybridSyncError: what a server refused with.
        """
        calls: dict[str, Future[StateVersion]] = {}
        for address, server in servers.items():
            calls[address] = self._begin(partial(server.enter, phase))
            calls[address].add_done_callback(lambda ended: self._control.wake())
        started = self._clock.monotonic()
        secs = transfer_secs(num_bytes) + SPARE_SECS
        say_at = started + SAY_SECS
        while not self._control.wait_until(lambda: self._is_over(calls), TICK_SECS):
            waited = self._clock.monotonic() - started
            missing = [number for number, call in enumerate(calls.values()) if not call.done()]
            if waited > secs:
                raise WaitTimeout(f"servers {missing} have not answered within {secs:g} s")
            if started + waited >= say_at:
                say_at += SAY_SECS
                self._say(self._progress(phase, missing, num_bytes, waited))
            self._tick()
        self._judge(phase, calls)

    def _is_over(self, calls: Mapping[str, Future[StateVersion]]) -> bool:
        """Return whether nothing is left to wait for."""
        failed = any(call.done() and call.exception() is not None for call in calls.values())
        lost = not all(map(self._control.members.is_live, calls))
        return failed or lost or self._is_broken() or self._control.preempted or all(c.done() for c in calls.values())

    def _is_broken(self) -> bool:
        return bool(self._control.broken) and not self._control.gathering

    def _judge(self, phase: Phase, calls: Mapping[str, Future[StateVersion]]) -> None:
        """Raise what has ended the wait, unless every server has entered."""
        if all(call.done() and call.exception() is None for call in calls.values()):
            return
        if lost := [number for number, address in enumerate(calls) if not self._control.members.is_live(address)]:
            raise RoleLost(f"servers {lost} were lost while they entered phase {phase.id}")
        for call in calls.values():
            if call.done():
                call.result()
        if self._is_broken():
            raise self._control.as_broken()
        raise Preempted(f"asked to stop while servers enter phase {phase.id}; run the same command again")

    def _progress(self, phase: Phase, missing: list[int], num_bytes: int, waited: float) -> str:
        entering = [number for number in missing if number in self._control.members.entering()]
        silent = [number for number in missing if number not in entering]
        text = f"phase {phase.id}: the hand-over of {num_bytes / 1e6:,.1f} MB has taken {waited:.0f} s"
        text += f", servers {entering} are fetching it" if entering else ""
        return text + (f", servers {silent} have not said that they fetch it" if silent else "")
