"""The head of a run over gRPC: `HeadServicer` in the head's supervisor, `HeadClient` in the agents of other hosts."""

from __future__ import annotations

from typing import Any

from hybridsync.interfaces.agents import AgentHello, AgentReply, AgentReport, AgentWelcome
from hybridsync.interfaces.ports import HeadPort
from hybridsync.security.identity import HEAD
from hybridsync.security.keyring import NO_KEYS, Keyring
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.channels import ANSWER_SECS, Channel, Servicer, call, stub
from hybridsync.transport.grpc.codec import decode, encode

UNREACHABLE_SECS = 1.0
"""How long a call looks for a head that it cannot reach; the caller judges how often to try again."""


class HeadServicer(Servicer):
    """Serves a head.

    Args:
      backend: is called by several threads at a time, two for each agent.
    """

    def __init__(self, backend: HeadPort) -> None:
        super().__init__(
            "Head",
            unary={
                "Attach": lambda request: encode(backend.attach(decode(AgentHello, request))),
                "Exchange": lambda request: encode(backend.exchange(decode(AgentReport, request))),
            },
        )


class HeadClient:
    """A head in another process: `HeadPort`.

    Args:
      address: address of the head; it may start later than the client.
      keys: keys of this process.

    All methods raise, besides the errors of the port:
      RoleLost: the head could not be reached, or the client is closed.
      WaitTimeout: the head did not answer in time.
    """

    def __init__(self, address: str, keys: Keyring = NO_KEYS) -> None:
        self._who = f"the head at {address}"
        self._channel = Channel(address, keys, HEAD)
        methods = pb.DESCRIPTOR.services_by_name["Head"].methods_by_name
        self._stubs = {name: stub(self._channel, "Head", name) for name in methods}

    def attach(self, hello: AgentHello) -> AgentWelcome:
        """Take part in the run."""
        return decode(AgentWelcome, self._call("Attach", encode(hello), ANSWER_SECS))

    def exchange(self, report: AgentReport) -> AgentReply:
        """Send events, and return orders."""
        return decode(AgentReply, self._call("Exchange", encode(report), report.hold_secs + ANSWER_SECS))

    def close(self) -> None:
        """Close the channel; calls under way end with `RoleLost`."""
        self._channel.close()

    def _call(self, name: str, request: Any, deadline_secs: float) -> Any:
        return call(
            self._stubs[name], request, deadline_secs, who=self._who, what=name, unreachable_secs=UNREACHABLE_SECS
        )
