"""Estimates how far other hosts' clocks are from the chief's, from the heartbeats that run anyway.

>>> offsets = ClockOffsets()
>>> offsets.add("worker", 0, Exchange(sent=5.0, received=10.02, replied=10.03, returned=5.05))
>>> round(offsets.secs("worker", 0), 3)
5.0
"""

from collections import deque

from hybridsync.interfaces.reports import Exchange

WINDOW = 64
"""Heartbeats that are remembered of each role: about a minute, in which clocks drift by microseconds."""

ROUNDING = 1e-6
"""Seconds by which floating point may put a round trip below zero."""


class ClockOffsets:
    """Takes each role's offset from the fastest of its last WINDOW exchanges.

    What delays a message makes its round trip longer, so the fastest exchange errs least. A clock that may be the
    chief's own, by that exchange, is taken to be: roles on one host share theirs, and nothing there is to be moved.

    Source: the clock filter of NTP, RFC 5905 section 10, reduced to the minimum over a window.
    """

    def __init__(self) -> None:
        self._exchanges: dict[tuple[str, int], deque[Exchange]] = {}

    def add(self, role: str, role_id: int, exchange: Exchange) -> None:
        """Record an exchange. Ignores one with a negative round trip, whose timestamps contradict each other."""
        if exchange.round_trip >= -ROUNDING:
            self._exchanges.setdefault((role, role_id), deque(maxlen=WINDOW)).append(exchange)

    def forget(self, role: str, role_id: int) -> None:
        """Drop what is known of a role: its next process may run on another host."""
        self._exchanges.pop((role, role_id), None)

    def secs(self, role: str, role_id: int) -> float:
        """Return the seconds to add to a role's clock to have the chief's; 0 while nothing is known.

        Wrong by half the smallest round trip at most, by all of it where the answer is 0.
        """
        best = self.best(role, role_id)
        if best is None or abs(best.offset) <= best.round_trip / 2 + ROUNDING:
            return 0.0
        return best.offset

    def stamp(self, role: str, role_id: int, secs: float) -> float:
        """Return a stamp of a role's clock by the chief's; 0 stands for none, and stays."""
        return secs + self.secs(role, role_id) if secs else 0.0

    def best(self, role: str, role_id: int) -> Exchange | None:
        """Return the exchange that errs least; None while nothing is known."""
        exchanges = self._exchanges.get((role, role_id))
        return min(exchanges, key=lambda exchange: exchange.round_trip) if exchanges else None
