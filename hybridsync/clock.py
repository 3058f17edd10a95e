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


def pause(secs: float) -> None:
    """Block this thread for `secs` seconds: emulated compute and injected delays, never a wait for an event."""
    if secs > 0:
        threading.Event().wait(secs)
