"""Waits under the run's one lock, and the error that ends all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hybridsync.core.clock import Clock, Condition
from hybridsync.core.errors import HybridSyncError

T = TypeVar("T")


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
