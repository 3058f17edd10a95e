"""A TCP relay in front of a role, which loses or slows down what the role answers."""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import threading
from dataclasses import dataclass, field

from hybridsync.core.clock import SYSTEM_CLOCK

CHUNK_BYTES = 1 << 16
CONNECT_SECS = 10.0
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing resets the connection, so that nothing under way is delivered any more."""


@dataclass
class _Pair:
    """A caller's connection and the one to the role that continues it; whoever comes first resets both."""

    caller: socket.socket
    role: socket.socket
    silent: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reset(self) -> None:
        self.over.set()
        with self.lock:
            for end in (self.caller, self.role):
                if end.fileno() < 0:
                    continue
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                with contextlib.suppress(OSError):  # the peer was first
                    end.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
                end.close()


class Relay:
    """Passes on bytes between callers and one role.

    The lock guards the pairs.

    Args:
      target: `host:port` of the role.
      bytes_per_sec: of what the role says on each connection.

    Attributes:
      address: where callers find it.
      num_callers: connections it has taken so far.
    """

    def __init__(self, target: str, bytes_per_sec: float = math.inf) -> None:
        host, _, port = target.rpartition(":")
        self._target, self._bytes_per_sec = (host, int(port)), bytes_per_sec
        self._lock = threading.Lock()
        self._pairs: list[_Pair] = []
        self.num_callers = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def lose_replies(self) -> None:
        """Pass on nothing more that the role says on the connections there are, as a one-way partition would."""
        with self._lock:
            for pair in self._pairs:
                pair.silent.set()

    def cut(self) -> None:
        """Reset every connection there is; later ones are taken."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.reset()

    def close(self) -> None:
        """Take no more connections, and reset those there are."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listening.accept()
                pair = _Pair(caller, self._connected())
            except OSError:  # closed here
                return
            pair.role.settimeout(None)
            with self._lock:
                self._pairs.append(pair)
                self.num_callers += 1
            ways = ((pair.caller, pair.role, False, math.inf), (pair.role, pair.caller, True, self._bytes_per_sec))
            for source, sink, lossy, bytes_per_sec in ways:
                arguments = (pair, source, sink, lossy, bytes_per_sec)
                threading.Thread(target=self._pump, args=arguments, name="relay", daemon=True).start()

    def _connected(self) -> socket.socket:
        role = socket.create_connection(self._target, CONNECT_SECS)
        if self._bytes_per_sec < math.inf:  # a role that is slowed down may not say more than a moment's worth ahead
            role.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK_BYTES)
        return role

    @staticmethod
    def _pump(pair: _Pair, source: socket.socket, sink: socket.socket, lossy: bool, bytes_per_sec: float) -> None:
        due = 0.0
        try:
            while data := source.recv(CHUNK_BYTES):
                due = max(due, SYSTEM_CLOCK.monotonic()) + len(data) / bytes_per_sec
                pair.over.wait(due - SYSTEM_CLOCK.monotonic() if bytes_per_sec < math.inf else 0.0)
                if not (lossy and pair.silent.is_set()):
                    sink.sendall(data)
        except OSError:  # reset
            pass
        pair.reset()
