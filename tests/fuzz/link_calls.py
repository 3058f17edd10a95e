"""Calls on a role over shared memory and over TCP, as handlers of the fuzzer's job."""

from __future__ import annotations

import os
import random
import socket
import struct
from typing import Any

import xxhash
from google.protobuf.message import DecodeError

from hybridsync.transport.buffers import Buffers
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.status import CODES, NAME_KEY
from hybridsync.transport.link import Services
from hybridsync.transport.link_session import CONTRIBUTING
from hybridsync.transport.named_errors import KINDS
from hybridsync.transport.shared_memory.service import Session
from hybridsync.transport.shared_memory.slabs import SlabMemory
from hybridsync.transport.tcp.lanes import Lanes
from hybridsync.transport.tcp.session import TcpSession

LINK, TCP, ANY_CALL = "/hybridsync.Link/", "/hybridsync.Tcp/", "any"
"""Begin the paths of calls over shared memory, and over TCP; such a call with whatever name was drawn."""
FRAME_BYTES = 200
"""Of a frame over TCP: the job's buffers have several."""
SENT_BYTES = 200_000
"""Of a request over shared memory: the kernel takes few more."""


class Link:
    """One call on a role over shared memory; this thread plays both ends of the socket in turn.

    Args:
      offered: what the role offers, where its memory lies, and its buffers for staged blocks.
      sessions: the role's connection, which all its calls share; a new one where it has ended it.
    """

    client_streaming = False
    input_type = pb.LinkRequest.DESCRIPTOR

    def __init__(self, offered: tuple[Services, SlabMemory, Buffers], sessions: list[Any]) -> None:
        self._offered, self._sessions = offered, sessions

    def unary_unary(self, data: bytes, context: Any) -> bytes:
        if not self._sessions:
            near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            services, memory, blocks = self._offered
            self._sessions[:] = [near, Session(far, services, memory, b"", blocks)]
        near, session = self._sessions
        near.send(data[:SENT_BYTES] or b"\x00")  # nothing is the end of a connection
        goes_on = session.answer_next()
        answer, files, _, _ = socket.recv_fds(near, SENT_BYTES, 1)
        for file in files:
            os.close(file)
        if not goes_on:
            self.close()
        reply = pb.LinkReply.FromString(answer)
        assert reply.answers
        if reply.error:
            context.set_trailing_metadata(((NAME_KEY, reply.error),))
            context.abort(CODES[KINDS[reply.error]], reply.text)
        return answer

    def close(self) -> None:
        if self._sessions:
            near, session = self._sessions
            near.close()
            session.close()
            self._sessions.clear()


def closed(sessions: list[list[Any]]) -> None:
    """Let go of the connections that a job keeps open."""
    for near, session in filter(None, sessions):
        near.close()
        session.close()


class TcpCall:
    """One call on a role over TCP, on a connection of its own; this thread plays both ends in turn.

    What comes behind a request, and the bytes themselves, are drawn by a generator whose seed is the request.

    Args:
      offered: what the role offers, and its buffers for staged blocks and for pushes.
    """

    client_streaming = False
    input_type = pb.LinkRequest.DESCRIPTOR

    def __init__(self, offered: tuple[Services, Buffers, Buffers]) -> None:
        self._offered = offered

    def unary_unary(self, data: bytes, context: Any) -> bytes:
        near, far = tcp_pair()
        session = TcpSession(Lanes([far]), *self._offered)
        with near:
            near.sendall(self._stream(data, random.Random(data)))
            near.shutdown(socket.SHUT_WR)
            try:
                session.answer_next()
            except OSError as error:
                context.set_trailing_metadata(((NAME_KEY, "RoleLost"),))
                context.abort(CODES[KINDS["RoleLost"]], f"the caller is lost ({error.strerror})")
            finally:
                session.close()
            said = near.recv(12, socket.MSG_WAITALL)
            if not said:
                context.set_trailing_metadata(((NAME_KEY, "RoleLost"),))
                context.abort(CODES[KINDS["RoleLost"]], "the caller has said nothing")
            answer = near.recv(struct.unpack("<IQ", said)[0], socket.MSG_WAITALL)
        reply = pb.LinkReply.FromString(answer)
        assert reply.answers
        if reply.error:
            context.set_trailing_metadata(((NAME_KEY, reply.error),))
            context.abort(CODES[KINDS[reply.error]], reply.text)
        return answer

    def _stream(self, data: bytes, rng: random.Random) -> bytes:
        """Return a request and what follows it, damaged now and then."""
        try:
            request = pb.LinkRequest.FromString(data)
        except DecodeError:
            request = pb.LinkRequest()
        follows = min(request.num_bytes, 5000) if request.call in CONTRIBUTING else 0
        parts = [struct.pack("<IQ", len(data), xxhash.xxh3_64_intdigest(data)) + data]
        for index, start in enumerate(range(0, follows, FRAME_BYTES)):
            part = bytes(min(FRAME_BYTES, follows - start))
            parts.append(struct.pack("<IIQ", index, len(part), xxhash.xxh3_64_intdigest(part)) + part)
        at, damage = rng.randrange(len(parts)), rng.random()
        if damage < 0.05:
            del parts[at]
        elif damage < 0.1:
            parts.insert(at, parts[at])
        elif damage < 0.15:
            rng.shuffle(parts)
        stream = bytearray(b"".join(parts))
        if 0.15 < damage < 0.25 and stream:
            stream[rng.randrange(len(stream))] ^= 1 << rng.randrange(8)
        elif 0.25 < damage < 0.3:
            del stream[rng.randrange(len(stream) + 1) :]
        return bytes(stream)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        return near, listener.accept()[0]
