"""A worker's link to a parameter server in another process: trees here, packed buffers on the wire."""

from __future__ import annotations

from typing import Any

from hybridsync.messages import Push, PushReply
from hybridsync.rpc.parameter_server import ParameterClient
from hybridsync.step import Parameters, Programs


class RemoteLink:
    """Pushes contributions and pulls parameters over gRPC.

    One pair of buffers serves the whole phase: the parameters of the last reply have been read by the gradient that is
    pushed now, so its buffer may be overwritten. The gradient reads it where it lies: on CPU a jitted program aliases
    aligned views, where a `device_put` of each leaf would cost more than a small gradient does.

    Args:
      client: of the server.
      programs: for the layouts.
    """

    def __init__(self, client: ParameterClient, programs: Programs) -> None:
        self._client = client
        self._contribution_layout = programs.contribution_layout
        self._parameters_layout = programs.parameters_layout
        self._contribution = programs.contribution_layout.empty()
        self._parameters = programs.parameters_layout.empty()

    def pull(self, push: Push) -> tuple[PushReply, Parameters]:
        """See `ServerLink.pull`."""
        reply = self._client.pull(push, self._parameters)
        return reply, self._unpacked()

    def push_pull(self, push: Push, contribution: Any) -> tuple[PushReply, Parameters]:
        """See `ServerLink.push_pull`."""
        self._contribution_layout.pack(contribution, out=self._contribution)
        reply = self._client.push_pull(push, self._contribution, self._parameters)
        return reply, self._unpacked()

    def close(self) -> None:
        """See `ServerLink.close`."""
        self._client.close()

    def _unpacked(self) -> Parameters:
        return self._parameters_layout.unpack(self._parameters)
