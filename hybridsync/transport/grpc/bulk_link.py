"""A place for a connection of buffers, asked for over gRPC, which knows the caller by the run's token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hybridsync.core.errors import InvalidMessage
from hybridsync.security.identity import MEMBER, Identity
from hybridsync.security.keyring import NO_KEYS, Keyring
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.channels import CALL_SECS, Channel, Servicer, call, stub
from hybridsync.transport.grpc.snapshot_source import UNREACHABLE_SECS

MOST_SOCKETS = 8
"""Of one connection."""


@dataclass(frozen=True)
class Place:
    """Names the address at which a connection is expected, and how its caller is recognised.

    Args:
      port: port of the host that was asked.
      connection_id, key: random bytes (see `transport/tcp/handshake.py`).
    """

    port: int
    connection_id: bytes
    key: bytes = field(repr=False)


class BulkLinkServicer(Servicer):
    """Serves places for connections.

    Args:
      expect: expects a connection of so many sockets, and returns its place. The connection may make no other calls
        than its caller may over gRPC, whose identity is None without certificates. Several threads call it at a time.
        It raises WaitTimeout if no place is free, and RoleLost if the role is stopping.
    """

    def __init__(self, expect: Callable[[int, Identity | None], Place]) -> None:
        self._expect = expect
        super().__init__("BulkLink", unary={}, with_caller={"Open": self._open})

    def _open(self, request: pb.OpenRequest, caller: Identity | None) -> pb.OpenReply:
        if not 1 <= request.num_sockets <= MOST_SOCKETS:
            raise InvalidMessage(
                f"a connection of {request.num_sockets} sockets was asked for; ask for 1 to {MOST_SOCKETS}"
            )
        place = self._expect(request.num_sockets, caller)
        return pb.OpenReply(port=place.port, connection_id=place.connection_id, key=place.key)


class BulkLinkClient:
    """Asks a role for places.

    Args:
      address: address of the role.
      who: the role, for errors.
      keys: keys of this process.
      role: role that is dialled; `MEMBER` for any role that holds the state.
    """

    def __init__(self, address: str, who: str, keys: Keyring = NO_KEYS, role: str = MEMBER) -> None:
        self._who = who
        self._channel = Channel(address, keys, role)
        self._open = stub(self._channel, "BulkLink", "Open")

    def open(self, num_sockets: int) -> Place:
        """Ask for a place.

        Raises:
          HybridSyncError: by its own name, the error that the role answers with.
          RoleLost: the role could not be reached.
          WaitTimeout: the role did not answer in time.
        """
        request = pb.OpenRequest(num_sockets=num_sockets)
        reply = call(self._open, request, CALL_SECS, who=self._who, what="Open", unreachable_secs=UNREACHABLE_SECS)
        return Place(reply.port, reply.connection_id, reply.key)

    def close(self) -> None:
        """Close the channel; a call under way ends with RoleLost."""
        self._channel.close()
