"""Tells a role that is not there from one with which no connection comes about, by the words of gRPC's errors."""

from __future__ import annotations

from hybridsync.core.errors import HandshakeRefused

MOST_REFUSED = 3
"""Handshakes that this end has ended, after which nothing else is to be expected."""

CLOSED_SECS = 10.0
"""For how long a role may close each connection at once: one that ends does so, too, and so does one behind a relay."""

_REFUSED = ("handshake failed", "SSL_ERROR", "verification check failed")
_NOT_CONNECTED = "failed to connect to all addresses"
_CLOSED = ("Socket closed", "Connection reset by peer", "Broken pipe")


class Handshakes:
    """Judges the failures of one call, one after the other.

    With TLS 1.3 a client has ended its handshake before the server looks at its certificate, so that it only sees its
    connection closed. So does one that speaks plain text to a server with TLS.

    Args:
      who: the role that is called, for errors.
      what: the call, for errors.
    """

    def __init__(self, who: str, what: str) -> None:
        self._who, self._what = who, what
        self._num_refused = 0
        self._closed_since: float | None = None

    def after(self, text: str, now: float, *, is_last: bool) -> HandshakeRefused | None:
        """Return what ends the call after another failure; None where it may be tried again.

        Args:
          text: text of gRPC's error.
          now: monotonic seconds.
          is_last: whether the call's time is over.
        """
        self._num_refused = self._num_refused + 1 if any(each in text for each in _REFUSED) else 0
        is_closed = text.startswith(_NOT_CONNECTED) and text.rstrip().endswith(_CLOSED)
        self._closed_since = (now if self._closed_since is None else self._closed_since) if is_closed else None
        if self._num_refused >= MOST_REFUSED or (is_last and self._num_refused):
            return HandshakeRefused(
                f"{self._who} and this process do not agree on TLS for {self._what} ({text}): is TLS on at both ends, "
                "are both certificates of one authority and in date, and is this the role's address?"
            )
        if self._closed_since is not None and (is_last or now - self._closed_since >= CLOSED_SECS):
            return HandshakeRefused(
                f"{self._who} closes each connection before {self._what} ({text}): is TLS on at both ends, and is this "
                "process's certificate of the same authority and in date?"
            )
        return None
