"""Ways to roles by their addresses: a client of each that is reached, and one link to the holder that is read next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from hybridsync.transport.link import HolderLink


class Closable(Protocol):
    """A client with a channel."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class Directory(Generic[C]):
    """Finds the client of an address; the lock guards the clients.

    Args:
      make: address -> client.
      is_live: whether a role serves at the address; a client of one that is gone is closed at the next call.
    """

    def __init__(self, make: Callable[[str], C], is_live: Callable[[str], bool]) -> None:
        self._make, self._is_live = make, is_live
        self._lock = threading.Lock()
        self._clients: dict[str, C] = {}

    def __call__(self, address: str) -> C:
        """Return the client of `address`."""
        with self._lock:
            gone = [known for known in self._clients if known != address and not self._is_live(known)]
            closed = [self._clients.pop(known) for known in gone]
            if address not in self._clients:
                self._clients[address] = self._make(address)
            client = self._clients[address]
        for former in closed:
            former.close()
        return client


class Readers:
    """One open link to a holder, which another thread may close.

    The lock guards the link.

    Args:
      connect: address -> link to the holder there.
    """

    def __init__(self, connect: Callable[[str], HolderLink]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._link: HolderLink | None = None

    def __call__(self, address: str) -> HolderLink:
        """Return a link to the holder at `address`; the one before is closed."""
        link = self._connect(address)
        with self._lock:
            former, self._link = self._link, link
        if former is not None:
            former.close()
        return link

    def close(self) -> None:
        """End the read under way, with RoleLost; a later one opens another link."""
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            link.close()
