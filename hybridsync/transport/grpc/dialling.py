"""Dials a role, and dials it anew when this process has other credentials; tells why no connection comes about."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from hybridsync.core.errors import HandshakeRefused
from hybridsync.security.credentials import Credentials
from hybridsync.security.identity import MEMBER, server_name
from hybridsync.security.keyring import NO_KEYS, Keyring
from hybridsync.transport.grpc.interceptors import token_metadata

MESSAGE_BYTES = 4 << 20
"""Limit of one message, both ways: a chunk, or a small push; states go in chunks."""

METADATA_BYTES = 64 << 10
"""Limit of the metadata of one call: an error's text, percent-encoded."""

COMMON_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_metadata_size", METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
]

# A broken network is noticed within keepalive time + timeout, because the kernel misses its acknowledgements; calls
# continue one backoff after it heals. Where the other kernel continues to acknowledge (a stopped process, a gateway
# that swallows replies) only a ping shows it, which gRPC awaits for a minute by default: here for as long as a server's
# lease, because a server that continues within it costs nothing. A role that compiles on a shared machine can starve
# for a second, hence the generous timeouts.
_CHANNEL_OPTIONS = [
    *COMMON_OPTIONS,
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.ping_timeout_ms", 15_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),  # this one is the time a connection attempt is given
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),  # `call` retries
    ("grpc.enable_http_proxy", 0),  # a proxy of the environment is for the web: it reaches no role, or a wrong one
    ("grpc.use_local_subchannel_pool", 1),  # two clients in one process do not share a connection
]

MOST_REFUSED = 3
"""Handshakes that this end has ended, after which nothing else is to be expected."""

CLOSED_SECS = 10.0
"""For how long a role may close each connection at once: one that ends does so, too, and so does one behind a relay."""

_REFUSED = ("handshake failed", "SSL_ERROR", "verification check failed")
_NOT_CONNECTED = "failed to connect to all addresses"
_CLOSED = ("Socket closed", "Connection reset by peer", "Broken pipe")
_CLOSED_IN_A_WRITE = "Delayed close due to in-progress write (Socket closed)"  # behind it stands how the write ended


def make_channel(address: str, credentials: Credentials | None = None, role: str = MEMBER) -> grpc.Channel:
    """Return a channel to an address, with this project's settings; it connects at the first call.

    Args:
      address: `host:port`, or `unix:` and the path of a socket.
      credentials: credentials of this process; None for a channel without TLS.
      role: role that is dialled; the certificate of a different role is refused. `MEMBER` for any role that may hold a
        state.
    """
    if credentials is None:
        return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
    proof = grpc.ssl_channel_credentials(
        credentials.authority.encode(), credentials.key.encode(), credentials.certificate.encode()
    )
    # The roles of a run have no names in DNS: a certificate names the role, whatever address it is dialled at.
    options = [*_CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", server_name(role))]
    return grpc.secure_channel(address, proof, options=options)


@dataclass(eq=False)
class _Dialled:
    """A channel that was made with certain credentials, and how many calls are under way on it."""

    channel: grpc.Channel
    credentials: Credentials | None
    num_calls: int = 0


class Channel:
    """Connects to a role at the first call, and shows the run's token in each.

    When this process has other credentials, the next call dials anew: gRPC's channels cannot change theirs. Calls in
    progress end on the channel where they began, and that channel is closed after them, by a later call. It is not
    closed where its last call ends: that may be gRPC's own thread, for which `close` would wait. The lock guards all
    fields.

    Args:
      address: `host:port`, or `unix:` and the path of a socket.
      keys: keys of this process.
      role: role that is dialled (see `make_channel`).
    """

    def __init__(self, address: str, keys: Keyring = NO_KEYS, role: str = MEMBER) -> None:
        self._address, self._keys, self._role = address, keys, role
        self._lock = threading.Lock()
        self._is_closed = False
        self._former: list[_Dialled] = []
        self._dialled = self._dial()

    def unary_unary(self, *method: Any) -> Callable[..., Any]:
        """Return the callable of a method (see `grpc.Channel.unary_unary`)."""

        def call(request: Any, timeout: float | None = None) -> Any:
            dialled = self._begin()
            try:
                made = dialled.channel.unary_unary(*method)
                return made(request, timeout=timeout, metadata=token_metadata(self._keys))
            finally:
                self._end(dialled)

        return call

    def unary_stream(self, *method: Any) -> Callable[..., Any]:
        """Return the callable of a method (see `grpc.Channel.unary_stream`)."""
        return self._streaming(lambda channel: channel.unary_stream(*method))

    def stream_stream(self, *method: Any) -> Callable[..., Any]:
        """Return the callable of a method (see `grpc.Channel.stream_stream`)."""
        return self._streaming(lambda channel: channel.stream_stream(*method))

    def close(self) -> None:
        """Close the channel; calls under way end, later ones are refused."""
        with self._lock:
            self._is_closed = True
            closed, self._former = [*self._former, self._dialled], []
        for each in closed:
            each.channel.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _dial(self) -> _Dialled:
        credentials = self._keys.credentials
        return _Dialled(make_channel(self._address, credentials, self._role), credentials)

    def _streaming(self, make: Callable[[grpc.Channel], Any]) -> Callable[..., Any]:
        def call(request: Any, timeout: float | None = None) -> Any:
            dialled = self._begin()
            try:
                stream = make(dialled.channel)(request, timeout=timeout, metadata=token_metadata(self._keys))
                is_under_way = stream.add_callback(lambda: self._end(dialled))
            except BaseException:
                self._end(dialled)
                raise
            if not is_under_way:
                self._end(dialled)
            return stream

        return call

    def _begin(self) -> _Dialled:
        with self._lock:
            if self._keys.credentials is not self._dialled.credentials and not self._is_closed:
                self._former.append(self._dialled)
                self._dialled = self._dial()
            over = [each for each in self._former if not each.num_calls]
            self._former = [each for each in self._former if each.num_calls]
            self._dialled.num_calls += 1
            dialled = self._dialled
        for each in over:
            each.channel.close()
        return dialled

    def _end(self, dialled: _Dialled) -> None:
        with self._lock:
            dialled.num_calls -= 1


class Handshakes:
    """Judges the failures of one call, one after the other.

    With TLS 1.3 a client has ended its handshake before the server looks at its certificate, so that it only sees its
    connection closed. So does one that speaks plain text to a server with TLS.

    Args:
      who: the role that is called, for errors.
      what: the call, for errors.
    """

    def __init__(self, who: str, what: str) -> None:
        self._who, self._what = who, what
        self._num_refused = 0
        self._closed_since: float | None = None

    def after(self, text: str, now: float, *, is_last: bool) -> HandshakeRefused | None:
        """Return what ends the call after another failure; None where it may be tried again.

        Args:
          text: text of gRPC's error.
          now: monotonic seconds.
          is_last: whether the call's time is over.
        """
        self._num_refused = self._num_refused + 1 if any(each in text for each in _REFUSED) else 0
        is_closed = text.startswith(_NOT_CONNECTED) and (text.rstrip().endswith(_CLOSED) or _CLOSED_IN_A_WRITE in text)
        self._closed_since = (now if self._closed_since is None else self._closed_since) if is_closed else None
        if self._num_refused >= MOST_REFUSED or (is_last and self._num_refused):
            return HandshakeRefused(
                f"{self._who} and this process do not agree on TLS for {self._what} ({text}): is TLS on at both ends, "
                "are both certificates of one authority and in date, and is this the role's address?"
            )
        if self._closed_since is not None and (is_last or now - self._closed_since >= CLOSED_SECS):
            return HandshakeRefused(
                f"{self._who} closes each connection before {self._what} ({text}): is TLS on at both ends, and is this "
                "process's certificate of the same authority and in date?"
            )
        return None
