"""A parameter server that is not the primary, over gRPC: `ShardServicer`, and `ShardClient` for primary and workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import grpc
import numpy as np

from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push, Snapshot, Update
from hybridsync.security.identity import SERVER
from hybridsync.security.keyring import NO_KEYS, Keyring
from hybridsync.transport.buffers import Buffers
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.channels import (
    ANSWER_SECS,
    Servicer,
    receive_in_time,
    retrying,
    sent_in_time,
    stub,
)
from hybridsync.transport.grpc.codec import check_length, decode, encode, parse
from hybridsync.transport.grpc.frames import check_size, receive_header, receive_whole, send
from hybridsync.transport.grpc.interceptors import caller_of, check_speaker
from hybridsync.transport.grpc.parameter_server import BUFFER_SECS
from hybridsync.transport.grpc.snapshot_source import SnapshotClient
from hybridsync.transport.grpc.status import Guard
from hybridsync.transport.link import ShardBackend

if TYPE_CHECKING:  # imports this module
    from hybridsync.transport.connected_links import ConnectedReader


class ShardServicer(Servicer):
    """Serves a server that is not the primary; its part of the state is served by a `SnapshotServicer`.

    Args:
      backend: is called by several threads at a time; a block it is handed is 64-byte aligned and its own until it
        releases it.
      block_bytes: size of blocks; another is refused before it is received.
      num_buffers: blocks that may be staged at a time; above the pushes that the rule may hold, and twice the number
        of workers, since a lost one's block stays until the chief has noticed.
      narrow_bytes: smaller sizes that it takes as well, of phases with a narrow wire.
    """

    def __init__(
        self, backend: ShardBackend, block_bytes: int, num_buffers: int = 32, narrow_bytes: Sequence[int] = ()
    ) -> None:
        self._backend = backend
        self._sizes = block_bytes, *narrow_bytes
        self._buffers = Buffers(block_bytes, num_buffers)
        super().__init__(
            "Shard",
            unary={
                "Apply": self._apply,
                "Discard": self._discard,
                "Forget": self._forget,
                "SnapshotPart": self._snapshot_part,
            },
            streams={"Stage": self._stage, "PullAt": self._pull_at},
        )

    def _apply(self, request: pb.Updates) -> pb.Empty:
        check_length("updates of Updates", request.updates)
        updates = tuple(decode(Update, update) for update in request.updates)
        self._backend.apply(decode(PhaseId, request.phase_id), updates)
        return pb.Empty()

    def _discard(self, request: pb.Push) -> pb.Empty:
        self._backend.discard(decode(Push, request))
        return pb.Empty()

    def _forget(self, request: pb.FenceRequest) -> pb.Empty:
        self._backend.forget(decode(PhaseId, request.phase_id), request.worker, request.incarnation)
        return pb.Empty()

    def _snapshot_part(self, request: pb.PartSnapshotRequest) -> pb.Snapshot:
        check_length("left of PartSnapshotRequest", request.left)
        phase_id = decode(PhaseId, request.phase_id)
        return encode(self._backend.snapshot_part(phase_id, request.sequence, request.final, tuple(request.left)))

    def _stage(self, stream: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with Guard(context, "hybridsync.Shard.Stage"):
            header = receive_header(stream)
            check_speaker(caller_of(context), "Shard/Stage", header.push)
            check_size(header.num_bytes, *self._sizes)
            block = self._buffers.borrow(BUFFER_SECS, header.num_bytes)
            try:
                receive_in_time(stream, context, header, block.buffer)
            except BaseException:
                block.release()
                raise
            found = self._backend.stage(decode(Push, header.push), block)
            yield pb.StageReply(non_finite=found).SerializeToString()

    def _pull_at(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        with Guard(context, "hybridsync.Shard.PullAt"):
            request = parse(pb.Push, data)
            check_speaker(caller_of(context), "Shard/PullAt", request)
            served = self._backend.pull_at(decode(Push, request))
            try:
                yield from sent_in_time(send(pb.Header(), served.buffer), context, served.buffer.nbytes)
            finally:
                served.release()


class ShardClient(SnapshotClient):
    """A server that is not the primary, in another process: `ShardPort`, and `stage` and `pull_at` for workers.

    Args:
      address: `host:port` of the server.
      deadline_secs: limit in seconds for each call, all attempts together; None takes each call's own (see
        `SnapshotClient`).
      who: role at the address, for errors.
      state_bytes: size of the whole state in bytes, for the primary's calls.
      keys: keys of this process.
      reader: see `SnapshotClient`.

    All methods raise, besides the errors of the ports:
      RoleLost: the server could not be reached.
      WaitTimeout: the server did not answer in time.
    """

    def __init__(
        self,
        address: str,
        deadline_secs: float | None = None,
        who: str = "the parameter server",
        state_bytes: int = 0,
        keys: Keyring = NO_KEYS,
        reader: ConnectedReader | None = None,
    ) -> None:
        super().__init__(address, deadline_secs, who, state_bytes=state_bytes, keys=keys, reader=reader, role=SERVER)
        self._apply = stub(self._channel, "Shard", "Apply")
        self._discard = stub(self._channel, "Shard", "Discard")
        self._forget = stub(self._channel, "Shard", "Forget")
        self._snapshot_part = stub(self._channel, "Shard", "SnapshotPart")
        self._stage = stub(self._channel, "Shard", "Stage")
        self._pull_at = stub(self._channel, "Shard", "PullAt")

    def apply(self, phase_id: PhaseId, updates: tuple[Update, ...]) -> None:
        """Tell of decided updates (see `ShardPort.apply`)."""
        request = pb.Updates(phase_id=encode(phase_id), updates=[encode(update) for update in updates])
        self._ask(self._apply, "Apply", request)

    def discard(self, push: Push) -> None:
        """Tell that a push will not be applied (see `ShardPort.discard`)."""
        self._ask(self._discard, "Discard", encode(push))

    def forget(self, phase_id: PhaseId, worker: int, incarnation: int) -> None:
        """Tell that a worker is gone (see `ShardPort.forget`)."""
        request = pb.FenceRequest(phase_id=encode(phase_id), worker=worker, incarnation=incarnation)
        self._ask(self._forget, "Forget", request)

    def snapshot_part(self, phase_id: PhaseId, sequence: int, final: bool, left: tuple[int, ...] = ()) -> Snapshot:
        """Keep a copy of the part at the server (see `ShardPort.snapshot_part`)."""
        request = pb.PartSnapshotRequest(phase_id=encode(phase_id), sequence=sequence, final=final, left=left)
        secs = self._within(transfer_secs(self._state_bytes) + ANSWER_SECS)
        return decode(Snapshot, self._ask(self._snapshot_part, "SnapshotPart", request, secs))

    def stage(self, push: Push, block: np.ndarray) -> str:
        """Stage a part of a contribution; returns its first entry that is no finite number, or "".

        Args:
          push: push to which the part belongs.
          block: uint8, C-contiguous; unchanged until the call returns.

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date; nothing is kept.
          SchemaMismatch: the block has another size than the server's.
        """
        header = pb.Header(push=encode(push))

        def attempt(secs: float) -> str:
            return parse(pb.StageReply, next(self._stage(send(header, block), timeout=secs))).non_finite

        return retrying(attempt, self._deadline_secs, self._who, "Stage")

    def pull_at(self, push: Push, into: np.ndarray) -> None:
        """Fill `into` (uint8, C-contiguous) with the parameters after update `push.base`.

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date.
          SchemaMismatch: the parameters have another size than `into`.
        """
        request = encode(push)

        def attempt(secs: float) -> None:
            receive_whole(self._pull_at(request, timeout=secs), into)

        retrying(attempt, self._deadline_secs, self._who, "PullAt")
