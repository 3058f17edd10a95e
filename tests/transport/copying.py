"""A transport of one process that copies buffers, as a wire would: for tests, and an example of a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.interfaces.ports import Answer, OptimizerPort, ParameterPort
from hybridsync.server.partition import Part
from hybridsync.transport.buffers import aligned
from hybridsync.transport.grpc.own_buffers import OwnBlocks, OwnParameters
from hybridsync.transport.inprocess import InProcessTransport
from hybridsync.transport.link import ShardBackend
from hybridsync.transport.packed_link import PackedLink


@dataclass
class Block:
    """A block in a server's hands, overwritten when it comes back."""

    buffer: np.ndarray
    num_released: int = 0

    def release(self) -> None:
        self.num_released += 1
        self.buffer[:] = 0xFF


@dataclass
class CopyingBlocks:
    """The calls of a `ShardClient` on a server of this process."""

    server: ShardBackend
    blocks: list[Block] = field(default_factory=list)

    def stage(self, push: Push, block: np.ndarray) -> str:
        self.blocks.append(Block(aligned_copy(block)))
        return self.server.stage(push, self.blocks[-1])

    def pull_at(self, push: Push, into: np.ndarray) -> None:
        served = self.server.pull_at(push)
        into[:] = served.buffer
        served.release()

    def close(self) -> None:
        pass


@dataclass
class CopyingParameters:
    """The calls of a `ParameterClient` on a primary of this process."""

    primary: ParameterPort

    def pull(self, push: Push, into: np.ndarray) -> PushReply:
        return _filled(self.primary.pull(push), into)

    def push_pull(self, push: Push, contribution: np.ndarray, into: np.ndarray) -> PushReply:
        return _filled(self.primary.begin_push(push)(aligned_copy(contribution)), into)

    def idle(self, push: Push) -> None:
        self.primary.idle(push)

    def ready(self, push: Push) -> None:
        self.primary.ready(push)

    def close(self) -> None:
        pass


class CopyingTransport(InProcessTransport):
    """Carries the buffers of pushes and pulls itself, and leaves the other calls to another transport."""

    def link(self, servers: Sequence[str], parts: Sequence[Part] = ()) -> PackedLink:
        primary, *others = servers
        return packed_link(
            parts,
            CopyingParameters(self._offered(primary, "parameters")),
            [CopyingBlocks(self._offered(address, "shard")) for address in others],
            [self._offered(address, "optimizer") for address in servers],
        )


def packed_link(
    parts: Sequence[Part],
    primary: Any,
    others: Sequence[Any] = (),
    optimizers: Sequence[OptimizerPort] = (),
) -> PackedLink:
    """Return a worker's link over calls that bring its own buffers along."""
    sizes = [(part.contribution.layout.nbytes, part.parameters.layout.nbytes) for part in parts]
    blocks = [OwnBlocks(calls, *size) for calls, size in zip(others, sizes[1:], strict=True)]
    return PackedLink(parts, OwnParameters(primary, *sizes[0]), blocks, optimizers)


def aligned_copy(block: np.ndarray) -> np.ndarray:
    copy = aligned(block.nbytes)
    copy[:] = block
    return copy


def _filled(answer: Answer, into: np.ndarray) -> PushReply:
    into[:] = answer.parameters.buffer
    answer.await_arrival()
    answer.parameters.release()
    return answer.reply
