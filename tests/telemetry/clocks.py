"""A clock that stands still until a test moves it, and a run's time by it."""

import threading
from dataclasses import dataclass

from hybridsync.telemetry.events import Elapsed


@dataclass
class ManualClock:
    now: float = 100.0
    wall_now: float = 1_700_000_000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.wall_now

    def condition(self) -> threading.Condition:
        return threading.Condition()

    def advance(self, secs: float) -> None:
        self.now += secs
        self.wall_now += secs


def running(clock: ManualClock, t: float = 0.0) -> Elapsed:
    """Return the time of a run that leases the first unit of a session now, at its second `t`."""
    elapsed = Elapsed(clock, t)
    elapsed.begin(clock.monotonic())
    return elapsed
