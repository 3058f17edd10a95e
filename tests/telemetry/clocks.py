"""A clock that stands still until a test moves it."""

import threading
from dataclasses import dataclass


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
