"""The records with which gloo's members connect."""

from __future__ import annotations

import struct

import pytest

from hybridsync.collectives.mesh import gloo

NUMBERS = (-1, 3, 4)


def record(host: bytes = b"vm", address: bytes = bytes(136)) -> bytes:
    parts = struct.pack("=q", len(host)) + host + struct.pack("=q", len(address)) + address
    return parts + struct.pack("=3q", *NUMBERS)


def test_a_record_tells_what_a_connection_from_each_place_begins_with() -> None:
    expected = gloo.expected(record(), 3)
    assert expected is not None
    assert [struct.unpack("=q", number)[0] for number in expected] == list(NUMBERS)


def test_nowhere_is_the_same_record_at_a_port_where_nobody_listens() -> None:
    address = struct.pack("=H", 2) + struct.pack("!H", 40_000) + bytes([127, 0, 0, 1]) + bytes(128)
    made = gloo.nowhere(record(address=address), 3)
    assert made == record(address=address[:2] + struct.pack("!H", 1) + address[4:])


NEGATIVE = struct.pack("=q", -9) + bytes(64)


@pytest.mark.parametrize("other", [b"", b"short", record()[:-8], record() + bytes(8), NEGATIVE])
def test_a_record_of_another_format_is_left_alone(other: bytes) -> None:
    assert gloo.expected(other, 3) is None
    assert gloo.nowhere(other, 3) is None
