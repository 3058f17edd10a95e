"""Tells of certificates that are good for a short time only, before they end a run in progress.

A connection does not end with its certificate, but no new one comes about: a host that was away for a moment would not
come back, and the head would hear of no host any more.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable

SOON_SECS = 24 * 3600.0
"""So long before its end a certificate is told of."""


class Expiries:
    """Knows when the certificates of a run's hosts end; the lock guards all fields.

    Args:
      ends_at: certificate as PEM -> unix seconds of its end.
    """

    def __init__(self, ends_at: Callable[[str], float]) -> None:
        self._ends_at, self._lock = ends_at, threading.Lock()
        self._ends: dict[str, float] = {}
        self._told: dict[str, float] = {}

    def note(self, holder: str, certificate: str) -> None:
        """Take note of the certificate that a holder, such as "host 2", shows now."""
        ends = self._ends_at(certificate)
        with self._lock:
            self._ends[holder] = ends

    def due(self, now: float) -> list[str]:
        """Return a line for each certificate that ends soon, or has ended: once for each.

        Args:
          now: time of the call, in unix seconds.
        """
        with self._lock:
            soon = {who: ends for who, ends in self._ends.items() if ends - now < SOON_SECS}
            due = {who: ends for who, ends in soon.items() if ends != self._told.get(who)}
            self._told.update(due)
        return [_line(who, ends) for who, ends in sorted(due.items())]


def _line(holder: str, ends: float) -> str:
    until = datetime.datetime.fromtimestamp(ends, datetime.UTC)
    made = "rotate --folder=DIR" if holder == "the head" else "issue --replace --folder=DIR --host=INDEX --out=DIR"
    return (
        f"the certificate of {holder} is good until {until:%Y-%m-%d %H:%M} UTC; later connections are refused: make "
        f"another one with hybridsync certs {made}"
    )
