"""Time as a value that is handed in: deadlines read `monotonic`, log stamps read `wall`, nothing else reads time."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time; real in the runtimes, virtual in a simulation."""

    def monotonic(self) -> float:
        """Return seconds that never run backwards (CLOCK_MONOTONIC: shared by the processes of one host)."""
        ...

    def wall(self) -> float:
        """Return unix time in seconds, for log stamps only."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


SYSTEM_CLOCK = SystemClock()


_WAKE_SECS = 0.0003
"""How late an idle machine wakes a sleeper."""


def pause(secs: float) -> None:
    """Block this thread for `secs` seconds: emulated compute and injected delays, never a wait for an event.

    An emulated device is busy for as long as it says, not for as long as the machine takes to wake up: the end of the
    time is polled.
    """
    until = time.monotonic() + secs
    if secs > _WAKE_SECS:
        threading.Event().wait(secs - _WAKE_SECS)
    while time.monotonic() < until:
        pass
