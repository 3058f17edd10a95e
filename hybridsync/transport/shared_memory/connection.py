"""The end of a link through shared memory at the role that calls."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import threading

import numpy as np

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError, RoleLost, WaitTimeout
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.channels import CALL_SECS, FIRST_PAUSE_SECS
from hybridsync.transport.grpc.codec import parse
from hybridsync.transport.grpc.snapshot_source import UNREACHABLE_SECS
from hybridsync.transport.named_errors import raised
from hybridsync.transport.shared_memory.service import MOST_BYTES
from hybridsync.transport.shared_memory.slabs import mapped

_TIMEVAL = struct.Struct("=qq")


class Connection:
    """Calls a role, one call at a time, over a connection that is made at the first one.

    A call whose connection is lost is made again on a new one, as the same request may be sent twice. What the lost one
    lent is the role's again, so that a call which does not take its place ends with `RoleLost`. Where nobody answers
    any more the role is lost, but for a moment: whoever revokes the phase is to be heard first.

    The lock guards everything but `close`, which ends the call under way.

    Args:
      path: of the role's socket.
      token: of the run.
      who: the role, for errors.
      deadline_secs: of a call.
      contribution_bytes: of what this end writes; 0 for nothing.
    """

    def __init__(
        self, path: str, token: str, who: str, deadline_secs: float = CALL_SECS, contribution_bytes: int = 0
    ) -> None:
        self._path, self._token, self._who = path, token, f"{who} at unix:{path}"
        self._deadline_secs, self._contribution_bytes = deadline_secs, contribution_bytes
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._socket: socket.socket | None = None
        self._slabs: dict[int, np.ndarray] = {}
        self._has_lost = False  # what was lent is the role's again, and its reader does not know
        self._contribution: np.ndarray | None = None

    @property
    def contribution(self) -> np.ndarray:
        """Where this end writes what the next call sends: uint8."""
        if self._contribution is None:
            self.call(pb.LinkRequest(call="contribution", num_bytes=self._contribution_bytes))
        assert self._contribution is not None
        return self._contribution

    def call(self, request: pb.LinkRequest, lent_bytes: int = 0) -> tuple[pb.LinkReply, np.ndarray]:
        """Return the reply, and what it lends: uint8[lent_bytes], read-only; valid until the next call that lends.

        Raises:
          HybridSyncError: by its own name, the error that the role answers with.
          RoleLost: the role is gone, this end was closed, or what was lent is lost.
          WaitTimeout: it does not answer in time.
          SchemaMismatch: what it lends has another size.
        """
        with self._lock:
            first_failed: float | None = None
            while True:
                if self._closed.is_set():
                    raise RoleLost(f"{self._who} was not asked for {request.call}: the link is closed here")
                try:
                    return self._exchange(request, lent_bytes)
                except HybridSyncError:  # its answer; some of them are an OSError, too
                    raise
                except BlockingIOError:
                    self._drop()
                    raise WaitTimeout(
                        f"{self._who} did not answer {request.call} within {self._deadline_secs:g} s"
                    ) from None
                except OSError as error:  # the connection, or the role, is gone
                    self._drop()
                    now = SYSTEM_CLOCK.monotonic()
                    first_failed = first_failed or now
                    if now - first_failed > UNREACHABLE_SECS:
                        raise RoleLost(
                            f"{self._who} could not be reached for {request.call} within {UNREACHABLE_SECS:g} s "
                            f"({error.strerror or error}); is its process running?"
                        ) from error
                self._closed.wait(FIRST_PAUSE_SECS)

    def close(self) -> None:
        """End the call under way, with RoleLost, and refuse later ones. What was lent goes back."""
        self._closed.set()
        connection = self._socket
        if connection is not None:
            with contextlib.suppress(OSError):  # the role is gone, or another thread has closed it
                connection.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._drop()

    def check(self) -> None:
        """Check that what was lent was not given back by `close` while it was read.

        Raises:
          RoleLost: it may have been.
        """
        if self._closed.is_set():
            raise RoleLost(f"{self._who} was read while the link was closed here")

    def hang_up(self) -> None:
        """Give back what was lent; the next call makes a new connection."""
        with self._lock:
            self._drop()

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
            connection, request.token = self._connect(), self._token
            lost, self._has_lost = self._has_lost, False
            if lost and not lent_bytes:
                self._drop()  # the next call says who this is
                raise RoleLost(f"{self._who} has ended the connection, and what it had lent is its own again")
            if self._contribution is not None and request.call != "contribution":
                self._renew_contribution(connection)
        connection.send(request.SerializeToString())
        return self._received(connection, request.call, lent_bytes)

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

    def _received(self, connection: socket.socket, call: str, lent_bytes: int) -> tuple[pb.LinkReply, np.ndarray]:
        data, files, flags, _ = socket.recv_fds(connection, MOST_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        try:
            if not data:
                raise ConnectionResetError(None, "it ended the connection")
            reply = parse(pb.LinkReply, data)
            if reply.error:
                error = raised(reply.error, reply.text, self._who, call)
                assert error is not None, f"{self._who} answers with {reply.error}, which no error is called"
                raise error
            if flags & socket.MSG_CTRUNC:
                self._drop()  # the role takes the file for delivered
                raise HybridSyncError(f"{call} gets no memory of {self._who}: no descriptor is left; raise `ulimit -n`")
            if call == "contribution":
                self._contribution = mapped(files[0], self._contribution_bytes, writes=True)
            elif files:
                self._slabs[reply.slab] = mapped(files[0], lent_bytes, writes=False)
        except HybridSyncError:
            if files or flags & socket.MSG_CTRUNC:  # the role does not send that file again on this connection
                self._drop()
            raise
        finally:
            for file in files:  # what is mapped stays
                os.close(file)
        return reply, self._slabs[reply.slab] if lent_bytes else _NOTHING


_NOTHING = np.empty(0, np.uint8)
