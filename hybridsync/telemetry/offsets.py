"""How far other hosts' clocks are from the chief's, estimated from the heartbeats that run anyway.

>>> offsets = ClockOffsets()
>>> offsets.add("worker", 0, Exchange(sent=5.0, received=10.02, replied=10.03, returned=5.05))
>>> round(offsets.secs("worker", 0), 3)
5.0
"""

from collections import deque
from dataclasses import dataclass

WINDOW = 64
"""Heartbeats that are remembered of each role: about a minute, in which clocks drift by microseconds."""


ROUNDING = 1e-6
"""Seconds by which floating point may put a round trip below zero."""


@dataclass(frozen=True)
class Exchange:
    """A role's heartbeat and the chief's answer, stamped by both monotonic clocks in seconds.

    Args:
        sent: by the role's clock.
        received: by the chief's clock.
        replied: by the chief's clock.
        returned: by the role's clock.
    """

    sent: float
    received: float
    replied: float
    returned: float

    @property
    def round_trip(self) -> float:
        """Seconds on the way, there and back, without what the chief took."""
        return (self.returned - self.sent) - (self.replied - self.received)

    @property
    def offset(self) -> float:
        """Seconds to add to the role's clock to have the chief's; wrong by half the round trip at most."""
        return ((self.received - self.sent) + (self.replied - self.returned)) / 2


class ClockOffsets:
    """Takes each role's offset from the fastest of its last WINDOW exchanges.

    What delays a message makes its round trip longer, so the fastest exchange errs least.

    Source: the clock filter of NTP, RFC 5905 section 10, reduced to the minimum over a window.
    """

    def __init__(self) -> None:
        self._exchanges: dict[tuple[str, int], deque[Exchange]] = {}

    def add(self, role: str, role_id: int, exchange: Exchange) -> None:
        """Take an exchange; one with a round trip below zero is none, its stamps contradict each other."""
        if exchange.round_trip >= -ROUNDING:
            self._exchanges.setdefault((role, role_id), deque(maxlen=WINDOW)).append(exchange)

    def forget(self, role: str, role_id: int) -> None:
        """Drop what is known of a role: its next process may run on another host."""
        self._exchanges.pop((role, role_id), None)

    def secs(self, role: str, role_id: int) -> float:
        """Return the seconds to add to a role's clock to have the chief's; 0 while nothing is known."""
        best = self.best(role, role_id)
        return best.offset if best else 0.0

    def best(self, role: str, role_id: int) -> Exchange | None:
        """Return the exchange that errs least; None while nothing is known."""
        exchanges = self._exchanges.get((role, role_id))
        return min(exchanges, key=lambda exchange: exchange.round_trip) if exchanges else None
