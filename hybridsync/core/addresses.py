"""Writes and reads addresses: `host:port`, or `unix:` and the path of a socket."""

from __future__ import annotations

from pathlib import Path

MAX_SOCKET_PATH = 107
"""Bytes of the path of a unix socket; the kernel allows no more."""

_UNIX = "unix:"


def at_port(host: str, port: int = 0) -> str:
    """Write an address as gRPC takes it.

    >>> at_port("127.0.0.1"), at_port("::1", 4711)
    ('127.0.0.1:0', '[::1]:4711')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def at_socket(path: Path) -> str:
    """Write the address of a unix socket as gRPC takes it.

    >>> at_socket(Path("/sockets/chief"))
    'unix:/sockets/chief'
    """
    return f"{_UNIX}{path}"


def socket_path(address: str) -> Path | None:
    """Return the path of a unix socket's address; None where it is another kind of address.

    >>> socket_path("unix:/sockets/chief"), socket_path("127.0.0.1:4711")
    (PosixPath('/sockets/chief'), None)
    """
    return Path(address.removeprefix(_UNIX)) if address.startswith(_UNIX) else None
