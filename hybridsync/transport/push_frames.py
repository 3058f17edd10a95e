"""One unit's push and the reply to it, each as a few numbers at fixed places, where a protobuf says no more. Pure.

A worker makes these two messages for each unit, between two gradients, when all of its code is cold. A frame is packed
and read by one call. A push that says more than a frame has places for, a refusal, and every other call travel as
`LinkRequest` and `LinkReply`. The first byte tells them apart: no protobuf message begins with it.

>>> push = Push(PhaseId(3, 7), worker=1, incarnation=2, units=(40,), base=9)
>>> frame = frame_of_push(push, num_bytes=128)
>>> is_frame(frame), push_in(frame) == (push, 128)
(True, True)
>>> frame_of_push(push._replace(push_only=True), 128) is None
True
>>> reply_in(frame_of_reply(PushReply(10), slab=2))
(PushReply(sequence=10, duplicate=False, dropped='', units=0, own=0, fastest=0, settled=()), 2)
"""

from __future__ import annotations

import struct

from hybridsync.core.errors import SchemaMismatch
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push, PushReply

_MARK = 0x07
"""A protobuf message begins with the number of a field, from 1 on, above three bits that say its kind."""
_PUSH = struct.Struct("<BqQqQqqQ")  # mark; phase, nonce, worker, incarnation, unit, base: as in the .proto; bytes
_REPLY = struct.Struct("<Bqq")  # mark; sequence, slab
_NOTHING_MORE = ("", 0, 0, False)
_ONLY_A_SEQUENCE = (False, "", 0, 0, 0, ())


def is_frame(data: bytes | bytearray | memoryview) -> bool:
    """Return whether a message, of at least one byte, is a frame."""
    return data[0] == _MARK


def frame_of_push(push: Push, num_bytes: int) -> bytes | None:
    """Return the frame of a push of one unit, whose contribution has `num_bytes`; None where it says more."""
    units = push[3]
    if len(units) != 1 or push[5:] != _NOTHING_MORE:
        return None
    phase_id, worker, incarnation = push[:3]
    caller = (*phase_id, worker, incarnation)
    return _PUSH.pack(_MARK, *caller, units[0], push[4], num_bytes)


def push_in(frame: bytes | bytearray | memoryview) -> tuple[Push, int]:
    """Return a push, and the size in bytes of its contribution.

    Raises:
      SchemaMismatch: the bytes are no such frame.
    """
    if len(frame) != _PUSH.size:
        raise SchemaMismatch(f"{len(frame)} bytes are not the frame of a push; are both roles of one version?")
    _, number, nonce, worker, incarnation, unit, base, num_bytes = _PUSH.unpack(frame)
    return Push(PhaseId(number, nonce), worker, incarnation, (unit,), base), num_bytes


def frame_of_reply(reply: PushReply, slab: int) -> bytes | None:
    """Return the frame of a reply that lends slab number `slab`; None where it says more than a sequence."""
    if reply[1:] != _ONLY_A_SEQUENCE:
        return None
    return _REPLY.pack(_MARK, reply[0], slab)


def reply_in(frame: bytes | bytearray | memoryview) -> tuple[PushReply, int]:
    """Return a reply, and the number of the slab that it lends.

    Raises:
      SchemaMismatch: the bytes are no such frame.
    """
    if len(frame) != _REPLY.size:
        raise SchemaMismatch(f"{len(frame)} bytes are not the frame of a reply; are both roles of one version?")
    _, sequence, slab = _REPLY.unpack(frame)
    return PushReply(sequence), slab
