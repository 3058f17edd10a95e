"""Checks each call on its way to its handler: its token, the caller's certificate; and declares it to the watchdog.

Nothing is parsed before both checks. Without certificates (on unix sockets, on loopback) no caller has an identity, and
the token alone decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import grpc

from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.errors import Unauthenticated
from hybridsync.core.work_deadlines import Watching
from hybridsync.security.authorization import Admit, admit_all, check_caller, check_sender
from hybridsync.security.identity import HOST, WORKER, Identity, identity_of
from hybridsync.security.keyring import Keyring
from hybridsync.transport.grpc.status import Guard

TOKEN_KEY = "hybridsync-token"
"""Metadata of a call: a token; a call shows the former one, too, while that is good."""

WATCHED_CALL_SECS = 300.0
"""Limit of a call beside the transfers in it: longer than all that a handler waits for, one after the other."""

_PACKAGE = "/hybridsync."


def token_metadata(keys: Keyring) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call; none where there is no token."""
    return tuple((TOKEN_KEY, token) for token in keys.shown())


class TokenCheck(grpc.ServerInterceptor):
    """Refuses a call that shows no token of the run. It comes before all other interceptors.

    Args:
      keys: keys of this process.
    """

    def __init__(self, keys: Keyring) -> None:
        self._keys = keys
        # A stream, because the handler of one begins before a request has been received, whatever the method is.
        self._refusal = grpc.stream_stream_rpc_method_handler(_refuse)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call, or one that refuses it."""
        metadata: Any = handler_call_details.invocation_metadata or ()
        found = [str(value) for key, value in metadata if key == TOKEN_KEY]
        return continuation(handler_call_details) if self._keys.accepts(found) else self._refusal


def _refuse(requests: Any, context: grpc.ServicerContext) -> Any:
    with Guard(context, "a call without the token"):
        raise Unauthenticated(
            "this call does not show the token of the run that it reached; a role has it from its supervisor: is this "
            "the address of another run?"
        )


def caller_of(context: grpc.ServicerContext) -> Identity | None:
    """Return whom the caller's certificate names; None where the call came without TLS.

    Raises:
      Unauthenticated: the certificate names no role, or several.
    """
    shown: Any = context.auth_context()
    if shown.get("transport_security_type") != [b"ssl"]:
        return None
    return _named(tuple(shown.get("peer_uri", ())))


@lru_cache(maxsize=256)
def _named(uris: tuple[bytes, ...]) -> Identity:
    if len(uris) != 1:
        raise Unauthenticated(
            f"the caller's certificate names {len(uris)} URIs, and has to name one; use those that hybridsync certs "
            "has issued"
        )
    return identity_of(uris[0].decode("ascii", "replace"))


def check_speaker(caller: Identity | None, method: str, message: Any) -> None:
    """Refuse a message that names another sender than its caller.

    Args:
      caller: result of `caller_of`; None may name any sender, because only the token is asked for.
      method: name of the method, as Service/Method.
      message: message with the `role` and the `id` of its sender, the number of a `worker`, or the `index` of a host.

    Raises:
      PermissionDenied: it names a different sender.
    """
    if caller is not None:
        check_sender(method, caller, *sender_of(message))


def sender_of(message: Any) -> tuple[str, int]:
    """Return whom a message says that it is from: a role and its number."""
    fields = message.DESCRIPTOR.fields_by_name
    if "worker" in fields:
        return WORKER, message.worker
    return (message.role, message.id) if "role" in fields else (HOST, message.index)


class CallerCheck(grpc.ServerInterceptor):
    """Refuses a call that the holder of its certificate may not make; for servers that ask for certificates.

    Args:
      admit: is called with the holder, and the certificate as PEM; raises where that one is not let in.
    """

    def __init__(self, admit: Admit = admit_all) -> None:
        self._admit = admit

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call, behind the check of its caller."""
        found: Any = continuation(handler_call_details)
        if found is None:
            return None
        path: Any = handler_call_details.method
        method = path.removeprefix(_PACKAGE)
        if found.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(self._checked(method, found.unary_unary))
        if found.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(self._checked_stream(method, found.unary_stream))
        return grpc.stream_stream_rpc_method_handler(self._checked_stream(method, found.stream_stream))

    def _check(self, method: str, context: grpc.ServicerContext) -> None:
        with Guard(context, f"the check of who calls {method}"):
            caller = caller_of(context)
            if caller is None:
                raise Unauthenticated(f"{method} was called without a certificate, and this role asks for one")
            check_caller(method, caller)
            shown: Any = context.auth_context()
            self._admit(caller, b"".join(shown.get("x509_pem_cert", ())).decode("ascii", "replace"))

    def _checked(self, method: str, serve: Callable[[Any, grpc.ServicerContext], Any]) -> Callable[..., Any]:
        def checked(request: Any, context: grpc.ServicerContext) -> Any:
            self._check(method, context)
            return serve(request, context)

        return checked

    def _checked_stream(
        self, method: str, serve: Callable[[Any, grpc.ServicerContext], Iterable[Any]]
    ) -> Callable[..., Any]:
        def checked(requests: Any, context: grpc.ServicerContext) -> Iterable[Any]:
            self._check(method, context)
            return serve(requests, context)

        return checked


class WatchedCalls(grpc.ServerInterceptor):
    """Declares each unary call to the watchdog, as an interceptor of a role's gRPC server.

    A stream may wait for its caller for as long as a phase lasts, so it is not a piece of work itself.

    Args:
      watchdog: watchdog of the process.
      limit_secs: limit of each call, in seconds.
    """

    def __init__(self, watchdog: Watching, limit_secs: float) -> None:
        self._watchdog, self._limit_secs = watchdog, limit_secs

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call, inside a piece of work where it is unary."""
        handler = continuation(handler_call_details)
        serve: Callable[[Any, grpc.ServicerContext], Any] | None = getattr(handler, "unary_unary", None)
        if handler is None or serve is None:
            return handler

        def watched(request: Any, context: grpc.ServicerContext) -> Any:
            with self._watchdog.work(f"the call {handler_call_details.method}", self._limit_secs):
                return serve(request, context)

        return grpc.unary_unary_rpc_method_handler(watched, handler.request_deserializer, handler.response_serializer)


def watched_calls(watchdog: Watching, state_bytes: int) -> WatchedCalls:
    """Return the interceptor of a role. A call may wait for readers of the state, take it over and pack it."""
    return WatchedCalls(watchdog, WATCHED_CALL_SECS + 4 * transfer_secs(state_bytes))
