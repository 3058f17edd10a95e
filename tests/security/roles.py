"""A role that offers everything and notes each call that reaches it, and messages for every method of the proto."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from hybridsync.core.errors import StalePhase
from hybridsync.security.credentials import Credentials
from hybridsync.security.keyring import Keyring
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.bulk_link import BulkLinkServicer
from hybridsync.transport.grpc.dialling import make_channel
from hybridsync.transport.grpc.head import HeadServicer
from hybridsync.transport.grpc.interceptors import TOKEN_KEY
from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.link import Services

TOKEN, SECS, NUM_BYTES = "5ca1ab1e" * 8, 10.0, 8
REACHED = "a call has reached the role"
BLOCK = b"\x01" * NUM_BYTES

METHODS = sorted(
    f"{service.name}/{method.name}" for service in pb.DESCRIPTOR.services_by_name.values() for method in service.methods
)


@dataclass
class Role:
    """Every port of a role; each call is noted and refused by a name that nothing else uses here."""

    seen: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        def reached(*arguments: Any, **named: Any) -> Any:
            self.seen.append(name)
            raise StalePhase(REACHED)

        return reached


@contextmanager
def served(role: Role, credentials: Credentials | None, address: str = "127.0.0.1:0", **changes: Any) -> Iterator[str]:
    """Serve a role until the end of the block; yields where."""
    port: Any = role
    services = Services(
        holder=port,
        chief=port,
        server=port,
        parameters=port,
        shard=port,
        optimizer=port,
        evaluate=port.evaluate,
        contribution_bytes=NUM_BYTES,
        opt_state_bytes=NUM_BYTES,
        num_buffers=4,
    )
    transport = GrpcTransport(changes.pop("keys", None) or Keyring(changes.pop("token", TOKEN), credentials))
    serving = transport.serve_with(
        [BulkLinkServicer(port.open), HeadServicer(port)], services, address, calls=16, **changes
    )
    try:
        yield serving.address
    finally:
        serving.stop(wait_secs=SECS)


def messages(method: str, worker: int = 2, role: str = "worker", id: int = 2) -> list[bytes]:
    """Return what a caller of a method sends: one message, or those of a stream.

    Args:
      method: as Service/Method.
      worker: whom messages of workers name.
      role: whom messages of any role name.
      id: its number.
    """
    push = pb.Push(worker=worker)
    frames = [pb.Frame(header=pb.Header(num_bytes=NUM_BYTES, push=push)), pb.Frame(chunk=BLOCK)]
    found: dict[str, list[Any]] = {
        "Chief/Register": [pb.Hello(role=role, id=id)],
        "Chief/Report": [pb.Report(role=role, id=id)],
        "Chief/NextPhase": [pb.PhaseRequest(worker=worker)],
        "Chief/Lease": [pb.LeaseRequest(worker=worker)],
        "Chief/JoinGroup": [pb.GroupRequest(worker=worker)],
        "Chief/RoleStarted": [pb.RoleEvent(role=role, id=id)],
        "Chief/RoleLost": [pb.RoleEvent(role=role, id=id)],
        "Head/Attach": [pb.AgentHello(index=id)],
        "Head/Exchange": [pb.AgentReport(index=id)],
        "Chief/Switch": [pb.SwitchRequest(spec="asp")],
        "BulkLink/Open": [pb.OpenRequest(num_sockets=1)],
        "ParameterServer/PushPull": frames,
        "ParameterServer/PushPullSmall": [pb.SmallPush(push=push, contribution=BLOCK)],
        "Shard/Stage": frames,
        "OptimizerState/Upload": frames,
        "SnapshotSource/Read": [pb.ReadRequest(num_bytes=NUM_BYTES)],
    }
    for name in ("ParameterServer/Pull", "ParameterServer/Idle", "ParameterServer/Ready", "Shard/PullAt"):
        found[name] = [push]
    found["OptimizerState/Download"] = found["Shard/Discard"] = [push]
    return [each.SerializeToString() for each in found.get(method, [pb.Empty()])]


def call(channel: grpc.Channel, method: str, sent: list[bytes], token: str | None = TOKEN, secs: float = SECS) -> Any:
    """Make one call of a method, without the project's own clients; returns its reply or replies.

    Raises:
      grpc.RpcError: what became of it.
    """
    service, _, name = method.partition("/")
    descriptor = pb.DESCRIPTOR.services_by_name[service].methods_by_name[name]
    path, metadata = f"/hybridsync.{method}", () if token is None else ((TOKEN_KEY, token),)
    if descriptor.client_streaming:
        return list(channel.stream_stream(path)(iter(sent), timeout=secs, metadata=metadata))
    if descriptor.server_streaming:
        return list(channel.unary_stream(path)(sent[0], timeout=secs, metadata=metadata))
    return channel.unary_unary(path)(sent[0], timeout=secs, metadata=metadata)


def outcome(channel: grpc.Channel, method: str, sent: list[bytes], token: str | None = TOKEN) -> tuple[str, str]:
    """Return the status and the text of a call that fails, as every call does here."""
    try:
        replies = call(channel, method, sent, token)
    except grpc.RpcError as error:
        assert isinstance(error, grpc.Call)
        return error.code().name, error.details() or ""
    return "OK", repr(replies)


def dialled(address: str, credentials: Credentials | None, role: str = "member") -> grpc.Channel:
    """Return a channel as this project's clients open it."""
    return make_channel(address, credentials, role)
