"""The end of one connection over TCP at the role that is called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np

from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.errors import DamagedState, HybridSyncError
from hybridsync.interfaces.ports import Answer, BufferView
from hybridsync.security.identity import Identity
from hybridsync.transport.buffers import Buffers
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.codec import encode
from hybridsync.transport.grpc.frames import check_size
from hybridsync.transport.link import Services
from hybridsync.transport.link_session import BUFFER_SECS, CONTRIBUTING, CallerLost, LinkSession, refusal
from hybridsync.transport.tcp.lanes import NOTHING, Lanes


def _at_once() -> None:
    """Wait for nothing."""


class TcpSession(LinkSession):
    """One caller's connection.

    A refused push is received and thrown away, so that the next request is found where it begins. If its length cannot
    be known, the connection ends after the refusal.

    Args:
      lanes: lanes to the caller, which has proven its identity.
      services: services of the role.
      blocks: buffers for staged blocks, which outlive the call.
      contributions: buffers for pushes.
      caller: identity that asked for the connection; None without certificates.
    """

    over = "TCP"

    def __init__(
        self,
        lanes: Lanes,
        services: Services,
        blocks: Buffers,
        contributions: Buffers,
        caller: Identity | None = None,
    ) -> None:
        super().__init__(services, blocks, caller)
        self._lanes, self._contributions = lanes, contributions
        self._sizes = services.contribution_bytes, *services.narrow_bytes
        self._coming: int | None = None
        """Bytes of the caller's buffer that were not received yet; None if that is not known."""
        self._lent: BufferView | None = None
        self._arrival: Callable[[], None] = _at_once

    def run(self) -> None:
        """See `Answering.run`."""
        while self.answer_next():
            pass

    def answer_next(self) -> bool:
        """Wait for a request and answer it; returns whether another one may follow.

        Raises:
          OSError: the caller ended before its answer.
        """
        self._coming = None
        try:
            data = self._lanes.await_message(forever=True)
        except HybridSyncError as error:
            self._end_with(refusal(error))
            return False
        if data is None:
            return False
        reply = self.answered(data)
        reply.answers = True
        if self._coming is None or self._coming > max(self._sizes):
            self._end_with(reply)
            return False
        if self._coming:
            self._lanes.discard(self._coming)
        self._send(reply)
        return True

    def interrupt(self) -> None:
        """See `Answering.interrupt`."""
        self._lanes.shut()

    def has_ended(self) -> bool:
        """See `Answering.has_ended`."""
        return self._lanes.have_ended()

    def close(self) -> None:
        """See `Answering.close`."""
        self._calls.clear()
        self._lanes.close()
        self._give_back()

    def _admit(self, request: pb.LinkRequest) -> None:
        self._coming = request.num_bytes if request.call in CONTRIBUTING else 0
        self._lanes.within(transfer_secs(min(self._coming, max(self._sizes))))

    def _end_with(self, reply: pb.LinkReply) -> None:
        self._give_back()
        self._lanes.within(transfer_secs(0))
        self._lanes.send(reply.SerializeToString())
        self._lanes.hang_up()

    def _send(self, reply: pb.LinkReply) -> None:
        """Send a reply and what it lends, which is the role's again then."""
        lent = NOTHING if self._lent is None or reply.error else self._lent.buffer
        try:
            self._lanes.within(transfer_secs(lent.nbytes))
            self._lanes.send(reply.SerializeToString(), lent, self._arrival)
        except HybridSyncError as error:  # of the wait for the last of it, when the caller has had the others
            raise CallerLost(None, str(error)) from error
        finally:
            self._give_back()

    # --- buffers ---

    def _check_offer(self, num_bytes: int) -> None:
        check_size(num_bytes, *self._sizes)

    @contextlib.contextmanager
    def _offered(self, num_bytes: int) -> Iterator[np.ndarray]:
        with self._contributions.lend(BUFFER_SECS) as whole:
            self._copy_offered(whole[:num_bytes])
            yield whole[:num_bytes]

    def _copy_offered(self, into: np.ndarray) -> None:
        self._coming = None
        try:
            self._lanes.receive(into)
        except DamagedState:
            raise
        except OSError as error:
            raise CallerLost(None, "it ended in the middle of its contribution") from error
        self._coming = 0

    def _lend_parameters(self, answer: Answer, num_bytes: int, brings_them: bool) -> pb.LinkReply:
        if brings_them:
            reply = self._lend(answer.parameters, num_bytes)
            self._arrival = answer.await_arrival
        else:
            answer.parameters.release()
            reply = pb.LinkReply()
        reply.reply.CopyFrom(encode(answer.reply))
        return reply

    def _lend(self, view: BufferView, num_bytes: int) -> pb.LinkReply:
        assert self._lent is None, "one view is lent at a time"
        self._lent = view
        check_size(num_bytes, view.buffer.nbytes)
        return pb.LinkReply(num_bytes=num_bytes)

    def _give_back(self) -> None:
        view, self._lent, self._arrival = self._lent, None, _at_once
        if view is not None:
            view.release()
