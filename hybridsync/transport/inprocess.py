"""Roles that are threads of one process: they call each other's objects, and pass trees instead of buffers."""

from __future__ import annotations

from typing import Any

from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.interfaces.ports import Answer, OptimizerPort, ParameterPort
from hybridsync.training.programs import Parameters


class ThreadLink:
    """A `ServerLink` to a primary in this process; trees go through as they are.

    Args:
      server: the primary.
      optimizer: the same, for workers with local updates; its buffers are trees here.
    """

    def __init__(self, server: ParameterPort, optimizer: OptimizerPort) -> None:
        self._server, self._optimizer = server, optimizer

    def pull(self, push: Push) -> tuple[PushReply, Parameters]:
        """See `ServerLink.pull`."""
        return _arrived(self._server.pull(push))

    def push_pull(self, push: Push, contribution: Any) -> tuple[PushReply, Parameters]:
        """See `ServerLink.push_pull`."""
        return _arrived(self._server.begin_push(push)(contribution))

    def idle(self, push: Push) -> None:
        """See `ServerLink.idle`."""
        self._server.idle(push)

    def ready(self, push: Push) -> None:
        """See `ServerLink.ready`."""
        self._server.ready(push)

    def opt_state(self, push: Push) -> Any:
        """See `ServerLink.opt_state`."""
        return self._optimizer.opt_state(push)

    def deposit(self, push: Push, opt_state: Any) -> None:
        """See `ServerLink.deposit`."""
        self._optimizer.deposit(push, opt_state)

    def close(self) -> None:
        """Nothing: a push that is held ends with its phase."""


def _arrived(answer: Answer) -> tuple[PushReply, Parameters]:
    answer.await_arrival()
    return answer.reply, answer.parameters
