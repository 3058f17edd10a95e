"""The optimizer states of workers that make local updates, over gRPC: taken at a phase's start, left at its end."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import numpy as np

from hybridsync.interfaces.messages import Push
from hybridsync.interfaces.ports import OptimizerPort
from hybridsync.security.identity import SERVER
from hybridsync.security.keyring import NO_KEYS, Keyring
from hybridsync.transport.buffers import aligned
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.channels import Channel, Servicer, receive_in_time, retrying, sent_in_time, stub
from hybridsync.transport.grpc.codec import decode, encode, parse
from hybridsync.transport.grpc.frames import check_size, receive_header, receive_whole, send
from hybridsync.transport.grpc.interceptors import caller_of, check_speaker
from hybridsync.transport.grpc.snapshot_source import UNREACHABLE_SECS
from hybridsync.transport.grpc.status import Guard

LEAVE_SECS = 10.0
"""How long a worker tries to leave its state behind; the server waits less, so that a phase's end is not held up."""


class OptimizerServicer(Servicer):
    """Serves any parameter server to workers that make local updates.

    Args:
      backend: is called by several threads at a time; a buffer it is handed is its own from then on.
      num_bytes: size of this server's part; another is refused before it is received.
    """

    def __init__(self, backend: OptimizerPort, num_bytes: int) -> None:
        self._backend, self._num_bytes = backend, num_bytes
        super().__init__("OptimizerState", unary={}, streams={"Download": self._take, "Upload": self._leave})

    def _take(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        with Guard(context, "hybridsync.OptimizerState.Download"):
            request = parse(pb.Push, data)
            check_speaker(caller_of(context), "OptimizerState/Download", request)
            found = self._backend.download_opt_state(decode(Push, request))
            yield from sent_in_time(send(pb.Header(), found), context, found.nbytes)

    def _leave(self, stream: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with Guard(context, "hybridsync.OptimizerState.Upload"):
            header = receive_header(stream)
            check_speaker(caller_of(context), "OptimizerState/Upload", header.push)
            check_size(header.num_bytes, self._num_bytes)
            buffer = aligned(header.num_bytes)
            receive_in_time(stream, context, header, buffer)
            self._backend.upload_opt_state(decode(Push, header.push), buffer)
            yield pb.Empty().SerializeToString()


class OptimizerClient:
    """The optimizer state at a server in another process: `OptimizerPort`; a connection for each call.

    Args:
      address: `host:port` of the server.
      num_bytes: size of its part in bytes.
      keys: keys of this process.

    All methods raise, besides the errors of the port:
      RoleLost: the server could not be reached.
      WaitTimeout: the server did not answer in time.
    """

    def __init__(self, address: str, num_bytes: int, keys: Keyring = NO_KEYS) -> None:
        self._address, self._num_bytes, self._keys = address, num_bytes, keys

    def download_opt_state(self, push: Push) -> np.ndarray:
        """Return the state that the phase began with (see `OptimizerPort.download_opt_state`)."""
        into, request = aligned(self._num_bytes), encode(push)
        with self._connected() as channel:
            take = stub(channel, "OptimizerState", "Download")

            def attempt(secs: float) -> None:
                receive_whole(take(request, timeout=secs), into)

            retrying(attempt, 60.0, self._who, "Download", UNREACHABLE_SECS)
        return into

    def upload_opt_state(self, push: Push, opt_state: np.ndarray) -> None:
        """Leave a state behind (see `OptimizerPort.upload_opt_state`)."""
        header = pb.Header(push=encode(push))
        with self._connected() as channel:
            leave = stub(channel, "OptimizerState", "Upload")

            def attempt(secs: float) -> None:
                next(leave(send(header, opt_state), timeout=secs))

            retrying(attempt, LEAVE_SECS, self._who, "Upload", UNREACHABLE_SECS)

    def _connected(self) -> Channel:
        return Channel(self._address, self._keys, SERVER)

    @property
    def _who(self) -> str:
        return f"the parameter server at {self._address}"
