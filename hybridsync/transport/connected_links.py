"""The end of a link at the role that calls, whatever carries the calls, and what workers and readers do over it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError, RoleLost, WaitTimeout
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.channels import FIRST_PAUSE_SECS
from hybridsync.transport.grpc.codec import decode, encode
from hybridsync.transport.grpc.snapshot_source import UNREACHABLE_SECS
from hybridsync.transport.named_errors import raised

R = TypeVar("R")
A = TypeVar("A")


class LinkConnection(ABC):
    """Calls a role, one call at a time, over a connection that is made at the first one.

    A call whose connection is lost is made again on a new one, as the same request may be sent twice. Buffers that the
    lost connection lent belong to the role again, so a call that does not replace them ends with `RoleLost`. If nobody
    answers any more, the role counts as lost after a moment, in which a revocation of the phase can be heard first.

    The lock guards everything but `close`, which ends the call in progress.

    Args:
      who: the role, for errors.
    """

    def __init__(self, who: str) -> None:
        self._who = who
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @property
    @abstractmethod
    def contribution(self) -> np.ndarray:
        """The buffer of the next call's contribution, written by this end: uint8."""

    def call(self, request: pb.LinkRequest, lent_bytes: int = 0) -> tuple[pb.LinkReply, np.ndarray]:
        """Return the reply, and what it lends: uint8[lent_bytes]; valid until the next call that lends.

        Args:
          request: request to send.
          lent_bytes: size in bytes of what the reply lends; 0 where it lends nothing.

        Raises:
          HybridSyncError: by its own name, the error that the role answers with.
          RoleLost: the role is gone, this end was closed, or what was lent is lost.
          WaitTimeout: the role does not answer in time.
          SchemaMismatch: the lent buffer has another size.
        """
        secs = self._secs_of(request, lent_bytes)
        return self._repeated(request.call, secs, self._exchange, request, lent_bytes)

    def push_pull(self, push: Push, lent_bytes: int) -> tuple[PushReply, np.ndarray]:
        """Push what was written; return the reply, and what it lends (see `call`)."""
        request = pb.LinkRequest(call="push_pull", push=encode(push), num_bytes=self.contribution.nbytes)
        reply, lent = self.call(request, lent_bytes)
        return decode(PushReply, reply.reply), lent

    def _repeated(
        self, call: str, secs: float, exchange: Callable[[R, int], tuple[A, np.ndarray]], request: R, lent_bytes: int
    ) -> tuple[A, np.ndarray]:
        """Carry out a call, again on a new connection where one is lost (see the class)."""
        with self._lock:
            first_failed: float | None = None
            while True:
                if self._closed.is_set():
                    raise RoleLost(f"{self._who} was not asked for {call}: the link is closed here")
                try:
                    return exchange(request, lent_bytes)
                except HybridSyncError:  # its answer; some of them are an OSError, too
                    raise
                except BlockingIOError:
                    self._drop()
                    raise WaitTimeout(f"{self._who} did not answer {call} within {secs:g} s") from None
                except OSError as error:  # the connection, or the role, is gone
                    self._drop()
                    now = SYSTEM_CLOCK.monotonic()
                    first_failed = first_failed or now
                    if now - first_failed > UNREACHABLE_SECS:
                        raise RoleLost(
                            f"{self._who} could not be reached for {call} within {UNREACHABLE_SECS:g} s "
                            f"({error.strerror or error}); is its process running?"
                        ) from error
                self._closed.wait(FIRST_PAUSE_SECS)

    def read_into(self, request: pb.LinkRequest, into: np.ndarray) -> None:
        """Fill `into` (uint8, C-contiguous) with what a call lends, and end the connection, so that it goes back.

        Raises:
          HybridSyncError: see `call`.
        """
        try:
            into[:] = self.call(request, into.nbytes)[1]
            self.check()
        finally:
            self.hang_up()

    def close(self) -> None:
        """End the current call, with RoleLost, and refuse later ones. Lent buffers go back."""
        self._closed.set()
        self._interrupt()
        with self._lock:
            self._drop()

    def check(self) -> None:
        """Check that what was lent was not given back by `close` while it was read.

        Raises:
          RoleLost: the buffer may have been given back.
        """
        if self._closed.is_set():
            raise RoleLost(f"{self._who} was read while the link was closed here")

    def hang_up(self) -> None:
        """Give back what was lent; the next call makes a new connection."""
        with self._lock:
            self._drop()

    def _refused(self, reply: pb.LinkReply, call: str) -> HybridSyncError:
        """Return the error that a reply tells of."""
        error = raised(reply.error, reply.text, self._who, call)
        assert error is not None, f"{self._who} answers with {reply.error}, which no error is called"
        return error

    # --- what each kind of link does its own way ---

    @abstractmethod
    def _secs_of(self, request: pb.LinkRequest, lent_bytes: int) -> float:
        """Return the deadline of a call."""

    @abstractmethod
    def _exchange(self, request: pb.LinkRequest, lent_bytes: int) -> tuple[pb.LinkReply, np.ndarray]:
        """Send a request, on a new connection where there is none, and return the reply and what it lends.

        Raises:
          HybridSyncError: the role answers with it.
          BlockingIOError: the deadline has passed.
          OSError: the connection is lost, or was not made.
        """

    @abstractmethod
    def _drop(self) -> None:
        """Let go of the connection, if there is one, and of what it lent."""

    @abstractmethod
    def _interrupt(self) -> None:
        """End the connection from another thread, if there is one."""


class _Link:
    """A worker's end: where it writes contributions, and reads the parameters that a call lends, is the connection's.

    Args:
      connection: connection to the server.
      parameters_bytes: size in bytes of the server's part of the parameters.
    """

    def __init__(self, connection: LinkConnection, parameters_bytes: int) -> None:
        self._connection, self._parameters_bytes = connection, parameters_bytes
        self.close = connection.close

    @property
    def contribution(self) -> np.ndarray:
        """See `ParameterLink.contribution`."""
        return self._connection.contribution


class ConnectedParameters(_Link):
    """A `ParameterLink`."""

    def pull(self, push: Push) -> tuple[PushReply, np.ndarray]:
        """See `ParameterLink.pull`."""
        request = pb.LinkRequest(call="pull", push=encode(push), num_bytes=self._parameters_bytes)
        reply, parameters = self._connection.call(request, self._parameters_bytes)
        return decode(PushReply, reply.reply), parameters

    def push_pull(self, push: Push) -> tuple[PushReply, np.ndarray]:
        """See `ParameterLink.push_pull`."""
        return self._connection.push_pull(push, 0 if push.push_only else self._parameters_bytes)

    def idle(self, push: Push) -> None:
        """See `ParameterPort.idle`."""
        self._connection.call(pb.LinkRequest(call="idle", push=encode(push)))

    def ready(self, push: Push) -> None:
        """See `ParameterPort.ready`."""
        self._connection.call(pb.LinkRequest(call="ready", push=encode(push)))


class ConnectedBlocks(_Link):
    """A `BlockLink`."""

    def stage(self, push: Push) -> str:
        """See `BlockLink.stage`."""
        request = pb.LinkRequest(call="stage", push=encode(push), num_bytes=self.contribution.nbytes)
        return self._connection.call(request)[0].non_finite

    def pull_at(self, push: Push) -> np.ndarray:
        """See `BlockLink.pull_at`."""
        request = pb.LinkRequest(call="pull_at", push=encode(push), num_bytes=self._parameters_bytes)
        return self._connection.call(request, self._parameters_bytes)[1]


class ConnectedReader:
    """Reads the state that a role keeps.

    Args:
      connection: connection to the role.
    """

    def __init__(self, connection: LinkConnection) -> None:
        self._connection = connection
        self.close = connection.close

    def read(self, snapshot_id: int, into: np.ndarray) -> None:
        """Fill `into` (see `ReaderPort.read`); the holder waits with its next snapshot until that is done."""
        request = pb.LinkRequest(call="read", snapshot_id=snapshot_id, num_bytes=into.nbytes)
        self._connection.read_into(request, into)
