"""Holds what a process proves itself with, and lets it be exchanged while calls go on.

A new token reaches the roles of a run one after another. So the former one is good for a while beside it: a caller
shows both, and a role accepts either. Whichever of the two has heard of the new token first, they agree.
"""

from __future__ import annotations

import contextlib
import hmac
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hybridsync.core.clock import SYSTEM_CLOCK, Clock
from hybridsync.security.credentials import Credentials

OVERLAP_SECS = 60.0
"""How long a former token is shown and accepted, counted by each process from when it was given the new one."""

MOST_SHOWN = 16
"""Tokens that a call may show; a run is given new ones too seldom for more to be good at a time."""


@dataclass(frozen=True)
class _Former:
    token: str
    until: float


class Keyring:
    """Holds the run's token and the credentials of this process; threads may call it.

    Each of its fields is replaced as a whole, so that readers need no lock. The lock is for the thread that follows
    exchanges.

    Args:
      token: of the run: shown in each call, and asked for; "" for none.
      credentials: with which this process serves and dials over TLS; None for no TLS.
      clock: for how long a former token is good.
    """

    def __init__(self, token: str = "", credentials: Credentials | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._token, self._credentials, self._clock = token, credentials, clock
        self._former: tuple[_Former, ...] = ()
        self._lock = threading.Lock()
        self._heed: Callable[[], None] | None = None

    @property
    def token(self) -> str:
        """The newest token."""
        return self._token

    @property
    def credentials(self) -> Credentials | None:
        """The newest credentials; None for no TLS."""
        return self._credentials

    def exchange(self, token: str, credentials: Credentials | None) -> None:
        """Take new ones; the former token is good for `OVERLAP_SECS` more.

        New connections are made with the new credentials. Those that are there live on.

        Args:
          token: the new one, or the same.
          credentials: the new ones, or the same; a process with TLS stays one with TLS.
        """
        assert (credentials is None) == (self._credentials is None), "TLS is neither begun nor ended by an exchange"
        assert bool(token) == bool(self._token), "a process asks for a token from its start, or never"
        if token != self._token:
            now = self._clock.monotonic()
            kept = tuple(each for each in self._former if each.token != token)
            self._former = (_Former(self._token, now + OVERLAP_SECS), *kept)
            self._token = token
        self._credentials = credentials
        with self._lock:
            if self._heed is not None:
                self._heed()

    @contextlib.contextmanager
    def followed_by(self, heed: Callable[[], None]) -> Iterator[None]:
        """Call `heed` now, and after each exchange until the end of the block; two calls never overlap."""
        with self._lock:
            self._heed = heed
            heed()
        try:
            yield
        finally:
            with self._lock:
                self._heed = None

    def shown(self) -> tuple[str, ...]:
        """Return the tokens that a call shows, the newest first; none where there is no token."""
        now = self._clock.monotonic()
        former = tuple(each.token for each in self._former if now < each.until)
        return (self._token, *former) if self._token else ()

    def accepts(self, shown: Sequence[str]) -> bool:
        """Return whether a call that shows these tokens is one of this run."""
        if len(shown) > MOST_SHOWN or len(set(shown)) != len(shown):
            return False
        good = self.shown()
        # Compared in constant time, and every pair: how long it takes says nothing about how much of a guess was right.
        same = [hmac.compare_digest(mine.encode(), theirs.encode()) for mine in good for theirs in shown]
        return any(same)


NO_KEYS = Keyring()
"""Of a process that neither shows nor asks for anything; it is never exchanged."""
