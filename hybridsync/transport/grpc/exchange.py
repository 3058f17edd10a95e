"""Requests and replies on streams that stay open: what a call every few milliseconds would cost is paid once a minute.

An idle machine answers a new unary call in about 1.9 ms, a message on an open stream in 1.1: most of either is threads
being woken.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import RoleLost

STREAM_SECS = 30.0
"""How long a stream takes requests; a gRPC deadline is the stream's, so it is the caller's plus this."""


class StreamExchange:
    """Sends one message and waits for its answer, as a unary call would; each waiting caller has a stream of its own.

    The lock guards the idle streams.

    Args:
      open_stream: stub of a method that answers every message of a stream with one; takes an iterator of bytes
        and `timeout`.
      who: the role that is called, for errors.
    """

    def __init__(self, open_stream: Callable[..., Any], who: str) -> None:
        self._open_stream, self._who = open_stream, who
        self._lock = threading.Lock()
        self._idle: list[_Stream] = []

    def send(self, request: bytes, secs: float) -> bytes:
        """Return the reply to `request`.

        Raises:
          grpc.RpcError: the stream ended with it, `secs` to `secs + STREAM_SECS` seconds after the request at the
            latest; the next call opens a new one.
          RoleLost: the callee ended the stream without an answer.
        """
        stream = self._take(secs)
        try:
            reply = stream.send(request)
        except BaseException:
            stream.close()
            raise
        if reply is None:
            stream.close()
            raise RoleLost(f"{self._who} ended the stream without an answer: it stopped, or the channel did")
        with self._lock:
            self._idle.append(stream)
        return reply

    def close(self) -> None:
        """End the streams that nobody waits on."""
        with self._lock:
            streams, self._idle = self._idle, []
        for stream in streams:
            stream.close()

    def _take(self, secs: float) -> _Stream:
        now = SYSTEM_CLOCK.monotonic()
        while True:
            with self._lock:
                stream = self._idle.pop() if self._idle else None
            if stream is None:
                return _Stream(self._open_stream, secs + STREAM_SECS, now + STREAM_SECS)
            if now < stream.renew_at:
                return stream
            stream.close()


class _Stream:
    """One open stream; one caller at a time."""

    def __init__(self, open_stream: Callable[..., Any], timeout_secs: float, renew_at: float) -> None:
        self.renew_at = renew_at
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._replies: Any = open_stream(self._taken(), timeout=timeout_secs)

    def send(self, request: bytes) -> bytes | None:
        self._requests.put(request)
        return next(self._replies, None)

    def close(self) -> None:
        self._requests.put(None)
        self._replies.cancel()

    def _taken(self) -> Iterator[bytes]:
        while (request := self._requests.get()) is not None:
            yield request
