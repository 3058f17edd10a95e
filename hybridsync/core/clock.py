"""Time as a value that is handed in: deadlines read `monotonic`, log stamps read `wall`, nothing else reads time."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, TypeVar

from hybridsync.core.errors import HybridSyncError

T = TypeVar("T")


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


class Waits:
    """Lets several threads wait on one condition until something holds, their time is over, or the run has failed.

    Every method is called under the condition's lock, which a wait gives up while it lasts.

    Args:
      clock: clock for deadlines.
      condition: condition that all threads wait on.
    """

    def __init__(self, clock: Clock, condition: Condition) -> None:
        self._clock, self._condition = clock, condition
        self._failure: HybridSyncError | None = None

    def wait(self, deadline: float) -> bool:
        """Wait for one notification, `deadline` (monotonic seconds) at the latest; returns whether there was time."""
        remaining = deadline - self._clock.monotonic()
        return remaining > 0 and (self._condition.wait(remaining) or True)

    def wait_until(self, ready: Callable[[], bool], secs: float) -> bool:
        """Wait up to `secs` for `ready`; returns whether it is.

        Raises:
          HybridSyncError: the run cannot go on.
        """
        deadline = self._clock.monotonic() + secs
        while not ready():
            self.raise_failure()
            if not self.wait(deadline):
                return False
        return True

    def poll(self, answer: Callable[[], T | None], secs: float) -> T | None:
        """Ask until there is an answer, for up to `secs`; returns it, None where there is none."""
        deadline = self._clock.monotonic() + secs
        while (found := answer()) is None and self.wait(deadline):
            pass
        return found

    def fail(self, error: HybridSyncError) -> None:
        """End the run with `error`; the first one stays."""
        self._failure = self._failure or error
        self._condition.notify_all()

    @property
    def failure(self) -> HybridSyncError | None:
        """The error that ended the run, if one did."""
        return self._failure

    def raise_failure(self) -> None:
        """Raise the error that ended the run, if one did.

        Raises:
          HybridSyncError: that.
        """
        if self._failure is not None:
            raise self._failure


class SystemClock:
    """The machine's clocks, themselves: they are read many times between two gradients."""

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
