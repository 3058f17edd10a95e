"""The end of a link through shared memory at the role that calls."""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from collections.abc import Sequence

import numpy as np

from hybridsync.core.errors import HybridSyncError, RoleLost
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.transport.connected_links import LinkConnection
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.channels import CALL_SECS
from hybridsync.transport.grpc.codec import decode, parse
from hybridsync.transport.link_service import shut
from hybridsync.transport.link_session import MOST_BYTES
from hybridsync.transport.push_frames import frame_of_push, is_frame, reply_in
from hybridsync.transport.shared_memory.slabs import copied, mapped

_TIMEVAL = struct.Struct("=qq")
_CLOSE_ON_EXEC, _CUT_OFF = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)  # an enum's `&` takes a microsecond


class Connection(LinkConnection):
    """A `LinkConnection` through shared memory; what it lends is read-only.

    Args:
      path: path of the role's socket.
      token: token of the run.
      who: the role, for errors.
      deadline_secs: limit of a call, in seconds.
      contribution_bytes: size in bytes of the contributions that this end writes; 0 for none.
    """

    def __init__(
        self, path: str, token: str, who: str, deadline_secs: float = CALL_SECS, contribution_bytes: int = 0
    ) -> None:
        super().__init__(f"{who} at unix:{path}")
        self._path, self._token = path, token
        self._deadline_secs, self._contribution_bytes = deadline_secs, contribution_bytes
        self._socket: socket.socket | None = None
        self._slabs: dict[int, np.ndarray] = {}
        self._into: np.ndarray | None = None  # takes a copy of what is lent: a file that is mapped counts as memory
        self._has_lost = False  # what was lent is the role's again, and its reader does not know
        self._contribution: np.ndarray | None = None
        self._inbox = memoryview(bytearray(MOST_BYTES))

    def push_pull(self, push: Push, lent_bytes: int) -> tuple[PushReply, np.ndarray]:
        """See `LinkConnection.push_pull`; by a frame, where the push has place in one."""
        frame = frame_of_push(push, self._contribution_bytes) if self._contribution is not None else None
        if frame is None:
            return super().push_pull(push, lent_bytes)
        return self._repeated("push_pull", self._deadline_secs, self._exchange_frames, frame, lent_bytes)

    @property
    def contribution(self) -> np.ndarray:
        """See `LinkConnection.contribution`."""
        if self._contribution is None:
            self.call(pb.LinkRequest(call="contribution", num_bytes=self._contribution_bytes))
        assert self._contribution is not None
        return self._contribution

    def read_into(self, request: pb.LinkRequest, into: np.ndarray) -> None:
        """See `LinkConnection.read_into`; the bytes are read from the file, which is not mapped."""
        self._into = into
        try:
            self.call(request, into.nbytes)
            self.check()
        finally:
            self._into = None
            self.hang_up()

    def _secs_of(self, request: pb.LinkRequest, lent_bytes: int) -> float:
        return self._deadline_secs

    def _interrupt(self) -> None:
        connection = self._socket
        if connection is not None:
            shut(connection)

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._has_lost = self._has_lost or bool(self._slabs)
        self._slabs = {}

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.setblocking(False)  # where many wait to be taken, `close` is heard between two attempts
            try:
                connection.connect(self._path)
            except BlockingIOError:
                raise ConnectionRefusedError(errno.EAGAIN, "too many wait to be connected") from None
            connection.setblocking(True)
            secs, rest = divmod(self._deadline_secs, 1.0)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connection.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(int(secs), int(rest * 1e6)))
            self._socket = connection
            if self._closed.is_set():  # it was while this thread connected
                raise ConnectionAbortedError(None, "this end was closed")
        except BaseException:
            connection.close()
            self._socket = None
            raise
        return connection

    def _exchange(self, request: pb.LinkRequest, lent_bytes: int) -> tuple[pb.LinkReply, np.ndarray]:
        connection = self._socket
        if connection is None:
            request.token = self._token
            connection = self._connected_anew(lent_bytes, renews=request.call != "contribution")
        connection.send(request.SerializeToString())
        return self._received(connection, request.call, lent_bytes)

    def _exchange_frames(self, frame: bytes, lent_bytes: int) -> tuple[PushReply, np.ndarray]:
        """Do as `_exchange`, for a push whose memory is there: to renew it, a new connection has shown the token."""
        connection = self._socket or self._connected_anew(lent_bytes, renews=True)
        connection.send(frame)
        return self._received_push(connection, lent_bytes)

    def _connected_anew(self, lent_bytes: int, renews: bool) -> socket.socket:
        """Return a new connection for a call; `renews` takes what was written over to it."""
        connection = self._connect()
        lost, self._has_lost = self._has_lost, False
        if lost and not lent_bytes:
            self._drop()  # the next call names the caller
            raise RoleLost(f"{self._who} has ended the connection, and what it had lent is its own again")
        if self._contribution is not None and renews:
            self._renew_contribution(connection)
        return connection

    def _renew_contribution(self, connection: socket.socket) -> None:
        """Take what was written over to the memory of a new connection."""
        written = self._contribution
        assert written is not None
        again = pb.LinkRequest(call="contribution", token=self._token, num_bytes=written.nbytes)
        connection.send(again.SerializeToString())
        self._received(connection, again.call, 0)
        renewed = self._contribution
        assert renewed is not None
        renewed[:] = written

    def _received_push(self, connection: socket.socket, lent_bytes: int) -> tuple[PushReply, np.ndarray]:
        inbox = self._inbox
        num_bytes, ancillary, flags, _ = connection.recvmsg_into((inbox,), _ONE_FILE, _CLOSE_ON_EXEC)
        if num_bytes and is_frame(inbox) and not ancillary and not flags & _CUT_OFF:
            reply, slab = reply_in(inbox[:num_bytes])
            return reply, self._slabs[slab] if lent_bytes else _NOTHING
        answer, lent = self._read(bytes(inbox[:num_bytes]), _files_in(ancillary), flags, "push_pull", lent_bytes)
        return decode(PushReply, answer.reply), lent

    def _received(self, connection: socket.socket, call: str, lent_bytes: int) -> tuple[pb.LinkReply, np.ndarray]:
        data, files, flags, _ = socket.recv_fds(connection, MOST_BYTES, 1, _CLOSE_ON_EXEC)
        return self._read(data, files, flags, call, lent_bytes)

    def _read(
        self, data: bytes, files: Sequence[int], flags: int, call: str, lent_bytes: int
    ) -> tuple[pb.LinkReply, np.ndarray]:
        """Return the reply in a message that came with files, and what it lends."""
        try:
            if not data:
                raise ConnectionResetError(None, "it ended the connection")
            reply = parse(pb.LinkReply, data)
            if reply.error:
                raise self._refused(reply, call)
            if flags & _CUT_OFF:
                self._drop()  # the role takes the file for delivered
                raise HybridSyncError(f"{call} gets no memory of {self._who}: no descriptor is left; raise `ulimit -n`")
            if call == "contribution":
                self._contribution = mapped(files[0], self._contribution_bytes, writes=True)
            elif files and self._into is not None:
                copied(files[0], self._into)
                self._slabs[reply.slab] = self._into
            elif files:
                self._slabs[reply.slab] = mapped(files[0], lent_bytes, writes=False)
        except HybridSyncError:
            if files or flags & _CUT_OFF:  # the role does not send that file again on this connection
                self._drop()
            raise
        finally:
            for file in files:  # what is mapped stays
                os.close(file)
        return reply, self._slabs[reply.slab] if lent_bytes else _NOTHING


def _files_in(ancillary: Sequence[tuple[int, int, bytes]]) -> Sequence[int]:
    """Return the descriptors that came beside a message, as `socket.recv_fds` does."""
    files = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    return files


_ONE_FILE = socket.CMSG_LEN(array.array("i").itemsize)
_NOTHING = np.empty(0, np.uint8)
