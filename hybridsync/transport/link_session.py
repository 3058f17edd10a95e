"""Answers the requests of one caller of a link, whatever carries them and the buffers that they speak of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ClassVar, TypeVar

import numpy as np
from absl import logging

from hybridsync.core.errors import HybridSyncError, InvalidMessage, described
from hybridsync.interfaces.messages import Push
from hybridsync.interfaces.ports import Answer, BufferView
from hybridsync.security.authorization import RULES, check_caller
from hybridsync.security.identity import Identity
from hybridsync.transport.buffers import Buffers
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.codec import decode, encode, parse
from hybridsync.transport.grpc.interceptors import check_speaker
from hybridsync.transport.grpc.parameter_server import BUFFER_SECS
from hybridsync.transport.link import Services
from hybridsync.transport.named_errors import named

Data = TypeVar("Data")
Reply = TypeVar("Reply")

MOST_BYTES = 1 << 16
"""Of a request or a reply; buffers are not in them."""


CONTRIBUTING = frozenset({"push_pull", "stage"})
"""The calls that bring a buffer of the caller's."""


METHODS = {
    "read": "SnapshotSource/Read",
    "pull": "ParameterServer/Pull",
    "push_pull": "ParameterServer/PushPull",
    "idle": "ParameterServer/Idle",
    "ready": "ParameterServer/Ready",
    "stage": "Shard/Stage",
    "pull_at": "Shard/PullAt",
}
"""Calls -> the methods of gRPC whose place they take, and whose rules hold for them."""


class CallerLost(ConnectionError):
    """A caller, or the connection to it, is gone in the middle of a call."""


def staged_blocks(services: Services) -> Buffers:
    """Return the buffers of a role for staged blocks, which outlive the call."""
    return Buffers(services.contribution_bytes if services.shard is not None else 0, max(1, services.num_buffers))


class LinkSession(ABC):
    """Carries each request out; a subclass moves the buffers.

    Args:
      services: services of the role.
      blocks: buffers for staged blocks.
      caller: identity of the caller; None without certificates.
    """

    over: ClassVar[str]
    """The name of the medium that carries the calls, for errors."""

    def __init__(self, services: Services, blocks: Buffers, caller: Identity | None = None) -> None:
        self._services, self._blocks, self._caller = services, blocks, caller
        self._calls: dict[str, Callable[[pb.LinkRequest], pb.LinkReply]] = {"read": self._read}
        if services.parameters is not None:
            self._parameters = services.parameters
            self._calls |= {
                "pull": self._pull,
                "push_pull": self._push_pull,
                "idle": self._idle,
                "ready": self._ready,
            }
        if services.shard is not None:
            self._shard = services.shard
            self._calls |= {"stage": self._stage, "pull_at": self._pull_at}

    def answered(self, data: bytes) -> pb.LinkReply:
        """Return the reply to a request.

        Raises:
          CallerLost: the connection is of no more use.
        """
        return self._by_name(self._answer, data)

    def _answer(self, data: bytes) -> pb.LinkReply:
        if len(data) > MOST_BYTES:
            raise InvalidMessage(f"the request has more than {MOST_BYTES} bytes, and a buffer is not sent in it")
        request = parse(pb.LinkRequest, data)
        self._admit(request)
        call = self._calls.get(request.call)
        if call is None:
            raise InvalidMessage(f"this role does not answer {request.call[:40]!r} over {self.over}")
        if self._caller is not None:
            self._check_caller(request, self._caller)
        return call(request)

    def _by_name(self, answer: Callable[[Data], Reply], data: Data) -> Reply | pb.LinkReply:
        """Return an answer, or the reply that names the error that it raised.

        Raises:
          CallerLost: the connection is of no more use.
        """
        try:
            return answer(data)
        except HybridSyncError as error:
            return refusal(error)
        except CallerLost:
            raise
        except Exception as error:  # noqa: BLE001 - the caller gets a defect by name, the others are served on
            logging.exception("a call over %s failed", self.over)
            return refusal(HybridSyncError(f"{described(error)}"))

    @staticmethod
    def _check_caller(request: pb.LinkRequest, caller: Identity) -> None:
        method = METHODS[request.call]
        check_caller(method, caller)
        if RULES[method].names_sender:
            check_speaker(caller, method, request.push)

    # --- what each kind of link does its own way ---

    @abstractmethod
    def _admit(self, request: pb.LinkRequest) -> None:
        """Refuse a stranger, and begin a call."""

    @abstractmethod
    def _check_offer(self, num_bytes: int) -> None:
        """Refuse a contribution that this end would not take."""

    @abstractmethod
    def _offered(self, num_bytes: int) -> AbstractContextManager[np.ndarray]:
        """Lend the contribution of the request: unchanged within the `with` block."""

    @abstractmethod
    def _copy_offered(self, into: np.ndarray) -> None:
        """Fill `into` with the contribution of the request."""

    @abstractmethod
    def _give_back(self) -> None:
        """Give back what the last call lent."""

    @abstractmethod
    def _lend(self, view: BufferView, num_bytes: int) -> pb.LinkReply:
        """Return the reply that lends a view of so many bytes; what was lent before has been given back."""

    @abstractmethod
    def _lend_parameters(self, answer: Answer, num_bytes: int, brings_them: bool) -> pb.LinkReply:
        """Return the reply of a parameter server, and see to its parameters' arrival."""

    # --- calls ---

    def _pull(self, request: pb.LinkRequest) -> pb.LinkReply:
        self._give_back()
        answer = self._parameters.pull(decode(Push, request.push))
        return self._lend_parameters(answer, request.num_bytes, brings_them=True)

    def _pushed(self, push: Push, num_bytes: int) -> Answer:
        """Push the contribution that the caller offers; what it was lent before goes back."""
        self._check_offer(num_bytes)
        offer = self._parameters.begin_push(push)
        with self._offered(num_bytes) as contribution:
            self._give_back()  # before the update, which may write over it: the caller has computed on it
            return offer(contribution)

    def _push_pull(self, request: pb.LinkRequest) -> pb.LinkReply:
        push = decode(Push, request.push)
        answer = self._pushed(push, request.num_bytes)
        if push.push_only:
            answer.parameters.release()
            return pb.LinkReply(reply=encode(answer.reply))
        return self._lend_parameters(answer, answer.parameters.buffer.nbytes, answer.reply.brings_parameters(push))

    def _idle(self, request: pb.LinkRequest) -> pb.LinkReply:
        self._parameters.idle(decode(Push, request.push))
        return pb.LinkReply()

    def _ready(self, request: pb.LinkRequest) -> pb.LinkReply:
        self._parameters.ready(decode(Push, request.push))
        return pb.LinkReply()

    def _stage(self, request: pb.LinkRequest) -> pb.LinkReply:
        push = decode(Push, request.push)
        self._check_offer(request.num_bytes)
        # It is kept until the primary decides, and the caller continues.
        block = self._blocks.borrow(BUFFER_SECS, request.num_bytes)
        try:
            self._copy_offered(block.buffer)
        except BaseException:
            block.release()
            raise
        return pb.LinkReply(non_finite=self._shard.stage(push, block))

    def _pull_at(self, request: pb.LinkRequest) -> pb.LinkReply:
        self._give_back()
        return self._lend(self._shard.pull_at(decode(Push, request.push)), request.num_bytes)

    def _read(self, request: pb.LinkRequest) -> pb.LinkReply:
        self._give_back()
        return self._lend(self._services.holder.lend(request.snapshot_id), request.num_bytes)


def refusal(error: HybridSyncError) -> pb.LinkReply:
    """Return the reply that refuses a request."""
    name, text = named(error)
    return pb.LinkReply(error=name, text=text, answers=True)
