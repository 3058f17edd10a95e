"""A worker's links over gRPC: its end has buffers of its own, which each call fills."""

from __future__ import annotations

import numpy as np

from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.transport.buffers import zeroed
from hybridsync.transport.grpc.parameter_server import ParameterClient
from hybridsync.transport.grpc.shard import ShardClient


class OwnParameters:
    """A `ParameterLink` with one pair of buffers for the whole phase.

    Args:
      calls: the primary; they fill a buffer that the caller brings along.
      contribution_bytes, parameters_bytes: sizes in bytes of its part.
    """

    def __init__(self, calls: ParameterClient, contribution_bytes: int, parameters_bytes: int) -> None:
        self._calls = calls
        self.contribution = zeroed(contribution_bytes)
        self._parameters = zeroed(parameters_bytes)
        self.idle, self.ready, self.close = calls.idle, calls.ready, calls.close

    def pull(self, push: Push) -> tuple[PushReply, np.ndarray]:
        """See `ParameterLink.pull`."""
        return self._calls.pull(push, self._parameters), self._parameters

    def push_pull(self, push: Push) -> tuple[PushReply, np.ndarray]:
        """See `ParameterLink.push_pull`."""
        return self._calls.push_pull(push, self.contribution, self._parameters), self._parameters


class OwnBlocks:
    """A `BlockLink` with one pair of buffers for the whole phase (see `OwnParameters`)."""

    def __init__(self, calls: ShardClient, contribution_bytes: int, parameters_bytes: int) -> None:
        self._calls = calls
        self.contribution = zeroed(contribution_bytes)
        self._parameters = zeroed(parameters_bytes)
        self.close = calls.close

    def stage(self, push: Push) -> str:
        """See `BlockLink.stage`."""
        return self._calls.stage(push, self.contribution)

    def pull_at(self, push: Push) -> np.ndarray:
        """See `BlockLink.pull_at`."""
        self._calls.pull_at(push, self._parameters)
        return self._parameters
