"""A parameter server over gRPC: servicers here, `ParameterClient` for the chief, and for workers on the primary."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push, PushReply, StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import Answer, ParameterPort, ServerPort
from hybridsync.security.identity import SERVER
from hybridsync.security.keyring import NO_KEYS, Keyring
from hybridsync.transport.buffers import Buffers
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.channels import (
    ANSWER_SECS,
    CALL_SECS,
    Servicer,
    call,
    ended_after,
    in_time,
    receive_in_time,
    retrying,
    stub,
)
from hybridsync.transport.grpc.codec import decode, encode, parse
from hybridsync.transport.grpc.exchange import STREAM_SECS, StreamExchange
from hybridsync.transport.grpc.frames import check_size, last_after, receive, receive_header, receive_whole, send
from hybridsync.transport.grpc.interceptors import caller_of, check_speaker
from hybridsync.transport.grpc.snapshot_source import SnapshotClient
from hybridsync.transport.grpc.status import Guard

if TYPE_CHECKING:  # imports this module
    from hybridsync.transport.connected_links import ConnectedReader

SMALL_BYTES = 1 << 20
"""Buffers below this go in one message."""

NOTHING = np.empty(0, np.uint8)

BUFFER_SECS = 30.0
"""How long a push waits for a receive buffer."""

SMALL_STREAM_SECS = CALL_SECS + STREAM_SECS + 10.0
"""How long a stream of small pushes is served: longer than a worker's own deadline for it."""


class PhaseServicer(Servicer):
    """Serves any parameter server to the chief; its state is served by a `SnapshotServicer` on the same backend.

    Args:
      backend: is called by several threads at a time.
    """

    def __init__(self, backend: ServerPort) -> None:
        self._backend = backend
        super().__init__("PhaseServer", unary={"Enter": self._enter, "Fence": self._fence})

    def _enter(self, request: pb.Phase) -> pb.StateVersion:
        return encode(self._backend.enter(decode(Phase, request)))

    def _fence(self, request: pb.FenceRequest) -> pb.Empty:
        self._backend.fence(decode(PhaseId, request.phase_id), request.worker, request.incarnation)
        return pb.Empty()


class ParameterServicer(Servicer):
    """Serves the primary to workers.

    Args:
      backend: is called by several threads at a time; a contribution it is handed is 64-byte aligned and its
        own until the call returns.
      contribution_bytes: size of contributions; another is refused before it is received.
      num_buffers: contributions that may be held at a time; at least the number of workers.
      narrow_bytes: smaller sizes that it takes as well, of phases with a narrow wire.
    """

    def __init__(
        self, backend: ParameterPort, contribution_bytes: int, num_buffers: int = 32, narrow_bytes: Sequence[int] = ()
    ) -> None:
        self._backend = backend
        self._sizes = contribution_bytes, *narrow_bytes
        self._buffers = Buffers(contribution_bytes, num_buffers)
        super().__init__(
            "ParameterServer",
            unary={"Idle": self._idle, "Ready": self._ready},
            streams={"PushPull": self._push_pull, "PushPullSmall": self._push_pull_small, "Pull": self._pull},
        )

    def _idle(self, request: pb.Push) -> pb.Empty:
        self._backend.idle(decode(Push, request))
        return pb.Empty()

    def _ready(self, request: pb.Push) -> pb.Empty:
        self._backend.ready(decode(Push, request))
        return pb.Empty()

    def _push_pull_small(self, stream: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with Guard(context, "hybridsync.ParameterServer.PushPullSmall"), ended_after(context, SMALL_STREAM_SECS):
            caller = caller_of(context)
            for data in stream:
                request = parse(pb.SmallPush, data)
                check_speaker(caller, "ParameterServer/PushPullSmall", request.push)
                yield self._answer_small(request).SerializeToString()

    def _answer_small(self, request: pb.SmallPush) -> pb.SmallReply:
        check_size(len(request.contribution), *self._sizes)
        push = decode(Push, request.push)
        offer = self._backend.begin_push(push)
        with self._buffers.lend(BUFFER_SECS) as whole:
            buffer = whole[: len(request.contribution)]
            buffer[:] = np.frombuffer(request.contribution, np.uint8)
            answer = offer(buffer)
        try:
            if not answer.reply.brings_parameters(push):
                return pb.SmallReply(reply=encode(answer.reply))
            answer.await_arrival()
            return pb.SmallReply(reply=encode(answer.reply), parameters=answer.parameters.buffer.tobytes())
        finally:
            answer.parameters.release()

    def _push_pull(self, stream: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with Guard(context, "hybridsync.ParameterServer.PushPull"):
            header = receive_header(stream)
            check_speaker(caller_of(context), "ParameterServer/PushPull", header.push)
            check_size(header.num_bytes, *self._sizes)
            push = decode(Push, header.push)
            offer = self._backend.begin_push(push)
            with self._buffers.lend(BUFFER_SECS) as whole:
                buffer = whole[: header.num_bytes]
                receive_in_time(stream, context, header, buffer)
                answer = offer(buffer)
            if answer.reply.brings_parameters(push):
                yield from _frames(answer, context)
            else:
                answer.parameters.release()
                yield from send(pb.Header(reply=encode(answer.reply)), NOTHING)

    def _pull(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        with Guard(context, "hybridsync.ParameterServer.Pull"):
            request = parse(pb.Push, data)
            check_speaker(caller_of(context), "ParameterServer/Pull", request)
            yield from _frames(self._backend.pull(decode(Push, request)), context)


def _frames(answer: Answer, context: grpc.ServicerContext) -> Iterator[bytes]:
    """Yield the frames of an answer; the lent buffer goes back after the last, or when the caller is gone."""
    try:
        frames = send(pb.Header(reply=encode(answer.reply)), answer.parameters.buffer)
        bounded = functools.partial(in_time, context, answer.parameters.buffer.nbytes)
        yield from last_after(frames, answer.await_arrival, bounded)
    finally:
        answer.parameters.release()


class ParameterClient(SnapshotClient):
    """A parameter server in another process: `ServerPort` for the chief, `pull` and `push_pull` for workers.

    Args:
      address: `host:port` of the server.
      deadline_secs: limit in seconds for each call, all attempts together; None takes each call's own (see
        `SnapshotClient`).
      who: role at the address, for errors.
      state_bytes: size of the whole state in bytes, for the chief's calls.
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
        self._enter = stub(self._channel, "PhaseServer", "Enter")
        self._fence = stub(self._channel, "PhaseServer", "Fence")
        self._pull = stub(self._channel, "ParameterServer", "Pull")
        self._idle = stub(self._channel, "ParameterServer", "Idle")
        self._ready = stub(self._channel, "ParameterServer", "Ready")
        self._push_pull = stub(self._channel, "ParameterServer", "PushPull")
        self._small = StreamExchange(stub(self._channel, "ParameterServer", "PushPullSmall"), self._who)

    def enter(self, phase: Phase) -> StateVersion:
        """Make the server take the phase's starting state and serve the phase."""
        secs = self._within(transfer_secs(self._state_bytes) + ANSWER_SECS)
        return decode(StateVersion, self._ask(self._enter, "Enter", encode(phase), secs))

    def fence(self, phase_id: PhaseId, worker: int, incarnation: int) -> None:
        """Make the server refuse the worker's incarnations up to this one."""
        request = pb.FenceRequest(phase_id=encode(phase_id), worker=worker, incarnation=incarnation)
        self._ask(self._fence, "Fence", request)

    def pull(self, push: Push, into: np.ndarray) -> PushReply:
        """Fill `into` (uint8, C-contiguous) with the current parameters; after an error it holds anything.

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date.
          SchemaMismatch: the parameters have another size than `into`.
        """
        request = encode(push)

        def attempt(secs: float) -> PushReply:
            return decode(PushReply, receive_whole(self._pull(request, timeout=secs), into).reply)

        return retrying(attempt, self._deadline_secs, self._who, "Pull")

    def idle(self, push: Push) -> None:
        """Tell the primary that the worker has nothing to compute (see `ParameterPort.idle`)."""
        call(self._idle, encode(push), self._deadline_secs, self._who, "Idle")

    def ready(self, push: Push) -> None:
        """Wait until the primary grants the push (see `ParameterPort.ready`)."""
        call(self._ready, encode(push), self._deadline_secs, self._who, "Ready")

    def push_pull(self, push: Push, contribution: np.ndarray, into: np.ndarray) -> PushReply:
        """Offer a contribution; fill `into` with the parameters of the moment the rule releases it.

        They are not sent where they are still those of `push.base`: then `into` is left as it is.

        Args:
          push: push that is offered.
          contribution: uint8, C-contiguous; unchanged until the call returns.
          into: uint8, C-contiguous; after an error its content is undefined.

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date; nothing was applied.
          SchemaMismatch: the contribution or `into` has another size than the server's.
        """
        if max(contribution.nbytes, into.nbytes) < SMALL_BYTES:
            small = pb.SmallPush(push=encode(push), contribution=contribution.tobytes())
            request = small.SerializeToString()
            data = retrying(lambda secs: self._small.send(request, secs), self._deadline_secs, self._who, "PushPull")
            answer = parse(pb.SmallReply, data)
            reply = decode(PushReply, answer.reply)
            if reply.brings_parameters(push):
                check_size(len(answer.parameters), into.nbytes)
                into[:] = np.frombuffer(answer.parameters, np.uint8)
            return reply
        header = pb.Header(push=encode(push))

        def attempt(secs: float) -> PushReply:
            return _receive_reply(self._push_pull(send(header, contribution), timeout=secs), push, into)

        return retrying(attempt, self._deadline_secs, self._who, "PushPull")

    def close(self) -> None:
        """Close the channel; calls under way end with `RoleLost`."""
        self._small.close()
        super().close()


def _receive_reply(stream: Any, push: Push, into: np.ndarray) -> PushReply:
    """Read the reply to a push, and fill `into` where parameters come with it."""
    try:
        header = receive_header(stream)
        reply = decode(PushReply, header.reply)
        if reply.brings_parameters(push):
            receive(stream, header, into)
        return reply
    finally:
        stream.cancel()
