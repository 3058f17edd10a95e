"""The end of a link through shared memory at the role that is called: one connection, and one thread, for each caller.

A connection's own memory, in which its caller leaves contributions, is made when it is asked for. What a reply lends
goes back with the next request for such, or when the connection ends: the kernel tells of a caller that is killed.
A caller has written all that its request speaks of before it sends that, and the socket keeps the order.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import socket
import stat
import struct
import threading
from collections.abc import Callable

import numpy as np
from absl import logging

from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.errors import AddressError, HybridSyncError, InvalidMessage, Unauthenticated, WaitTimeout
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.interfaces.ports import BufferView
from hybridsync.transport.buffers import Buffers
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.codec import decode, encode, parse
from hybridsync.transport.grpc.frames import check_size
from hybridsync.transport.grpc.parameter_server import BUFFER_SECS
from hybridsync.transport.link import Services
from hybridsync.transport.named_errors import named
from hybridsync.transport.shared_memory.slabs import Slab, SlabMemory, create

MOST_BYTES = 1 << 16
"""Of a request or a reply; buffers are not in them."""

_CREDENTIALS = struct.Struct("=iII")  # pid, uid, gid
_BACKLOG, _POLL_SECS = 64, 0.05
_FIRST_REQUEST_SECS = 5.0
"""For a caller that has connected to say who it is: until then anybody may be at the other end."""


class SlabService:
    """Serves what a role offers to whoever connects to a socket.

    The lock guards the connections.

    Args:
      services: what the role offers; calls come from several threads.
      memory: where what it lends lies.
      path: of the socket; one that nobody serves any more is replaced.
      token: of the run.
      most: connections at a time.

    Raises:
      AddressError: the socket cannot be made, or somebody serves there.
    """

    def __init__(self, services: Services, memory: SlabMemory, path: str, token: str, most: int) -> None:
        self._services, self._memory, self._token, self._most = services, memory, token.encode(), most
        blocks = services.contribution_bytes if services.shard is not None else 0
        self.blocks = Buffers(blocks, max(1, services.num_buffers))
        self._lock = threading.Lock()
        self._sessions: dict[socket.socket, threading.Thread] = {}
        self._stopped = False
        self._listener = _bound(path)
        self._thread = threading.Thread(target=self._serve, name="slabs", daemon=True)
        self._thread.start()

    def stop(self, wait_secs: float = 0.0) -> None:
        """End all connections, and wait for the calls under way up to a time."""
        deadline = SYSTEM_CLOCK.monotonic() + wait_secs
        with self._lock:
            self._stopped = True
            sessions = dict(self._sessions)
        for connection in (self._listener, *sessions):
            with contextlib.suppress(OSError):  # its caller is gone
                connection.shutdown(socket.SHUT_RDWR)
        for thread in (self._thread, *sessions.values()):
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - SYSTEM_CLOCK.monotonic()))

    def _serve(self) -> None:
        with self._listener:
            while not self._stopped:
                try:
                    connection, _ = self._listener.accept()
                except OSError as error:
                    if not self._stopped:  # no descriptor is left: whoever calls waits
                        logging.log_every_n_seconds(logging.WARNING, "a link was not accepted: %s", 10, error)
                        pause(_POLL_SECS)
                    continue
                self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        with self._lock:
            if self._stopped or len(self._sessions) >= self._most:
                self._turn_away(connection)
                return
            session = Session(connection, self._services, self._memory, self._token, self.blocks)
            thread = threading.Thread(target=self._run, args=(session, connection), name="slab", daemon=True)
            self._sessions[connection] = thread
            try:
                thread.start()
            except RuntimeError as error:  # there is no thread for it: whoever calls tries again
                logging.warning("a link was not accepted: %s", error)
                del self._sessions[connection]
                connection.close()

    def _turn_away(self, connection: socket.socket) -> None:
        why = f"{self._most} links are open here, of {self._most} at most; callers that have ended make room, ask again"
        with connection, contextlib.suppress(OSError):  # it does not wait for an answer
            if not self._stopped:
                connection.settimeout(_POLL_SECS)
                connection.recv(MOST_BYTES)  # what nobody has read would reset the caller's end before it is answered
                connection.send(_refusal(WaitTimeout(why)).SerializeToString())

    def _run(self, session: Session, connection: socket.socket) -> None:
        try:
            session.run()
        except OSError:  # the caller ended before its answer, or this service does
            return
        finally:
            try:
                session.close()
            finally:
                with self._lock:
                    del self._sessions[connection]


class Session:
    """One caller's connection.

    Args:
      connection: to it.
      services: what the role offers.
      memory: where what it lends lies.
      token: of the run.
      blocks: buffers for staged blocks, which outlive the call.
    """

    def __init__(
        self, connection: socket.socket, services: Services, memory: SlabMemory, token: bytes, blocks: Buffers
    ) -> None:
        self._connection, self._services, self._memory, self._token = connection, services, memory, token
        self._blocks = blocks
        self._is_known = False
        self._contribution: Slab | None = None
        self._lent: BufferView | None = None
        self._sent: set[int] = set()
        self._file = -1  # goes with the next reply
        self._calls: dict[str, Callable[[pb.LinkRequest], pb.LinkReply]] = {"read": self._read}
        if services.parameters is not None:
            self._parameters = services.parameters
            self._calls |= {
                "contribution": self._make_contribution,
                "pull": self._pull,
                "push_pull": self._push_pull,
                "idle": self._idle,
                "ready": self._ready,
            }
        if services.shard is not None:
            self._shard = services.shard
            self._calls |= {
                "contribution": self._make_contribution,
                "stage": self._stage,
                "pull_at": self._pull_at,
            }

    def run(self) -> None:
        """Answer requests until the caller ends.

        Raises:
          OSError: it ended before its answer.
        """
        self._connection.settimeout(_FIRST_REQUEST_SECS)
        while self.answer_next():
            pass

    def answer_next(self) -> bool:
        """Wait for a request and answer it; returns whether another one may follow.

        Raises:
          OSError: the caller ended before its answer.
        """
        data = self._connection.recv(MOST_BYTES + 1)
        if not data:
            return False
        reply, file = self._answered(data)
        reply.answers = True
        if file < 0:
            self._connection.send(reply.SerializeToString())
        else:
            socket.send_fds(self._connection, [reply.SerializeToString()], [file])
        return self._is_known

    def close(self) -> None:
        """Take back what was lent, and let go of the contribution's memory now: no collection of garbage is awaited."""
        self._calls.clear()
        contribution, self._contribution = self._contribution, None
        if contribution is not None:
            os.close(contribution.file)
        self._connection.close()
        self._give_back()

    def _answered(self, data: bytes) -> tuple[pb.LinkReply, int]:
        """Return the reply to a request, and the file that goes with it; -1 for none."""
        try:
            if len(data) > MOST_BYTES:
                raise InvalidMessage(f"the request has more than {MOST_BYTES} bytes, and a buffer is not sent in it")
            request = parse(pb.LinkRequest, data)
            self._check(request)
            call = self._calls.get(request.call)
            if call is None:
                raise InvalidMessage(f"this role does not answer {request.call[:40]!r} over shared memory")
            self._file = -1
            return call(request), self._file
        except HybridSyncError as error:
            return _refusal(error), -1
        except Exception as error:  # noqa: BLE001 - a defect is told to the caller by name, and the others are served on
            logging.exception("a call over shared memory failed")
            return _refusal(HybridSyncError(f"{type(error).__name__}: {error}")), -1

    def _check(self, request: pb.LinkRequest) -> None:
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

    def _lend(self, view: BufferView, num_bytes: int, answer: PushReply | None = None) -> pb.LinkReply:
        """Return the reply that lends a view; what was lent before has been given back."""
        assert self._lent is None, "one view is lent at a time"
        self._lent = view
        check_size(num_bytes, view.buffer.nbytes)
        reply = None if answer is None else encode(answer)
        number = self._memory.number_of(view.buffer)
        if number not in self._sent:
            self._sent.add(number)
            self._file = self._memory.file(number)
        return pb.LinkReply(slab=number, reply=reply)

    def _give_back(self) -> None:
        view, self._lent = self._lent, None
        if view is not None:
            view.release()

    def _offered(self, num_bytes: int) -> np.ndarray:
        if self._contribution is None:
            raise InvalidMessage("there is no memory for a contribution yet; ask for it first")
        check_size(num_bytes, self._contribution.buffer.nbytes)
        return self._contribution.buffer

    # --- calls ---

    def _make_contribution(self, request: pb.LinkRequest) -> pb.LinkReply:
        check_size(request.num_bytes, self._services.contribution_bytes, *self._services.narrow_bytes)
        if self._contribution is None:
            self._contribution = create(request.num_bytes, others_write=True)
        self._file = self._contribution.file
        return pb.LinkReply()

    def _pull(self, request: pb.LinkRequest) -> pb.LinkReply:
        self._give_back()
        answer = self._parameters.pull(decode(Push, request.push))
        reply = self._lend(answer.parameters, request.num_bytes, answer.reply)
        answer.await_arrival()
        return reply

    def _push_pull(self, request: pb.LinkRequest) -> pb.LinkReply:
        push, contribution = decode(Push, request.push), self._offered(request.num_bytes)
        offer = self._parameters.begin_push(push)
        self._give_back()  # before the update, which may write over it: the caller has computed on it
        answer = offer(contribution)
        reply = self._lend(answer.parameters, answer.parameters.buffer.nbytes, answer.reply)
        if answer.reply.brings_parameters(push):
            answer.await_arrival()
        return reply

    def _idle(self, request: pb.LinkRequest) -> pb.LinkReply:
        self._parameters.idle(decode(Push, request.push))
        return pb.LinkReply()

    def _ready(self, request: pb.LinkRequest) -> pb.LinkReply:
        self._parameters.ready(decode(Push, request.push))
        return pb.LinkReply()

    def _stage(self, request: pb.LinkRequest) -> pb.LinkReply:
        push, contribution = decode(Push, request.push), self._offered(request.num_bytes)
        block = self._blocks.borrow(
            BUFFER_SECS, request.num_bytes
        )  # it is kept until the primary decides, and the caller goes on
        block.buffer[:] = contribution
        return pb.LinkReply(non_finite=self._shard.stage(push, block))

    def _pull_at(self, request: pb.LinkRequest) -> pb.LinkReply:
        self._give_back()
        return self._lend(self._shard.pull_at(decode(Push, request.push)), request.num_bytes)

    def _read(self, request: pb.LinkRequest) -> pb.LinkReply:
        self._give_back()
        return self._lend(self._services.holder.lend(request.snapshot_id), request.num_bytes)


def _refusal(error: HybridSyncError) -> pb.LinkReply:
    name, text = named(error)
    return pb.LinkReply(error=name, text=text, answers=True)


def _bound(path: str) -> socket.socket:
    """Return a socket that listens at `path`.

    Raises:
      AddressError: it cannot, or somebody serves there.
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
