"""Parses and makes the records by which gloo's members find each other before they connect. Pure.

Each member of a communicator publishes one record: its host's name and its listener's address, each preceded by its
length, and the number of the connection that it expects from each place of the mesh:

    int64 n, n bytes, int64 m, m bytes (a sockaddr_storage, then an int64), int64 for every place

Gloo waits 30 s for a member that dies before it has published, or before it has connected. `nowhere` is the record of
such a member, with which the wait ends at once; a connection that begins with an `expected` number ends the other one.
"""

from __future__ import annotations

import struct

_NUMBER = struct.Struct("=q")
_PORT = struct.Struct("!H")
_PORT_OFFSET = 2
_CLOSED_PORT = 1
"""Nobody listens there; of two members the one with the higher port connects, so nobody waits for that one to come."""


def expected(record: bytes, num_places: int) -> tuple[bytes, ...] | None:
    """Return what a connection from each place of the mesh begins with; None where the record is of another format.

    >>> record = b"".join(map(_NUMBER.pack, (0, 8, 0, 5, 6)))
    >>> [_NUMBER.unpack(number)[0] for number in expected(record, 2)]
    [5, 6]
    >>> expected(record, 3)
    """
    address = _address(record, num_places)
    if address is None:
        return None
    return tuple(record[at : at + _NUMBER.size] for at in range(address.stop, len(record), _NUMBER.size))


def nowhere(record: bytes, num_places: int) -> bytes | None:
    """Return the record of a member at which nobody listens, made from another's; None if that is of another format."""
    address = _address(record, num_places)
    if address is None:
        return None
    port = address.start + _PORT_OFFSET
    return record[:port] + _PORT.pack(_CLOSED_PORT) + record[port + _PORT.size :]


def _address(record: bytes, num_places: int) -> slice | None:
    """Return where the address stands."""
    start = end = 0
    for _ in range(2):  # the host's name, then the address
        start = end + _NUMBER.size
        if start > len(record):
            return None
        (length,) = _NUMBER.unpack_from(record, end)
        if length < 0:
            return None
        end = start + length
    whole = end + num_places * _NUMBER.size == len(record)
    return slice(start, end) if whole and end - start >= _NUMBER.size else None
