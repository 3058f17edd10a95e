"""Ways to roles by their addresses: a link to each that is called, and one link to the holder that is read next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from hybridsync.transport.link import Link

P = TypeVar("P")


class Directory(Generic[P]):
    """Finds the role at an address; the lock guards the links.

    Args:
      connect: address -> link to the role there.
      is_live: whether a role serves at the address; a link to one that is gone is closed at the next call.
    """

    def __init__(self, connect: Callable[[str], Link[P]], is_live: Callable[[str], bool]) -> None:
        self._connect, self._is_live = connect, is_live
        self._lock = threading.Lock()
        self._links: dict[str, Link[P]] = {}

    def __call__(self, address: str) -> P:
        """Return the role at `address`."""
        with self._lock:
            gone = [known for known in self._links if known != address and not self._is_live(known)]
            closed = [self._links.pop(known) for known in gone]
            if address not in self._links:
                self._links[address] = self._connect(address)
            link = self._links[address]
        for former in closed:
            former.close()
        return link.port


class Readers(Generic[P]):
    """One open link to a holder, which another thread may close.

    The lock guards the link.

    Args:
      connect: address -> link to the holder there.
    """

    def __init__(self, connect: Callable[[str], Link[P]]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._link: Link[P] | None = None

    def __call__(self, address: str) -> P:
        """Return the holder at `address`; the link before is closed."""
        link = self._connect(address)
        with self._lock:
            former, self._link = self._link, link
        if former is not None:
            former.close()
        return link.port

    def close(self) -> None:
        """End the read under way, with RoleLost; a later one opens another link."""
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            link.close()
