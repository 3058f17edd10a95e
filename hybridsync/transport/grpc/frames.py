"""A large buffer on a stream: one header frame, then chunks, written and read without extra copies.

The bytes are those of the protobuf message `Frame`; protobuf itself would copy each chunk twice more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from hybridsync.core.errors import SchemaMismatch
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.codec import parse

CHUNK_BYTES = (1 << 20) - 64
"""Bytes of the buffer in one frame. From 1 MiB on `bytes.join` drops the GIL: up to a fifth slower."""

_CHUNK_TAG = pb.Frame.CHUNK_FIELD_NUMBER << 3 | 2
_MAX_VARINT = 5


def send(header: pb.Header, buffer: np.ndarray, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yield the serialized frames of `buffer`.

    Args:
      header: sent first; its `num_bytes` is set here.
      buffer: C-contiguous uint8; read while the frames are taken.
      chunk_bytes: size of all chunks but the last.
    """
    view = _bytes(buffer)
    header.num_bytes = view.nbytes
    yield pb.Frame(header=header).SerializeToString()
    prefix = _prefix(chunk_bytes)
    whole = view.nbytes - view.nbytes % chunk_bytes
    for start in range(0, whole, chunk_bytes):
        yield b"".join((prefix, view[start : start + chunk_bytes]))
    if whole < view.nbytes:
        yield b"".join((_prefix(view.nbytes - whole), view[whole:]))


def last_after(
    frames: Iterator[bytes], wait: Callable[[], None], bounded: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Iterator[bytes]:
    """Yield frames, and wait before the last one of them.

    Args:
      frames: frames to yield, at least one.
      wait: waits until the last frame may be sent.
      bounded: makes a context that is entered while the caller takes frames, but not during that wait.
    """
    held = next(frames)
    with bounded():
        for frame in frames:
            yield held
            held = frame
    wait()
    with bounded():
        yield held


def receive_header(stream: Iterator[bytes]) -> pb.Header:
    """Read the first frame of a stream.

    Raises:
      SchemaMismatch: the frame is missing, or is not a header.
    """
    data = next(stream, None)
    if data is None:
        raise SchemaMismatch("the stream ended before its header")
    frame = parse(pb.Frame, data)
    if frame.WhichOneof("kind") != "header":
        raise SchemaMismatch("the stream does not begin with a header frame")
    return frame.header


def receive_whole(stream: Any, into: np.ndarray) -> pb.Header:
    """Fill `into` from a reply's stream, end the call, and return the header.

    Raises:
      SchemaMismatch: see `receive_header` and `receive`.
    """
    try:
        header = receive_header(stream)
        receive(stream, header, into)
        return header
    finally:
        stream.cancel()  # nothing to do after the last frame


def receive(stream: Iterator[bytes], header: pb.Header, into: np.ndarray) -> None:
    """Copy the chunks behind `header` into `into` (C-contiguous uint8), up to the end of the stream.

    Raises:
      SchemaMismatch: the sizes differ, a frame is not a chunk, or the stream carries more or fewer bytes than its
        header announces.
    """
    view = _bytes(into)
    check_size(header.num_bytes, view.nbytes)
    position = 0
    for frame in stream:
        start = _chunk_start(frame)
        end = position + len(frame) - start
        if end > view.nbytes:
            raise SchemaMismatch(f"the stream carries {end} bytes or more where its header says {view.nbytes}")
        view[position:end] = memoryview(frame)[start:]
        position = end
    if position < view.nbytes:
        raise SchemaMismatch(f"the stream ended after {position} bytes where its header says {view.nbytes}")


def check_size(offered: int, *expected: int) -> None:
    """Refuse a buffer of another size than ours.

    Raises:
      SchemaMismatch: the buffer has none of the sizes.
    """
    if offered not in expected:
        sizes = " or ".join(map(str, expected))
        raise SchemaMismatch(
            f"the buffer has {offered} bytes where {sizes} are expected; do both roles have the same model and "
            "optimizer?"
        )


def _bytes(buffer: np.ndarray) -> memoryview:
    assert buffer.dtype == np.uint8 and buffer.ndim == 1 and buffer.flags.c_contiguous, "buffers are plain bytes"
    return buffer.data


def _prefix(length: int) -> bytes:
    """Return the tag and the varint length of a chunk field."""
    prefix = bytearray((_CHUNK_TAG,))
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix)


def _chunk_start(frame: bytes) -> int:
    """Return where the chunk's bytes begin, which then run to the end of the frame."""
    if frame and frame[0] == _CHUNK_TAG:
        length = 0
        for index, byte in enumerate(frame[1 : 1 + _MAX_VARINT]):
            length |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if length and index + 2 + length == len(frame):  # empty ones would go on without end
                    return index + 2
                break
    raise SchemaMismatch(f"a frame of {len(frame)} bytes in the stream is not one whole chunk")
