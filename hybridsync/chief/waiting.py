"""One lock, what is waited for under it, and the error that ends every wait."""

from __future__ import annotations

from collections.abc import Callable

from hybridsync.clock import Clock
from hybridsync.errors import HybridSyncError


class Waiting:
    """Waits of several threads on one condition, which a failure of the run ends.

    Args:
      clock: for deadlines.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._condition = clock.condition()
        self._failure: HybridSyncError | None = None

    def wait_until(self, ready: Callable[[], bool], secs: float) -> bool:
        """Wait up to `secs` for `ready`, whatever else happens; returns whether it is.

        Raises:
          HybridSyncError: the run cannot go on.
        """
        with self._condition:
            deadline = self._clock.monotonic() + secs
            while not ready():
                self.raise_failure()
                if not self._wait(deadline):
                    return False
            return True

    def fail(self, error: HybridSyncError) -> None:
        """End the run with `error`."""
        with self._condition:
            self._failure = self._failure or error
            self._condition.notify_all()

    def wake(self) -> None:
        """Have everybody who waits look again: something ended that the board is not told of."""
        with self._condition:
            self._condition.notify_all()

    @property
    def failure(self) -> HybridSyncError | None:
        """What ended the run, if anything did."""
        return self._failure

    def raise_failure(self) -> None:
        """Raise what ended the run, if anything did.

        Raises:
          HybridSyncError: that.
        """
        if self._failure is not None:
            raise self._failure

    def _wait(self, deadline: float) -> bool:
        remaining = deadline - self._clock.monotonic()
        return remaining > 0 and (self._condition.wait(remaining) or True)
