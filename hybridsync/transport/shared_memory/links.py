"""What workers, and readers of a state, do over shared memory."""

from __future__ import annotations

import numpy as np

from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.codec import decode, encode
from hybridsync.transport.shared_memory.connection import Connection


class _Link:
    """A worker's end: contributions and parameters are read where they were written.

    Args:
      connection: to the server.
      parameters_bytes: of its part.
    """

    def __init__(self, connection: Connection, parameters_bytes: int) -> None:
        self._connection, self._parameters_bytes = connection, parameters_bytes
        self.close = connection.close

    @property
    def contribution(self) -> np.ndarray:
        """See `ParameterLink.contribution`."""
        return self._connection.contribution


class SharedParameters(_Link):
    """A `ParameterLink`."""

    def pull(self, push: Push) -> tuple[PushReply, np.ndarray]:
        """See `ParameterLink.pull`."""
        return self._ask("pull", push, self._parameters_bytes)

    def push_pull(self, push: Push) -> tuple[PushReply, np.ndarray]:
        """See `ParameterLink.push_pull`."""
        return self._ask("push_pull", push, self.contribution.nbytes)

    def idle(self, push: Push) -> None:
        """See `ParameterPort.idle`."""
        self._connection.call(pb.LinkRequest(call="idle", push=encode(push)))

    def ready(self, push: Push) -> None:
        """See `ParameterPort.ready`."""
        self._connection.call(pb.LinkRequest(call="ready", push=encode(push)))

    def _ask(self, call: str, push: Push, num_bytes: int) -> tuple[PushReply, np.ndarray]:
        request = pb.LinkRequest(call=call, push=encode(push), num_bytes=num_bytes)
        reply, parameters = self._connection.call(request, self._parameters_bytes)
        return decode(PushReply, reply.reply), parameters


class SharedBlocks(_Link):
    """A `BlockLink`."""

    def stage(self, push: Push) -> str:
        """See `BlockLink.stage`."""
        request = pb.LinkRequest(call="stage", push=encode(push), num_bytes=self.contribution.nbytes)
        return self._connection.call(request)[0].non_finite

    def pull_at(self, push: Push) -> np.ndarray:
        """See `BlockLink.pull_at`."""
        request = pb.LinkRequest(call="pull_at", push=encode(push), num_bytes=self._parameters_bytes)
        return self._connection.call(request, self._parameters_bytes)[1]


class SharedReader:
    """Reads the state that a role keeps.

    Args:
      connection: to it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.close = connection.close

    def read(self, snapshot_id: int, into: np.ndarray) -> None:
        """Fill `into` (see `ReaderPort.read`); the holder waits with its next snapshot until that is done."""
        try:
            request = pb.LinkRequest(call="read", snapshot_id=snapshot_id, num_bytes=into.nbytes)
            into[:] = self._connection.call(request, into.nbytes)[1]
            self._connection.check()
        finally:
            self._connection.hang_up()
