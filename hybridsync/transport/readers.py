"""The way to whichever holder of the training state is read next."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hybridsync.transport.link import HolderLink


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
