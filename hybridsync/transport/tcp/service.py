"""Takes connections over TCP: who cannot prove that it was given a place is sent away before anything is parsed.

One thread accepts sockets and reads their messages until they have proven themselves. It holds a bounded number of
them, each for a bounded time, and waits for none: a silent socket makes room for others.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
from dataclasses import dataclass, field

from absl import logging

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import AddressError, RoleLost, WaitTimeout
from hybridsync.security.identity import Identity
from hybridsync.transport.buffers import Buffers
from hybridsync.transport.grpc.bulk_link import Place
from hybridsync.transport.link import Services
from hybridsync.transport.link_service import LinkService
from hybridsync.transport.link_session import staged_blocks
from hybridsync.transport.tcp.handshake import (
    CALLER,
    HELLO_BYTES,
    ID_BYTES,
    KEY_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    ROLE,
    HandshakeKey,
    Hello,
    unpack_hello,
)
from hybridsync.transport.tcp.lanes import Lanes
from hybridsync.transport.tcp.private_hosts import private_host
from hybridsync.transport.tcp.session import TcpSession

HANDSHAKE_SECS = 5.0
"""For a place to be taken, and for a socket to prove itself."""

MOST_UNPROVEN = 128
"""Sockets that have proven nothing yet; one more takes the place of the one that has been silent for longest."""

_BACKLOG, _ACCEPTED_AT_ONCE = 1024, 64


@dataclass(eq=False)
class _Expected:
    """A connection that was asked for.

    Args:
      key: key that proves its caller.
      num_sockets: number of sockets of the connection.
      until: end of the wait for it, monotonic seconds.
      caller: identity that asked; None without certificates.
    """

    key: HandshakeKey
    num_sockets: int
    until: float
    caller: Identity | None = None
    claimed: set[int] = field(default_factory=set)
    proven: dict[int, socket.socket] = field(default_factory=dict)


@dataclass(eq=False)
class _Unproven:
    """A socket that was accepted.

    Args:
      until: time at which the socket is closed, monotonic seconds.
    """

    socket: socket.socket
    until: float
    said: bytearray = field(default_factory=bytearray)
    hello: Hello | None = None
    nonce: bytes = b""
    expected: _Expected | None = None


class TcpService(LinkService):
    """Serves what a role offers to every caller that was given a place.

    The lock guards the sessions and what is expected; unproven sockets are the accepting thread's.

    Args:
      services: services of the role; calls come from several threads.
      host: address to listen at: of the loopback interface, or of a private network.
      most: connections at a time.

    Raises:
      AddressError: the host is public, or not this one.
    """

    def __init__(self, services: Services, host: str, most: int) -> None:
        super().__init__(_bound(host), "bulk", most)
        self._services = services
        takes = services.parameters is not None
        self.blocks = staged_blocks(services)
        self.contributions = Buffers(services.contribution_bytes if takes else 0, max(1, services.num_buffers))
        self.port: int = self._listener.getsockname()[1]
        self._expected: dict[bytes, _Expected] = {}
        self._unproven: dict[socket.socket, _Unproven] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self.start()

    def open(self, num_sockets: int, caller: Identity | None = None) -> Place:
        """Expect a connection for `BulkLinkServicer`; RoleLost also if the accepting thread has ended."""
        self._make_room()
        now = SYSTEM_CLOCK.monotonic()
        key = HandshakeKey(secrets.token_bytes(ID_BYTES), secrets.token_bytes(KEY_BYTES))
        with self._lock:
            waiting = [each for each in self._expected.values() if each.until > now]
            if self._stopped:
                raise RoleLost("this role takes no more connections: it is stopping")
            if not self._thread.is_alive():
                raise RoleLost("this role takes no more connections: the thread that accepts them has failed")
            if len(self._sessions) + len(waiting) >= self._most:
                raise WaitTimeout(
                    f"{len(self._sessions)} links are open here and {len(waiting)} are expected, of {self._most} at "
                    "most; callers that have ended make room, ask again"
                )
            self._expected[key.connection_id] = _Expected(key, num_sockets, now + HANDSHAKE_SECS, caller)
        return Place(self.port, key.connection_id, key.key)

    # --- the accepting thread ---

    def _serve(self) -> None:
        try:
            while not self._stopped:
                for ready, _ in self._selector.select(self._secs_to_next_end()):
                    if ready.fileobj is self._listener:
                        self._accept_some()
                    else:
                        self._hear(ready.data)
                self._send_late_away()
        finally:
            self._selector.close()
            for each in [*self._unproven]:
                each.close()
            with self._lock:
                left, self._expected = self._expected, {}
            for expected in left.values():
                _let_go(expected)
            self._listener.close()

    def _accept_some(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            accepted = None if self._stopped else self._accept()
            if accepted is None:
                return
            if len(self._unproven) >= MOST_UNPROVEN:
                silent = (each for each in self._unproven.values() if each.expected is None)
                self._send_away(next(silent, None) or next(iter(self._unproven.values())))
            unproven = _Unproven(accepted, SYSTEM_CLOCK.monotonic() + HANDSHAKE_SECS)
            try:
                accepted.setblocking(False)
                self._selector.register(accepted, selectors.EVENT_READ, unproven)
            except OSError as error:  # the kernel can watch no more: the caller tries again
                logging.log_every_n_seconds(logging.WARNING, "a link was not accepted: %s", 10, error)
                accepted.close()
                continue
            self._unproven[accepted] = unproven
            self._hear(unproven)  # bytes from before the accept count before it may make room

    def _hear(self, unproven: _Unproven) -> None:
        """Read what a socket has said, and answer it as far as it goes."""
        wanted = HELLO_BYTES if unproven.hello is None else PROOF_BYTES
        try:
            said = unproven.socket.recv(wanted - len(unproven.said))
            unproven.said += said
            if said and len(unproven.said) < wanted:
                return
            goes_on = bool(said) and (self._greeted(unproven) if unproven.hello is None else self._proven(unproven))
        except BlockingIOError:
            return
        except OSError:  # it is gone
            goes_on = False
        if not goes_on:
            self._send_away(unproven)

    def _greeted(self, unproven: _Unproven) -> bool:
        """Answer a hello; returns whether the socket may go on."""
        hello = unpack_hello(bytes(unproven.said))
        with self._lock:
            expected = None if hello is None else self._expected.get(hello.connection_id)
            if hello is None or expected is None or expected.until < SYSTEM_CLOCK.monotonic():
                return False
            if not 0 <= hello.lane < expected.num_sockets or hello.lane in expected.claimed:
                return False
            expected.claimed.add(hello.lane)
        unproven.hello, unproven.expected, unproven.nonce = hello, expected, secrets.token_bytes(NONCE_BYTES)
        unproven.said.clear()
        proof = expected.key.proof(ROLE, hello, unproven.nonce)
        return unproven.socket.send(unproven.nonce + proof) == NONCE_BYTES + PROOF_BYTES

    def _proven(self, unproven: _Unproven) -> bool:
        """Check a proof, and begin a connection whose sockets are all proven; returns whether the socket may go on."""
        hello, expected = unproven.hello, unproven.expected
        assert hello is not None and expected is not None
        if not expected.key.is_proof(CALLER, hello, unproven.nonce, bytes(unproven.said)):
            return False
        with self._lock:
            if self._expected.get(hello.connection_id) is not expected:  # too late: it was let go
                return False
            expected.proven[hello.lane] = unproven.socket
            if is_whole := len(expected.proven) == expected.num_sockets:
                del self._expected[hello.connection_id]
        self._selector.unregister(unproven.socket)
        del self._unproven[unproven.socket]
        if is_whole:
            self._begin_session([expected.proven[lane] for lane in range(expected.num_sockets)], expected.caller)
        return True

    def _begin_session(self, sockets: list[socket.socket], caller: Identity | None) -> None:
        try:
            for each in sockets:
                each.setblocking(True)
            lanes = Lanes(sockets)
        except OSError as error:
            logging.warning("a link was not accepted: %s", error)
            for each in sockets:
                each.close()
            return
        session = TcpSession(lanes, self._services, self.blocks, self.contributions, caller)
        if not self._begin(session):
            session.close()

    def _send_away(self, unproven: _Unproven) -> None:
        if self._unproven.pop(unproven.socket, None) is not None:
            self._selector.unregister(unproven.socket)
            unproven.socket.close()

    def _secs_to_next_end(self) -> float | None:
        with self._lock:
            ends = [each.until for each in self._expected.values()]
        ends += [next(iter(self._unproven.values())).until] if self._unproven else []
        # A place that was given out while this thread waits is looked after when it next wakes: no caller waits for it.
        return max(0.0, min(ends) - SYSTEM_CLOCK.monotonic()) if ends else None

    def _send_late_away(self) -> None:
        now = SYSTEM_CLOCK.monotonic()
        for each in [each for each in self._unproven.values() if each.until <= now]:
            self._send_away(each)
        with self._lock:
            late = [each for each in self._expected.values() if each.until <= now]
            for each in late:
                del self._expected[each.key.connection_id]
        for each in late:
            _let_go(each)


def _let_go(expected: _Expected) -> None:
    for each in expected.proven.values():
        each.close()


def _bound(host: str) -> socket.socket:
    """Return a socket that listens at a free port of a private host.

    Raises:
      AddressError: the address is public, or not of this host.
    """
    address = private_host(host)
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        with contextlib.ExitStack() as failed:
            failed.callback(listener.close)
            listener.bind((address, 0))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            failed.pop_all()
    except OSError as error:
        raise AddressError(f"cannot take buffers at {host}: {error.strerror}") from error
    return listener
