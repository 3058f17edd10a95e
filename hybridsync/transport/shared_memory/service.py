"""The end of a link through shared memory at the role that is called.

A connection's own memory, in which its caller leaves contributions, is made when it is asked for. A lent buffer goes
back with the next request that lends one, or when the connection ends: the kernel reports a caller that is killed. A
caller has written all that its request speaks of before it sends that, and the socket keeps the order.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import socket
import stat
import struct
from contextlib import AbstractContextManager

import numpy as np

from hybridsync.core.errors import AddressError, InvalidMessage, Unauthenticated, WaitTimeout
from hybridsync.core.kept_socket import KeptSocket
from hybridsync.interfaces.ports import Answer, BufferView
from hybridsync.transport.buffers import Buffers
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.codec import encode
from hybridsync.transport.grpc.frames import check_size
from hybridsync.transport.link import Services
from hybridsync.transport.link_service import POLL_SECS, LinkService, has_hung_up, shut
from hybridsync.transport.link_session import MOST_BYTES, LinkSession, refusal, staged_blocks
from hybridsync.transport.push_frames import frame_of_reply, is_frame, push_in
from hybridsync.transport.shared_memory.slabs import Slab, SlabMemory, create

_CREDENTIALS = struct.Struct("=iII")  # pid, uid, gid
_BACKLOG = 64
_FIRST_REQUEST_SECS = 5.0
"""For a caller that has connected to say who it is: until then anybody may be at the other end."""


class SlabService(LinkService):
    """Serves what a role offers to every caller that connects to a socket.

    Args:
      services: services of the role; calls come from several threads.
      memory: memory of the buffers that the role lends.
      path: path of the socket; one without a server is replaced.
      token: token of the run.
      most: maximum number of connections at a time.

    Raises:
      AddressError: the socket cannot be made, or another process serves there.
    """

    def __init__(self, services: Services, memory: SlabMemory, path: str, token: str, most: int) -> None:
        super().__init__(_bound(path), "slabs", most)
        self._services, self._memory, self._token = services, memory, token.encode()
        self.blocks = staged_blocks(services)
        self.start()
        self._socket = KeptSocket(path, lambda: self._listen_at(_bound(path)))

    def stop(self, wait_secs: float = 0.0) -> None:
        """End all connections, and wait for the calls under way up to a time."""
        self._socket.close()
        super().stop(wait_secs)

    def _serve(self) -> None:
        while not self._stopped:
            connection = self._accept()
            if connection is not None:
                self._begin_session(connection)
        for each in (*self._former, self._listener):
            each.close()

    def _begin_session(self, connection: socket.socket) -> None:
        session = Session(connection, self._services, self._memory, self._token, self.blocks)
        self._make_room()
        if not self._begin(session):
            self._turn_away(connection)

    def _turn_away(self, connection: socket.socket) -> None:
        why = f"{self._most} links are open here, of {self._most} at most; callers that have ended make room, ask again"
        with connection, contextlib.suppress(OSError):  # it does not wait for an answer
            if not self._stopped:
                connection.settimeout(POLL_SECS)
                connection.recv(MOST_BYTES)  # unread bytes would reset the caller's end before it is answered
                connection.send(refusal(WaitTimeout(why)).SerializeToString())


class Session(LinkSession):
    """One caller's connection.

    Args:
      connection: connection to the caller.
      services: services of the role.
      memory: memory of the buffers that the role lends.
      token: token of the run.
      blocks: buffers for staged blocks.
    """

    over = "shared memory"

    def __init__(
        self, connection: socket.socket, services: Services, memory: SlabMemory, token: bytes, blocks: Buffers
    ) -> None:
        super().__init__(services, blocks)
        self._connection, self._memory, self._token = connection, memory, token
        self._is_known = False
        self._contribution: Slab | None = None
        self._lent: BufferView | None = None
        self._sent: set[int] = set()
        self._numbers: dict[int, tuple[np.ndarray, int]] = {}  # by the id of a buffer, which lives: no other has it
        self._inbox = memoryview(bytearray(MOST_BYTES + 1))
        self._file = -1  # goes with the next reply
        if services.parameters is not None or services.shard is not None:
            self._calls["contribution"] = self._make_contribution

    def run(self) -> None:
        """See `Answering.run`."""
        self._connection.settimeout(_FIRST_REQUEST_SECS)
        while self.answer_next():
            pass

    def answer_next(self) -> bool:
        """Wait for a request and answer it; returns whether another one may follow.

        Raises:
          OSError: the caller ended before its answer.
        """
        num_bytes = self._connection.recv_into(self._inbox)
        if not num_bytes:
            return False
        self._file = -1
        data = self._inbox[:num_bytes]
        if is_frame(data) and self._is_known:
            framed = self._by_name(self._answer_push, data)
            if isinstance(framed, bytes):
                self._connection.send(framed)
                return True
            reply = framed
        else:
            reply = self.answered(bytes(data))
        reply.answers = True
        if self._file < 0 or reply.error:
            self._connection.send(reply.SerializeToString())
        else:
            socket.send_fds(self._connection, [reply.SerializeToString()], [self._file])
        return self._is_known

    def interrupt(self) -> None:
        """See `Answering.interrupt`."""
        shut(self._connection)

    def has_ended(self) -> bool:
        """See `Answering.has_ended`."""
        return has_hung_up(self._connection)

    def close(self) -> None:
        """Take back what was lent, and let go of the contribution's memory now: no collection of garbage is awaited."""
        self._calls.clear()
        contribution, self._contribution = self._contribution, None
        if contribution is not None:
            os.close(contribution.file)
        self._connection.close()
        self._give_back()

    def _admit(self, request: pb.LinkRequest) -> None:
        """Refuse a stranger: the folder of the socket is the user's own, but a folder can be opened to others."""
        if self._is_known:
            return
        credentials = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(credentials)
        if user != os.geteuid() or not hmac.compare_digest(request.token.encode(), self._token):
            raise Unauthenticated(
                "this call is another user's, or does not show the token of the run that it reached; a role has it "
                "from its supervisor: is this the address of another run?"
            )
        self._is_known = True
        self._connection.settimeout(None)

    def _answer_push(self, frame: memoryview) -> bytes | pb.LinkReply:
        """Return the reply to a push that came as a frame: a frame too, unless it says more or a file goes with it."""
        push, num_bytes = push_in(frame)
        if self._services.parameters is None:
            raise InvalidMessage("this role has no parameters of its own, and takes no push")
        answer = self._pushed(push, num_bytes)
        reply = answer.reply
        number = self._lent_by(answer, answer.parameters.buffer.nbytes, reply.brings_parameters(push))
        framed = frame_of_reply(reply, number) if self._file < 0 else None
        return pb.LinkReply(slab=number, reply=encode(reply)) if framed is None else framed

    # --- buffers ---

    def _make_contribution(self, request: pb.LinkRequest) -> pb.LinkReply:
        check_size(request.num_bytes, self._services.contribution_bytes, *self._services.narrow_bytes)
        if self._contribution is None:
            self._contribution = create(request.num_bytes, others_write=True)
        self._file = self._contribution.file
        return pb.LinkReply()

    def _check_offer(self, num_bytes: int) -> None:
        if self._contribution is None:
            raise InvalidMessage("there is no memory for a contribution yet; ask for it first")
        check_size(num_bytes, self._contribution.buffer.nbytes)

    def _offered(self, num_bytes: int) -> AbstractContextManager[np.ndarray]:
        assert self._contribution is not None
        return contextlib.nullcontext(self._contribution.buffer)

    def _copy_offered(self, into: np.ndarray) -> None:
        assert self._contribution is not None
        into[:] = self._contribution.buffer

    def _lend_parameters(self, answer: Answer, num_bytes: int, brings_them: bool) -> pb.LinkReply:
        return pb.LinkReply(slab=self._lent_by(answer, num_bytes, brings_them), reply=encode(answer.reply))

    def _lent_by(self, answer: Answer, num_bytes: int, brings_them: bool) -> int:
        """Lend an answer's parameters; returns the number of their slab once what they bring has arrived."""
        number = self._lent_number(answer.parameters, num_bytes)
        if brings_them:
            answer.await_arrival()
        return number

    def _lend(self, view: BufferView, num_bytes: int) -> pb.LinkReply:
        return pb.LinkReply(slab=self._lent_number(view, num_bytes))

    def _lent_number(self, view: BufferView, num_bytes: int) -> int:
        """Lend a view; returns the number of its slab."""
        assert self._lent is None, "one view is lent at a time"
        self._lent, buffer = view, view.buffer
        if num_bytes != buffer.nbytes:
            check_size(num_bytes, buffer.nbytes)
        found = self._numbers.get(id(buffer))
        if found is None:
            self._numbers[id(buffer)] = found = buffer, self._memory.number_of(buffer)
        number = found[1]
        if number not in self._sent:
            self._sent.add(number)
            self._file = self._memory.file(number)
        return number

    def _give_back(self) -> None:
        view, self._lent = self._lent, None
        if view is not None:
            view.release()


def _bound(path: str) -> socket.socket:
    """Return a socket that listens at `path`.

    Raises:
      AddressError: the socket cannot listen, or another process serves there.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        try:
            listener.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not stat.S_ISSOCK(os.stat(path).st_mode) or _is_served(path):
                raise
            os.unlink(path)  # of a process that was killed
            listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressError(f"cannot serve shared memory at {path}: {error.strerror}") from error
    return listener


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:  # it stands still, and so many wait for it
            return True
        return True
