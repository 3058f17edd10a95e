"""A holder of the training state over gRPC: `SnapshotServicer` has the state, `SnapshotClient` wants it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from hybridsync.core.deadlines import UPLOAD_SECS, snapshot_secs, transfer_secs
from hybridsync.core.errors import SchemaMismatch
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Snapshot
from hybridsync.security.identity import MEMBER
from hybridsync.security.keyring import NO_KEYS, Keyring
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.channels import (
    ANSWER_SECS,
    CALL_SECS,
    Channel,
    Servicer,
    call,
    retrying,
    sent_in_time,
    stub,
)
from hybridsync.transport.grpc.codec import decode, encode, parse
from hybridsync.transport.grpc.frames import check_size, receive_whole, send
from hybridsync.transport.grpc.status import Guard
from hybridsync.transport.link import SnapshotBackend

if TYPE_CHECKING:  # imports this module
    from hybridsync.transport.connected_links import ConnectedReader

UNREACHABLE_SECS = 3.0
"""How long a holder may be out of reach; one that is gone comes back at another address."""

STATE_BYTES = 1 << 36
"""Limit of a state; a reader who asks for more is refused before anything is allocated."""


def capture_secs(state_bytes: int) -> float:
    """Return the deadline of a snapshot: above everything that a holder of so large a state may wait for.

    These are the readers of its last snapshot, the states that workers upload, and the other servers' parts.
    """
    readers = fetch = transfer_secs(state_bytes)
    return readers + UPLOAD_SECS + snapshot_secs(state_bytes) + fetch + ANSWER_SECS


class SnapshotServicer(Servicer):
    """Serves a holder.

    Args:
      backend: is called by several threads at a time.
    """

    def __init__(self, backend: SnapshotBackend) -> None:
        self._backend = backend
        super().__init__("SnapshotSource", unary={"TakeSnapshot": self._snapshot}, streams={"Read": self._read})

    def _snapshot(self, request: pb.SnapshotRequest) -> pb.Snapshot:
        return encode(self._backend.take_snapshot(decode(PhaseId, request.phase_id), request.final, request.place))

    def _read(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        with Guard(context, "hybridsync.SnapshotSource.Read"):
            request = parse(pb.ReadRequest, data)
            if request.num_bytes > STATE_BYTES:
                raise SchemaMismatch(f"a state of {request.num_bytes} bytes is over the limit, {STATE_BYTES}")
            view = self._backend.lend(request.snapshot_id)
            try:
                check_size(request.num_bytes, view.buffer.nbytes)
                yield from sent_in_time(send(pb.Header(), view.buffer), context, view.buffer.nbytes)
            finally:
                view.release()


class SnapshotClient:
    """A holder in another process: `SnapshotSource`.

    Args:
      address: `host:port` of the holder.
      deadline_secs: limit in seconds for each call, all attempts together; None takes each call's own: above what the
        holder may wait for, and for as many bytes as are transferred.
      who: role at the address, for errors, as "worker 3".
      state_bytes: size of the whole state in bytes, if the client makes other calls than `read`, which knows it.
      keys: keys of this process.
      reader: reads in place of this channel's stream; closed with it.
      role: role that is dialled; `MEMBER` for any role that holds the state.

    All methods raise, besides the errors of the port:
      RoleLost: the holder could not be reached.
      WaitTimeout: the holder did not answer in time.
    """

    def __init__(
        self,
        address: str,
        deadline_secs: float | None = None,
        who: str = "the state's holder",
        state_bytes: int = 0,
        keys: Keyring = NO_KEYS,
        reader: ConnectedReader | None = None,
        role: str = MEMBER,
    ) -> None:
        self._who = f"{who} at {address}"
        self._fixed_secs, self._state_bytes = deadline_secs, state_bytes
        self._deadline_secs = self._within(CALL_SECS)
        self._channel = Channel(address, keys, role)
        self._snapshot = stub(self._channel, "SnapshotSource", "TakeSnapshot")
        self._stream = stub(self._channel, "SnapshotSource", "Read")
        self._reader = reader

    def take_snapshot(self, phase_id: PhaseId, final: bool, place: int = 0) -> Snapshot:
        """Keep a consistent copy of the state at the holder (see `SnapshotSource.take_snapshot`)."""
        request = pb.SnapshotRequest(phase_id=encode(phase_id), final=final, place=place)
        secs = self._within(capture_secs(self._state_bytes))
        return decode(Snapshot, self._ask(self._snapshot, "TakeSnapshot", request, secs))

    def read(self, snapshot_id: int, into: np.ndarray) -> None:
        """Fill `into` (uint8, C-contiguous) with that snapshot; after an error its content is undefined.

        Raises:
          SchemaMismatch: the snapshot has another size than `into`.
        """
        if self._reader is not None:
            return self._reader.read(snapshot_id, into)
        request = pb.ReadRequest(snapshot_id=snapshot_id, num_bytes=into.nbytes)

        def attempt(secs: float) -> None:
            receive_whole(self._stream(request, timeout=secs), into)

        retrying(attempt, self._within(transfer_secs(into.nbytes)), self._who, "Read", UNREACHABLE_SECS)

    def close(self) -> None:
        """Close the channel; calls under way end with `RoleLost`."""
        self._channel.close()
        if self._reader is not None:
            self._reader.close()

    def _ask(self, method: Any, what: str, request: Any, secs: float | None = None) -> Any:
        """Call a method of one answer; the role counts as lost after a moment."""
        secs = self._deadline_secs if secs is None else secs
        return call(method, request, secs, who=self._who, what=what, unreachable_secs=UNREACHABLE_SECS)

    def _within(self, secs: float) -> float:
        """Return the deadline of a call that takes `secs` where none was given for all of them."""
        return secs if self._fixed_secs is None else self._fixed_secs
