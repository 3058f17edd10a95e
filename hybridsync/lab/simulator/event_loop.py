"""Virtual time: a heap of calls to come, and a clock whose waits carry them out.

One actor may block, the controller of a run: its waits pump the loop until they are notified or over. All other actors
are called. Calls due at the same time come in the order in which they were planned, so that a seed gives one course of
events.

>>> loop = Loop()
>>> loop.after(2.0, print, "second"); loop.after(1.0, print, "first")
>>> loop.run_until(5.0)
first
second
>>> loop.now
5.0
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from types import TracebackType
from typing import Any

from hybridsync.core.errors import HybridSyncError

Planned = tuple[float, int, Callable[..., object], tuple[Any, ...]]
"""When, in which turn among those of that time, and what to call."""
FOREVER = sys.float_info.max
STOPPED = -math.inf
"""The limit up to which a run goes on that is to end."""
NEVER: Planned = (math.inf, 0, print, ())
"""Behind everything that is planned: a heap is never empty, and this call is never carried out."""
WALL_ZERO = 0.0
"""Unix time at which every simulation starts: a record of it names no day."""


class Loop:
    """Calls to come, in the order of their time.

    Attributes:
      now: virtual seconds since the start.
      turn: () -> the next turn, for a call that is planned as a whole.
      plan: takes a whole call for a time that is not past, and soon. Transfers on their way through a network have a
        heap of their own, which stays small however many devices compute.
      plan_later: takes a whole call for a time that is not past.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._later: list[Planned] = [NEVER]
        self._soon: list[Planned] = [NEVER]
        # `at` and `after` without a call of Python, for what every unit does.
        self.turn: Callable[[], int] = itertools.count(1).__next__
        self.plan: Callable[[Planned], None] = partial(heappush, self._soon)
        self.plan_later: Callable[[Planned], None] = partial(heappush, self._later)
        self._num_looks = 0
        self._limit = FOREVER  # of the wait in progress

    @property
    def num_calls(self) -> int:
        """Calls that were carried out."""
        planned = self.turn() - 1 - self._num_looks  # a look takes a turn, too
        self._num_looks += 1
        return planned - (len(self._later) + len(self._soon) - 2)

    def at(self, time: float, call: Callable[..., object], *args: Any) -> None:
        """Plan a call for `time`, or for now where that is past."""
        heappush(self._later, (time if time > self.now else self.now, self.turn(), call, args))

    def after(self, secs: float, call: Callable[..., object], *args: Any) -> None:
        """Plan a call for `secs` from now."""
        heappush(self._later, (self.now + secs, self.turn(), call, args))

    def run(self, limit: float) -> bool:
        """Carry out what is due up to `limit`, or until `stop`; returns whether that was called."""
        later, soon, self._limit = self._later, self._soon, limit
        while True:
            heap = soon if soon[0] < later[0] else later
            planned = heappop(heap)
            now, _, call, args = planned
            if now > self._limit:
                heappush(heap, planned)
                return self._limit == STOPPED
            self.now = now
            call(*args)

    def stop(self) -> None:
        """End the `run` under way after the call that it is in."""
        self._limit = STOPPED

    def step(self, limit: float) -> bool:
        """Carry out the next call; False, with the clock at `limit`, where none is due until then."""
        heap = self._soon if self._soon[0] < self._later[0] else self._later
        if heap[0][0] > limit:
            self.now = max(self.now, limit)
            return False
        self.now, _, call, args = heappop(heap)
        call(*args)
        return True

    def run_until(self, time: float) -> None:
        """Carry out everything that is due up to `time`."""
        while self.step(time):
            pass


class VirtualClock:
    """A clock on a loop's time (see `hybridsync.core.clock.Clock`)."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._listener: Callable[[], None] | None = None
        # Without a frame of Python: engines read it at both ends of whatever they record.
        self.monotonic: Callable[[], float] = partial(getattr, loop, "now")

    def on_notify(self, listener: Callable[[], None]) -> None:
        """Call `listener` at every notification of any of this clock's conditions."""
        self._listener = listener

    def notified(self) -> None:
        """Tell the listener."""
        if self._listener is not None:
            self._listener()

    def wall(self) -> float:
        return WALL_ZERO + self._loop.now

    def condition(self) -> VirtualCondition:
        return VirtualCondition(self._loop, self)


class VirtualCondition:
    """A condition of virtual time: there is one thread, so its lock is none, and a wait lets the others act."""

    def __init__(self, loop: Loop, clock: VirtualClock) -> None:
        self._loop, self._clock = loop, clock
        self._pumping = False

    def __enter__(self) -> bool:
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def wait(self, timeout: float | None = None) -> bool:
        """Let others act until a notification, or for `timeout` virtual seconds; returns whether one came.

        Raises:
          HybridSyncError: nothing is planned that could ever notify a wait without a timeout.
        """
        assert not self._pumping, "two actors of a simulation wait at once; only the controller may block"
        loop = self._loop
        limit = FOREVER if timeout is None else loop.now + timeout
        self._pumping = True
        try:
            if loop.run(limit):
                return True
        finally:
            self._pumping = False
        if timeout is None:
            raise HybridSyncError("a simulated wait without a deadline can never end: nothing is planned")
        loop.now = max(loop.now, limit)
        return False

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `predicate` holds, or for `timeout` virtual seconds; returns whether it does."""
        limit = None if timeout is None else self._loop.now + timeout
        while not predicate():
            left = None if limit is None else limit - self._loop.now
            if left is not None and left <= 0:
                return False
            self.wait(left)
        return True

    def notify_all(self) -> None:
        """End the current wait."""
        if self._pumping:
            self._loop.stop()
        self._clock.notified()
