"""Proves at both ends of a socket that they know the key of one connection, before anything else is read. Pure.

The caller sends a hello: which connection, which of its sockets, and a nonce. The role answers with a nonce of its own
and its proof, the caller with its proof: HMAC-SHA256 of all these, under the key that the role has given to the caller
over the other link. Every message has a fixed length.

    >>> caller, role = HandshakeKey(b"c" * 16, b"k" * 32), HandshakeKey(b"c" * 16, b"k" * 32)
    >>> hello = Hello(b"c" * 16, 1, b"n" * 32)
    >>> caller.is_proof(ROLE, hello, b"m" * 32, role.proof(ROLE, hello, b"m" * 32))
    True
    >>> role.is_proof(CALLER, hello, b"m" * 32, role.proof(ROLE, hello, b"m" * 32))
    False
    >>> caller
    HandshakeKey(connection_id=b'cccccccccccccccc')
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

ID_BYTES, KEY_BYTES, NONCE_BYTES, PROOF_BYTES = 16, 32, 32, 32

CALLER, ROLE = b"caller", b"role"
"""The two ends of a proof: an end's own proof cannot be sent back to it as the other's."""

_HELLO = struct.Struct(f"!8s{ID_BYTES}sB{NONCE_BYTES}s")
_GREETING = b"HSbulk01"

HELLO_BYTES, ANSWER_BYTES = _HELLO.size, NONCE_BYTES + PROOF_BYTES


class Hello(NamedTuple):
    """The first message of a caller on each socket.

    Args:
      connection_id: random bytes that the role has given to the caller.
      lane: number of this socket in the connection, from 0 on.
      nonce: drawn for this socket.
    """

    connection_id: bytes
    lane: int
    nonce: bytes

    def pack(self) -> bytes:
        """Return its bytes, `HELLO_BYTES` of them."""
        return _HELLO.pack(_GREETING, *self)


def unpack_hello(data: bytes) -> Hello | None:
    """Return the hello in `HELLO_BYTES` bytes; None where they are none.

    >>> unpack_hello(Hello(b"c" * 16, 1, b"n" * 32).pack()).lane, unpack_hello(bytes(HELLO_BYTES))
    (1, None)
    """
    greeting, *fields = _HELLO.unpack(data)
    return Hello(*fields) if greeting == _GREETING else None


@dataclass(frozen=True)
class HandshakeKey:
    """Proves one connection.

    Args:
      connection_id: `ID_BYTES` bytes.
      key: `KEY_BYTES` bytes.
    """

    connection_id: bytes
    key: bytes = field(repr=False)

    def proof(self, whose: bytes, hello: Hello, role_nonce: bytes) -> bytes:
        """Return the proof of an end, `PROOF_BYTES` bytes, for one socket."""
        return hmac.digest(self.key, b"|".join((whose, hello.pack(), role_nonce)), hashlib.sha256)

    def is_proof(self, whose: bytes, hello: Hello, role_nonce: bytes, shown: bytes) -> bool:
        """Return whether an end has shown its proof; takes as long whatever is wrong with it."""
        return hmac.compare_digest(self.proof(whose, hello, role_nonce), shown)
