"""Calls on a role over shared memory, one after another, as handlers of the fuzzer's job."""

from __future__ import annotations

import os
import socket
from typing import Any

from hybridsync.transport.buffers import Buffers
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.status import CODES, NAME_KEY
from hybridsync.transport.link import Services
from hybridsync.transport.named_errors import KINDS
from hybridsync.transport.shared_memory.service import Session
from hybridsync.transport.shared_memory.slabs import SlabMemory

LINK, ANY_CALL = "/hybridsync.Link/", "any"
"""Begins the paths of calls over shared memory; such a call with whatever name was drawn."""
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


def closed(memory: SlabMemory, sessions: list[list[Any]]) -> None:
    """Let go of what a job keeps open."""
    for near, session in filter(None, sessions):
        near.close()
        session.close()
    for slab in memory._slabs:
        os.close(slab.file)
