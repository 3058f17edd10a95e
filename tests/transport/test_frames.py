from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridsync.core.errors import SchemaMismatch
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.frames import CHUNK_BYTES, last_after, receive, receive_header, send
from tests.transport.conftest import pattern


def collect(stream: Iterator[bytes], num_bytes: int) -> np.ndarray:
    into = np.zeros(num_bytes, np.uint8)
    receive(stream, receive_header(stream), into)
    return into


@given(num_bytes=st.integers(0, 3000), chunk_bytes=st.integers(1, 700))
def test_a_buffer_survives_any_chunk_size(num_bytes: int, chunk_bytes: int) -> None:
    buffer = pattern(num_bytes)
    assert np.array_equal(collect(send(pb.Header(), buffer, chunk_bytes), num_bytes), buffer)


@pytest.mark.parametrize("num_bytes", [0, 1, 127, 128, 20_000, CHUNK_BYTES - 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 1])
def test_the_wire_is_the_protobuf_message_frame(num_bytes: int) -> None:
    buffer = pattern(num_bytes)
    first, *rest = [pb.Frame.FromString(data) for data in send(pb.Header(reply=pb.PushReply(sequence=8)), buffer)]
    assert first.header.num_bytes == num_bytes and first.header.reply.sequence == 8
    assert all(frame.WhichOneof("kind") == "chunk" for frame in rest)
    assert b"".join(frame.chunk for frame in rest) == buffer.tobytes()


def test_frames_that_protobuf_wrote_are_read() -> None:
    buffer = pattern(1000)
    header = pb.Frame(header=pb.Header(num_bytes=1000)).SerializeToString()
    chunks = [pb.Frame(chunk=buffer[at : at + 300].tobytes()).SerializeToString() for at in range(0, 1000, 300)]
    assert np.array_equal(collect(iter([header, *chunks]), 1000), buffer)


def test_a_frame_stays_below_the_size_at_which_join_drops_the_gil() -> None:
    assert max(map(len, send(pb.Header(), pattern(2 * CHUNK_BYTES)))) < 1 << 20


def spoil_tag(frames: list[bytes]) -> list[bytes]:
    return [frames[0], b"\x1a" + frames[1][1:], *frames[2:]]


def spoil_length(frames: list[bytes]) -> list[bytes]:
    return [frames[0], frames[1][:1] + b"\x7f" + frames[1][2:], *frames[2:]]


def endless_length(frames: list[bytes]) -> list[bytes]:
    return [frames[0], b"\x12" + b"\xff" * 20]


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda frames: [], "before its header"),
        (lambda frames: frames[1:], "does not begin with a header"),
        (lambda frames: [b"\xff\xff", *frames[1:]], "not a Frame"),
        (lambda frames: frames[:-1], "ended after 900 bytes where its header says 1000"),
        (lambda frames: [*frames, frames[-1]], "carries 1100 bytes or more where its header says 1000"),
        (lambda frames: [*frames[:2], frames[0], *frames[2:]], "not one whole chunk"),
        (lambda frames: [*frames[:2], b"", *frames[2:]], "not one whole chunk"),
        (lambda frames: [*frames[:2], b"\x12", *frames[2:]], "not one whole chunk"),
        (lambda frames: [*frames[:2], frames[2][:-1], *frames[3:]], "not one whole chunk"),
        (spoil_tag, "not one whole chunk"),
        (spoil_length, "not one whole chunk"),
        (endless_length, "not one whole chunk"),
    ],
)
def test_a_damaged_stream_is_refused(spoil, text: str) -> None:
    frames = list(send(pb.Header(), pattern(1000), 100))
    with pytest.raises(SchemaMismatch, match=text):
        collect(iter(spoil(frames)), 1000)


def test_a_buffer_of_another_size_is_refused_before_a_chunk_is_read() -> None:
    stream = send(pb.Header(), pattern(1000), 100)
    with pytest.raises(SchemaMismatch, match="1000 bytes where 999"):
        collect(stream, 999)
    assert len(list(stream)) == 10


@pytest.mark.parametrize("num_frames", [1, 2, 3])
def test_the_last_frame_alone_waits(num_frames: int) -> None:
    frames, seen = [bytes([index]) for index in range(num_frames)], []
    for frame in last_after(iter(frames), lambda: seen.append(b"end")):
        seen.append(frame)
    assert seen == [*frames[:-1], b"end", frames[-1]]
