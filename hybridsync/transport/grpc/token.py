"""Shows the run's tokens in each call's metadata, and refuses a call without one before anything is parsed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from hybridsync.core.errors import Unauthenticated
from hybridsync.security.keyring import Keyring
from hybridsync.transport.grpc.status import Guard

KEY = "hybridsync-token"
"""Metadata of a call: a token; a call shows the former one, too, while that is good."""


def shown(keys: Keyring) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call; none where there is no token."""
    return tuple((KEY, token) for token in keys.shown())


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
        found = [str(value) for key, value in metadata if key == KEY]
        return continuation(handler_call_details) if self._keys.accepts(found) else self._refusal


def _refuse(requests: Any, context: grpc.ServicerContext) -> Any:
    with Guard(context, "a call without the token"):
        raise Unauthenticated(
            "this call does not show the token of the run that it reached; a role has it from its supervisor: is this "
            "the address of another run?"
        )
