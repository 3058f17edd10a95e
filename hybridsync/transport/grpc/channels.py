"""Channels, servers and calls: the one place that knows gRPC's settings, deadlines and retries."""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc

from hybridsync.core.addresses import MAX_SOCKET_PATH, socket_path
from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.errors import AddressError, HybridSyncError, RoleLost, WaitTimeout
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.codec import parse
from hybridsync.transport.grpc.status import Guard, to_error
from hybridsync.transport.grpc.token import TokenCheck, shown

T = TypeVar("T")

MESSAGE_BYTES = 4 << 20
"""Limit of one message, both ways: a chunk, or a small push; states go in chunks."""

METADATA_BYTES = 64 << 10
"""Limit of the metadata of one call: an error's text, percent-encoded."""

CALL_SECS = 60.0
"""The deadline of a call behind which nothing as long as a transfer of the state is waited for."""

ANSWER_SECS = 15.0
"""Other deadlines are at least this much above what the callee may wait for, so that its named error arrives."""

FIRST_PAUSE_SECS, LAST_PAUSE_SECS = 0.1, 1.0
"""The pause between two attempts doubles from the first to the last."""

_COMMON_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_metadata_size", METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
]

# What the network drops is noticed within keepalive time + timeout, because the kernel misses its acknowledgements,
# and is over one backoff after it heals. Where the other kernel goes on to acknowledge (a stopped process, a gateway
# that swallows replies) only a ping tells, which gRPC awaits for a minute unless told otherwise: here for as long as a
# server's lease, because a server that goes on within it costs nobody anything. A role that compiles on a shared
# machine can starve for a second, hence the generous timeouts.
_CHANNEL_OPTIONS = [
    *_COMMON_OPTIONS,
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.ping_timeout_ms", 15_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),  # this one is the time a connection attempt is given
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),  # `call` retries
    ("grpc.use_local_subchannel_pool", 1),  # two clients in one process do not share a connection
]

_SERVER_OPTIONS = [
    *_COMMON_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),  # a starved client sends its late pings close together
]

_LOOPBACK = "127.0.0.0/8, ::1 or localhost"


def make_channel(address: str) -> grpc.Channel:
    """Return a channel to an address, with this project's settings; it connects at the first call."""
    return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)


class Channel:
    """Connects to a role at the first call, and shows the run's token in each.

    Args:
      address: `host:port`, or `unix:` and the path of a socket.
      token: of the run; "" for a role that asks for none.
    """

    def __init__(self, address: str, token: str = "") -> None:
        self._channel = make_channel(address)
        self._metadata = shown(token)

    def unary_unary(self, *method: Any) -> Callable[..., Any]:
        """Return the callable of a method (see `grpc.Channel.unary_unary`)."""
        return partial(self._channel.unary_unary(*method), metadata=self._metadata)

    def unary_stream(self, *method: Any) -> Callable[..., Any]:
        """Return the callable of a method (see `grpc.Channel.unary_stream`)."""
        return partial(self._channel.unary_stream(*method), metadata=self._metadata)

    def stream_stream(self, *method: Any) -> Callable[..., Any]:
        """Return the callable of a method (see `grpc.Channel.stream_stream`)."""
        return partial(self._channel.stream_stream(*method), metadata=self._metadata)

    def close(self) -> None:
        """Close the channel; calls under way end, later ones are refused."""
        self._channel.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def make_server(
    handlers: Iterable[grpc.GenericRpcHandler],
    address: str = "127.0.0.1:0",
    max_workers: int = 32,
    interceptors: Sequence[grpc.ServerInterceptor] = (),
    token: str = "",
) -> tuple[grpc.Server, str]:
    """Bind a server for several services; the caller starts and stops it.

    Args:
      handlers: the servicers.
      address: `host:port` on the loopback interface, of which port 0 takes a free one; or `unix:` and the path of a
        socket, in a folder that no other user can enter. A socket that nobody serves any more is replaced.
      max_workers: calls served at a time; a long poll or a held push occupies one for as long as it lasts, so
        allow three for each role that calls.
      interceptors: see each call before its handler.
      token: of the run, which each call must show; "" asks for none.

    Returns:
      the server, not yet started, and the address it is bound to.

    Raises:
      AddressError: the address is not on the loopback interface, is malformed, or in use; or its folder is open to
        other users.
    """
    path = socket_path(address)
    if path is None:
        _check_loopback(address)
    else:
        _check_private(path)
    interceptors = (TokenCheck(token), *interceptors) if token else interceptors
    pool = ThreadPoolExecutor(max_workers, thread_name_prefix="rpc")
    server = grpc.server(pool, handlers=[*handlers], interceptors=[*interceptors], options=_SERVER_OPTIONS)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        why = "the port is in use, or not free to take; choose another port, or 0" if path is None else str(error)
        raise AddressError(f"cannot serve on {address}: {why}") from error
    return server, address if path else f"{address.rpartition(':')[0]}:{port}"


def _check_loopback(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise AddressError(f"cannot serve on {address!r}: write host:port, for example 127.0.0.1:0")
    name = host.removeprefix("[").removesuffix("]")
    try:
        local = name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        local = False
    if not local:
        raise AddressError(f"will not serve on {address!r}: TLS does not exist yet; use {_LOOPBACK}")


def _check_private(path: Path) -> None:
    """Refuse a socket in a folder that other users can enter."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise AddressError(f"cannot serve on {path}: the path of a socket has at most {MAX_SOCKET_PATH} bytes")
    try:
        folder = os.stat(path.parent)
    except OSError as error:
        raise AddressError(f"cannot serve on {path}: {error.strerror}") from error
    mode = stat.S_IMODE(folder.st_mode)
    if folder.st_uid != os.geteuid() or mode & 0o777 != stat.S_IRWXU:
        raise AddressError(
            f"will not serve on {path}: its folder belongs to user {folder.st_uid} with mode "
            f"{mode:o}; it must be this user's alone, with mode 700"
        )


class Servicer(grpc.GenericRpcHandler):
    """The handlers of one service of `hybridsync.proto`.

    Args:
      name: the service.
      unary: for each method, protobuf request -> protobuf reply.
      streams: for each streaming method, (serialized request or iterator of them, context) -> iterator of
        serialized replies; they guard themselves.
    """

    def __init__(
        self,
        name: str,
        unary: Mapping[str, Callable[[Any], Any]],
        streams: Mapping[str, Callable[[Any, grpc.ServicerContext], Any]] | None = None,
    ) -> None:
        methods = pb.DESCRIPTOR.services_by_name[name].methods_by_name
        streams = streams or {}
        assert {*unary, *streams} == {*methods}, f"{name} has other methods in hybridsync.proto"
        self._handlers: dict[str, Any] = {}
        for method in methods.values():
            if method.name in unary:
                handler = grpc.unary_unary_rpc_method_handler(_guarded(method, unary[method.name]))
            elif method.client_streaming:
                handler = grpc.stream_stream_rpc_method_handler(streams[method.name])
            else:
                handler = grpc.unary_stream_rpc_method_handler(streams[method.name])
            self._handlers[_path(method)] = handler

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call; None where it is another service's."""
        return self._handlers.get(handler_call_details.method)


def _path(method: Any) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def _guarded(method: Any, behaviour: Callable[[Any], Any]) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    request_type = getattr(pb, method.input_type.name)

    def serve(data: bytes, context: grpc.ServicerContext) -> bytes:
        with Guard(context, method.full_name):
            return behaviour(parse(request_type, data)).SerializeToString()

    return serve


def stub(channel: Channel, service_name: str, method_name: str) -> Callable[..., Any]:
    """Return the callable of a method.

    Unary ones take and return protobuf messages; streams carry serialized frames.
    """
    method = pb.DESCRIPTOR.services_by_name[service_name].methods_by_name[method_name]
    path = _path(method)
    if method.client_streaming:
        return channel.stream_stream(path)
    request_type = getattr(pb, method.input_type.name)
    if method.server_streaming:
        return channel.unary_stream(path, request_type.SerializeToString)
    reply_type = getattr(pb, method.output_type.name)
    return channel.unary_unary(path, request_type.SerializeToString, reply_type.FromString)


def call(
    stub_method: Callable[..., T],
    request: Any,
    deadline_secs: float,
    who: str,
    what: str,
    unreachable_secs: float | None = None,
) -> T:
    """Call a unary method; see `retrying`."""
    return retrying(lambda secs: stub_method(request, timeout=secs), deadline_secs, who, what, unreachable_secs)


def retrying(
    attempt: Callable[[float], T], deadline_secs: float, who: str, what: str, unreachable_secs: float | None = None
) -> T:
    """Run `attempt(seconds left)` until it succeeds, the callee refuses by name, or the deadline has passed.

    Only a call that did not get an answer (UNAVAILABLE, DEADLINE_EXCEEDED) is repeated, with a growing pause.

    Args:
      attempt: sends the same request each time.
      deadline_secs: for all attempts together.
      who: the role that is called, for the error: "chief at 127.0.0.1:4000".
      what: the call, for the error.
      unreachable_secs: for attempts that do not reach the callee at all, of a role whose successor has another
        address; None for the whole deadline.

    Raises:
      HybridSyncError: by its own name, the error that the callee raised.
      RoleLost: the callee could not be reached.
      WaitTimeout: the callee was reached and did not answer in time.
    """
    started = SYSTEM_CLOCK.monotonic()
    deadline = started + deadline_secs
    pause_secs = FIRST_PAUSE_SECS
    left = deadline_secs
    while True:
        try:
            return attempt(left)
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            named = to_error(error, who, what)
            if named is not None:
                raise named from None
            failure = error
        except ValueError as error:
            if not str(error).startswith("Cannot invoke RPC"):
                raise
            raise RoleLost(f"{who} was not asked for {what}: its channel is closed here") from None
        if unreachable_secs is not None and failure.code() is grpc.StatusCode.UNAVAILABLE:
            deadline = min(deadline, started + unreachable_secs)
        left = deadline - SYSTEM_CLOCK.monotonic() - pause_secs
        if left < FIRST_PAUSE_SECS:
            raise _missing(failure, deadline - started, who, what) from failure
        pause(pause_secs)
        pause_secs = min(2 * pause_secs, LAST_PAUSE_SECS)


def _missing(error: grpc.RpcError, deadline_secs: float, who: str, what: str) -> HybridSyncError:
    assert isinstance(error, grpc.Call)
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return RoleLost(
            f"{who} could not be reached for {what} within {deadline_secs:g} s ({error.details()}); "
            "is its process running?"
        )
    return WaitTimeout(f"{who} did not answer {what} within {deadline_secs:g} s")
