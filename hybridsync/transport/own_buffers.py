"""Links whose two ends share no memory: the worker's end has buffers of its own, which each call fills."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.transport.buffers import zeroed


class ParameterCalls(Protocol):
    """The primary, for a caller that brings a worker's buffers along; all are uint8 and C-contiguous."""

    def pull(self, push: Push, into: np.ndarray) -> PushReply:
        """Fill `into` with the current parameters; after an error it holds anything."""
        ...

    def push_pull(self, push: Push, contribution: np.ndarray, into: np.ndarray) -> PushReply:
        """Offer a contribution; fill `into` with the parameters of its release, where they are not those of its base.

        The contribution is unchanged until the call returns.
        """
        ...

    def idle(self, push: Push) -> None: ...

    def ready(self, push: Push) -> None: ...

    def close(self) -> None: ...


class BlockCalls(Protocol):
    """A server that is not the primary, called like this."""

    def stage(self, push: Push, block: np.ndarray) -> str: ...

    def pull_at(self, push: Push, into: np.ndarray) -> None: ...

    def close(self) -> None: ...


class OwnParameters:
    """A `ParameterLink` with one pair of buffers for the whole phase.

    Args:
      calls: calls of the primary.
      contribution_bytes, parameters_bytes: sizes in bytes of its part.
    """

    def __init__(self, calls: ParameterCalls, contribution_bytes: int, parameters_bytes: int) -> None:
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

    def __init__(self, calls: BlockCalls, contribution_bytes: int, parameters_bytes: int) -> None:
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
