"""Shows the run's token in each call's metadata, and refuses a call without it before anything is parsed."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

import grpc

from hybridsync.core.errors import Unauthenticated
from hybridsync.transport.grpc.status import Guard

KEY = "hybridsync-token"
"""Metadata of a call: the token."""


def shown(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata that shows a token; none for ""."""
    return ((KEY, token),) if token else ()


class TokenCheck(grpc.ServerInterceptor):
    """Refuses a call that does not show the token. It comes before all other interceptors.

    Args:
      token: of the run.
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        # A stream, because the handler of one begins before a request has been received, whatever the method is.
        self._refusal = grpc.stream_stream_rpc_method_handler(_refuse)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call, or one that refuses it."""
        metadata: Any = handler_call_details.invocation_metadata or ()
        found = [value for key, value in metadata if key == KEY]
        # Compared in constant time: how long a refusal takes says nothing about how much of a guess was right.
        if len(found) == 1 and hmac.compare_digest(str(found[0]).encode(), self._token):
            return continuation(handler_call_details)
        return self._refusal


def _refuse(requests: Any, context: grpc.ServicerContext) -> Any:
    with Guard(context, "a call without the token"):
        raise Unauthenticated(
            "this call does not show the token of the run that it reached; a role has it from its supervisor: is this "
            "the address of another run?"
        )
