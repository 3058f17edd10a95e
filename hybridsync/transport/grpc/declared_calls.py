"""Declares each unary call that a role serves to its watchdog; streams are declared by what they call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.work_deadlines import Watching

CALL_SECS = 300.0
"""Limit of a call beside the transfers in it: longer than all that a handler waits for, one after the other."""


class WatchedCalls(grpc.ServerInterceptor):
    """Interceptor of a role's gRPC server.

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
    return WatchedCalls(watchdog, CALL_SECS + 4 * transfer_secs(state_bytes))
