"""The TCP sockets of this process, found through /proc: for libraries that do not name theirs."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

Endpoint = tuple[str, int]


def listening() -> set[Endpoint]:
    """Return the (host, port) that this process listens on."""
    return {
        endpoint for sock in _sockets() if _listens(sock) and (endpoint := endpoint_of(sock.getsockname())) is not None
    }


def shut_down_connected(own: Endpoint, peers: set[Endpoint]) -> int:
    """Shut down the connections that were accepted at `own` or made to one of `peers`; listeners live on.

    A thread that is blocked on such a connection gets an error at once.

    Returns:
      How many were shut down.
    """
    count = 0
    for sock in _sockets():
        try:
            if _listens(sock):
                continue
            if endpoint_of(sock.getsockname()) == own or endpoint_of(sock.getpeername()) in peers:
                sock.shutdown(socket.SHUT_RDWR)
                count += 1
        except OSError:  # not connected, or no longer
            continue
    return count


def endpoint_of(address: Any) -> Endpoint | None:
    """Reduce a socket's address to (host, port); None where it is no internet address.

    >>> endpoint_of(("::ffff:127.0.0.1", 80, 0, 0))
    ('127.0.0.1', 80)
    >>> endpoint_of("/run/socket")
    """
    if not isinstance(address, tuple):
        return None
    return str(address[0]).removeprefix("::ffff:"), int(address[1])


def _listens(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _sockets() -> Iterator[socket.socket]:
    """Yield each socket of this process as a duplicate, which is closed afterwards."""
    for entry in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            duplicate = socket.socket(fileno=os.dup(int(entry)))
        except OSError:  # closed meanwhile
            continue
        with duplicate:
            yield duplicate
