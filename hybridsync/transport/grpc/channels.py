"""Servers and calls: with `dialling`, the one place that knows gRPC's settings, deadlines and retries."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np

from hybridsync.core.addresses import MAX_SOCKET_PATH, socket_path
from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.errors import AddressError, Busy, HybridSyncError, RoleLost, WaitTimeout
from hybridsync.security.authorization import RULES, Admit, admit_all
from hybridsync.security.credentials import Credentials
from hybridsync.security.identity import Identity
from hybridsync.security.keyring import NO_KEYS, Keyring
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.codec import parse
from hybridsync.transport.grpc.dialling import COMMON_OPTIONS, Channel, Handshakes
from hybridsync.transport.grpc.frames import receive
from hybridsync.transport.grpc.interceptors import CallerCheck, TokenCheck, caller_of, check_speaker
from hybridsync.transport.grpc.status import Guard, is_busy, to_error

T = TypeVar("T")

CALL_SECS = 60.0
"""The deadline of a call behind which nothing as long as a transfer of the state is waited for."""

ANSWER_SECS = 15.0
"""Other deadlines are at least this much above what the callee may wait for, so that its named error arrives."""

WAITING_CALLS = 64
"""Calls that may wait for a thread of a role; one more is told to ask again, before its message is kept."""

FIRST_MESSAGE_SECS = 10.0
"""For the first message of a stream, which occupies a thread meanwhile; every caller has it at hand."""

FIRST_PAUSE_SECS, LAST_PAUSE_SECS = 0.1, 1.0
"""The pause between two attempts doubles from the first to the last."""

_SERVER_OPTIONS = [
    *COMMON_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),  # a silent connection is closed
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),  # a starved client sends its late pings close together
]

_LOOPBACK = "127.0.0.0/8, ::1 or localhost"


def make_server(
    handlers: Iterable[grpc.GenericRpcHandler],
    address: str = "127.0.0.1:0",
    max_workers: int = 32,
    interceptors: Sequence[grpc.ServerInterceptor] = (),
    keys: Keyring = NO_KEYS,
    admit: Admit = admit_all,
) -> tuple[grpc.Server, str]:
    """Bind a server for several services; the caller starts and stops it.

    Args:
      handlers: servicers of the services.
      address: `host:port`, of which port 0 takes a free one, on the loopback interface where there are no credentials;
        or `unix:` and the path of a socket, in a folder that no other user can enter. A socket without a server is
        replaced.
      max_workers: calls served at a time; a long poll or a held push occupies one for as long as it lasts, so
        allow three for each role that calls.
      interceptors: see each call before its handler.
      keys: keys of this process. Each call must show their token, where they have one. Where they have credentials, the
        server is reached over TLS alone, by roles that the same authority has certified, each of which may make the
        calls of its role. Each new connection uses the newest ones.
      admit: decides by the certificate whether a caller is refused (see `CallerCheck`); not asked without TLS.

    Returns:
      the server, not yet started, and the address it is bound to.

    Raises:
      AddressError: the address is not on the loopback interface and there are no credentials, is malformed, or in
        use; or its folder is open to other users.
    """
    path, is_secured = socket_path(address), keys.credentials is not None
    if path is None:
        _check_address(address, is_secured=is_secured)
    else:
        _check_private(path)
    checks = ([TokenCheck(keys)] if keys.token else []) + ([CallerCheck(admit)] if is_secured else [])
    pool = ThreadPoolExecutor(max_workers, thread_name_prefix="rpc")
    server = grpc.server(
        pool,
        handlers=[*handlers],
        interceptors=[*checks, *interceptors],
        options=_SERVER_OPTIONS,
        maximum_concurrent_rpcs=max_workers + WAITING_CALLS,
    )
    try:
        port = _add_port(server, address, keys)
    except RuntimeError as error:
        why = "the port is in use, or not free to take; choose another port, or 0" if path is None else str(error)
        if is_secured:
            why += "; or the certificate is damaged, or of another key"
        raise AddressError(f"cannot serve on {address}: {why}") from error
    return server, address if path else f"{address.rpartition(':')[0]}:{port}"


def _add_port(server: grpc.Server, address: str, keys: Keyring) -> int:
    met = keys.credentials
    if met is None:
        return server.add_insecure_port(address)

    def newest() -> Any:  # a configuration, or None where the last one is the newest
        nonlocal met
        found = keys.credentials
        if found is met or found is None:
            return None
        met = found
        return _configuration(found)

    proof = grpc.dynamic_ssl_server_credentials(_configuration(met), newest, require_client_authentication=True)
    return server.add_secure_port(address, proof)


def _configuration(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    own = credentials.key.encode(), credentials.certificate.encode()
    return grpc.ssl_server_certificate_configuration([own], credentials.authority.encode())


def _check_address(address: str, *, is_secured: bool) -> None:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise AddressError(f"cannot serve on {address!r}: write host:port, for example 127.0.0.1:0")
    name = host.removeprefix("[").removesuffix("]")
    try:
        local = name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        local = False
    if not local and not is_secured:
        raise AddressError(
            f"will not serve on {address!r} without certificates: others could read and change what is sent; make some "
            f"with hybridsync certs, or use {_LOOPBACK}"
        )


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
      name: name of the service.
      unary: method -> function from a protobuf request to its reply.
      streams: streaming method -> function from (serialized request or iterator of them, context) to an iterator of
        serialized replies; they guard themselves.
      with_caller: unary method that needs its caller -> function from (protobuf request, holder of the caller's
        certificate, None without TLS) to a protobuf reply.
    """

    def __init__(
        self,
        name: str,
        unary: Mapping[str, Callable[[Any], Any]],
        streams: Mapping[str, Callable[[Any, grpc.ServicerContext], Any]] | None = None,
        with_caller: Mapping[str, Callable[[Any, Identity | None], Any]] | None = None,
    ) -> None:
        methods = pb.DESCRIPTOR.services_by_name[name].methods_by_name
        streams, with_caller = streams or {}, with_caller or {}
        assert {*unary, *streams, *with_caller} == {*methods}, f"{name} has other methods in hybridsync.proto"
        self._handlers: dict[str, Any] = {}
        for method in methods.values():
            if method.name in unary:
                handler = grpc.unary_unary_rpc_method_handler(_guarded(method, _regardless(unary[method.name])))
            elif method.name in with_caller:
                handler = grpc.unary_unary_rpc_method_handler(_guarded(method, with_caller[method.name]))
            elif method.client_streaming:
                handler = grpc.stream_stream_rpc_method_handler(_promptly(streams[method.name]))
            else:
                handler = grpc.unary_stream_rpc_method_handler(streams[method.name])
            self._handlers[_path(method)] = handler

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call; None where it is another service's."""
        return self._handlers.get(handler_call_details.method)


def _path(method: Any) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def _promptly(serve: Callable[[Any, grpc.ServicerContext], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
    """Return a stream's behaviour that ends the call of a caller who says nothing."""

    def served(stream: Iterator[bytes], context: grpc.ServicerContext) -> Any:
        return serve(_begun(stream, context), context)

    return served


def _begun(stream: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    with ended_after(context, FIRST_MESSAGE_SECS):
        first = next(stream, None)
    if first is not None:
        yield first
        yield from stream


def receive_in_time(
    stream: Iterator[bytes], context: grpc.ServicerContext, header: pb.Header, into: np.ndarray
) -> None:
    """Fill `into` from a caller's stream (see `frames.receive`), and end a call that brings it too slowly.

    Raises:
      SchemaMismatch: see `frames.receive`.
      grpc.RpcError: the caller is gone, or its time is over.
    """
    with in_time(context, into.nbytes):
        receive(stream, header, into)


def sent_in_time(frames: Iterable[bytes], context: grpc.ServicerContext, num_bytes: int) -> Iterator[bytes]:
    """Yield the frames of so many bytes, and end a call whose caller takes them too slowly."""
    with in_time(context, num_bytes):
        yield from frames


def in_time(context: grpc.ServicerContext, num_bytes: int) -> contextlib.AbstractContextManager[None]:
    """End a call whose caller brings or takes so many bytes too slowly."""
    return ended_after(context, transfer_secs(num_bytes))


@contextlib.contextmanager
def ended_after(context: grpc.ServicerContext, secs: float) -> Iterator[None]:
    """End a call whose caller lets it wait for longer: it holds a thread, and may hold a buffer."""
    patience = threading.Timer(secs, context.cancel)
    patience.daemon = True
    patience.start()
    try:
        yield
    finally:
        patience.cancel()


def _regardless(behaviour: Callable[[Any], Any]) -> Callable[[Any, Identity | None], Any]:
    """Return a behaviour that is told who calls, and makes no difference."""
    return lambda request, caller: behaviour(request)


def _guarded(
    method: Any, behaviour: Callable[[Any, Identity | None], Any]
) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    request_type = getattr(pb, method.input_type.name)
    name = f"{method.containing_service.name}/{method.name}"
    rule = RULES.get(name)
    names_sender = rule is not None and rule.names_sender

    def serve(data: bytes, context: grpc.ServicerContext) -> bytes:
        with Guard(context, method.full_name):
            request, caller = parse(request_type, data), caller_of(context)
            if names_sender:
                check_speaker(caller, name, request)
            return behaviour(request, caller).SerializeToString()

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

    Only a call that did not get an answer (UNAVAILABLE, DEADLINE_EXCEEDED) or a place is repeated, with a growing
    pause.

    Args:
      attempt: sends the same request each time.
      deadline_secs: limit in seconds for all attempts together.
      who: the role that is called, for the error: "chief at 127.0.0.1:4000".
      what: the call, for the error.
      unreachable_secs: limit in seconds for attempts that do not reach the callee at all, of a role whose successor has
        another address; None for the whole deadline.

    Raises:
      HybridSyncError: by its own name, the error that the callee raised.
      HandshakeRefused: no connection comes about, because of TLS.
      RoleLost: the callee could not be reached.
      Busy: the callee had no place for the call.
      WaitTimeout: the callee was reached and did not answer in time.
    """
    handshakes = Handshakes(who, what)
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
        now = SYSTEM_CLOCK.monotonic()
        left = deadline - now - pause_secs
        is_last = left < FIRST_PAUSE_SECS
        if failure.code() is grpc.StatusCode.UNAVAILABLE:
            refused = handshakes.after(failure.details() or "", now, is_last=is_last)
            if refused is not None:
                raise refused from failure
        if is_last:
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
    if is_busy(error):
        return Busy(
            f"{who} had no place for {what} within {deadline_secs:g} s: it answers as many calls as it can; does a "
            "process flood it?"
        )
    return WaitTimeout(f"{who} did not answer {what} within {deadline_secs:g} s")
