"""Time as a value that is handed in: deadlines read `monotonic`, log stamps read `wall`, nothing else reads time."""

from __future__ import annotations

import ctypes
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
        """Return unix time in seconds, for log stamps and the dates of certificates only."""
        ...

    def condition(self) -> Condition:
        """Return a new condition whose waits take this clock's time."""
        ...


class SystemClock:
    """The machine's clocks, without a call of this module on the way to them."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def condition(self) -> Condition:
        return threading.Condition()


SYSTEM_CLOCK = SystemClock()


_WAKE_SECS = 0.0001
"""How late an idle machine wakes a sleeper that it is told not to keep waiting."""
_PR_SET_TIMERSLACK, _SOON_NSECS = 29, 1
_LIBC = ctypes.CDLL(None)


def pause(secs: float) -> None:
    """Block this thread for `secs` seconds: emulated compute and injected delays, never a wait for an event.

    An emulated device is busy for exactly `secs`, without the time that the machine takes to wake up: the end of the
    time is polled. Linux may wake a sleeper 50 us late to save wake-ups; this thread's sleeps end at once from now on,
    so that the processor is not polled away from others for long.
    """
    until = time.monotonic() + secs
    if secs > _WAKE_SECS:
        _LIBC.prctl(_PR_SET_TIMERSLACK, _SOON_NSECS, 0, 0, 0)
        threading.Event().wait(secs - _WAKE_SECS)
    while time.monotonic() < until:
        pass
