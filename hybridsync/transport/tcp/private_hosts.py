"""Decides which hosts buffers may go to: only those of a private network, because buffers are not encrypted."""

from __future__ import annotations

import ipaddress
import socket

from hybridsync.core.addresses import socket_path
from hybridsync.core.errors import AddressError

_PRIVATE = [
    ipaddress.ip_network(each)
    for each in (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "169.254.0.0/16",
        "::1/128",
        "fc00::/7",
        "fe80::/10",
    )
]


def bulk_host(address: str) -> str:
    """Return the host of a role's address: that of a unix socket is this one, by its loopback address.

    >>> bulk_host("unix:/sockets/chief"), bulk_host("10.0.0.2:4711"), bulk_host("[::1]:0")
    ('127.0.0.1', '10.0.0.2', '::1')
    """
    if socket_path(address) is not None:
        return "127.0.0.1"
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")


def private_host(host: str) -> str:
    """Return the numeric address of a host by which buffers may go to it.

    Args:
      host: a name, or an address.

    Raises:
      AddressError: the host has a public address, or none.
    """
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise AddressError(f"no buffers go to {host!r}: it has no address ({error.strerror or error})") from error
    public = sorted(each for each in found if not is_private(each))
    if public:
        raise AddressError(
            f"no buffers go to {host!r}: {public[0]} is no private address, and they are not encrypted; give the roles "
            "addresses of the loopback interface or of a private network (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, "
            "fc00::/7)"
        )
    return min(found)


def is_private(address: str) -> bool:
    """Return whether a numeric address is one of loopback or of a private network.

    >>> [is_private(each) for each in ("127.0.0.1", "10.1.2.3", "8.8.8.8", "0.0.0.0", "::ffff:8.8.8.8", "fd00::1")]
    [True, True, False, False, False, True]
    """
    found = ipaddress.ip_address(address)
    return any(found in network for network in _PRIVATE if network.version == found.version)
