"""Time as a value that is handed in: deadlines read `monotonic`, log stamps read `wall`, nothing else reads time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol


class Condition(Protocol):
    """Declares what is used of a `threading.Condition`: its lock, and waits that a notification or their time ends."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...

    def notify_all(self) -> None: ...


class Clock(Protocol):
    """A source of time; real in the runtimes, virtual in a simulation."""

    def monotonic(self) -> float:
        """Return seconds that never run backwards (CLOCK_MONOTONIC: shared by the processes of one host)."""
        ...

    def wall(self) -> float:
        """Return unix time in seconds, for log stamps only."""
        ...

    def condition(self) -> Condition:
        """Return a new condition whose waits take this clock's time."""
        ...


class SystemClock:
    """The machine's clocks."""

    def condition(self) -> Condition:
        return threading.Condition()

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
