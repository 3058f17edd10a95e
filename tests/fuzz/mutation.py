"""Hostile messages made of good ones, by the messages' own descriptors: a new field is fuzzed without a line here."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

from google.protobuf.message import Message

from hybridsync.protocols import REGISTRY

INTEGERS = (0, 1, -1, 2, 3, 4, 5, 39, 40, 41, 1000, 2**31 - 1, 2**31, -(2**31), 2**53, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e308, 5e-324, 1e18)
LENGTHS = (0, 1, 2, 10, 300)
LONG = (10_001, 100_000)
"""Lists that no role sends; rare, because each takes as long as a hundred others."""


def _specs() -> list[str]:
    """Return every protocol, with each of its arguments at values that few runs give."""
    values = ("0", "-1", "1", "99999999999999999999", "nan", "inf", "x", "none", "cut", "dc", "dc_adaptive")
    specs = [*REGISTRY, "", "(", "asp()", "asp:50%", "asp,bsp", "asp:50%,bsp", "a" * 300, "asp" + " " * 200 + "x"]
    for name, protocol in REGISTRY.items():
        for field in dataclasses.fields(protocol):  # pyright: ignore[reportArgumentType]
            specs += [f"{name}({field.name}={value})" for value in values]
    return specs


TEXTS = (
    *("", "x", "\x00", "\n\x1b[31m", "\u202e", "é" * 100, "A" * 257, "A" * 20_000, "non_finite: q"),
    *("worker", "server", "chief", "127.0.0.1:1", "unix:x", "exit 1", "signal SIGSEGV"),
    *_specs(),
)


class Mutator:
    """Changes messages and bytes, by a seeded generator of random numbers.

    Args:
      rng: decides everything.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def change(self, message: Message) -> None:
        """Change one to three fields, at any depth."""
        fields = message.DESCRIPTOR.fields
        for _ in range(self._rng.choice((1, 1, 1, 2, 3)) if fields else 0):
            field = self._rng.choice(fields)
            if field.message_type is None:
                self._change_value(message, field)
            elif field.is_repeated:
                self._change_messages(getattr(message, field.name))
            elif self._rng.random() < 0.15:
                message.ClearField(field.name)
            else:
                self.change(getattr(message, field.name))

    def flip(self, data: bytes) -> bytes:
        """Return serialized bytes with some changed, left out or put in."""
        rng, changed = self._rng, bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            kind, at = rng.random(), rng.randrange(len(changed) + 1)
            if kind < 0.5 and at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            elif kind < 0.65:
                del changed[at:]
            elif kind < 0.8:
                changed[at : at + rng.choice((1, 4, 16))] = b""
            else:
                changed[at:at] = rng.randbytes(rng.choice((1, 2, 9)))
        return bytes(changed)

    def _change_messages(self, repeated: Any) -> None:
        rng, kind = self._rng, self._rng.random()
        if kind < 0.3:
            del repeated[:]
        elif kind < 0.6 and len(repeated):
            self.change(rng.choice(list(repeated)))
        else:
            added = repeated.add()
            self.change(added)
            if rng.random() < 0.2:
                repeated.extend([added] * (rng.choice(LENGTHS) if rng.random() < 0.99 else rng.choice(LONG)))

    def _change_value(self, message: Message, field: Any) -> None:
        rng = self._rng
        if not field.is_repeated:
            setattr(message, field.name, self._value(field))
            return
        repeated = getattr(message, field.name)
        if rng.random() < 0.3:
            del repeated[:]
        if rng.random() < 0.005 and field.type != field.TYPE_STRING:
            repeated.extend([self._value(field)] * rng.choice(LONG))
        else:
            repeated.extend(self._value(field) for _ in range(rng.choice(LENGTHS)))

    def _value(self, field: Any) -> Any:
        rng = self._rng
        if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
            return rng.choice(FLOATS)
        if field.cpp_type == field.CPPTYPE_BOOL:
            return rng.random() < 0.5
        if field.type == field.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 640, 641)))
        if field.type == field.TYPE_STRING:
            return rng.choice(TEXTS)
        bits = 31 if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 63
        number = rng.choice(INTEGERS) if rng.random() < 0.8 else rng.getrandbits(rng.choice((3, 6, 16, 62)))
        if field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
            return min(abs(number), 2 ** (bits + 1) - 1)
        return max(-(2**bits), min(number, 2**bits - 1))
