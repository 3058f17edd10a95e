"""A process that floods the ports of a run when it is told; `benchmarks.floods` starts it.

It reads one JSON line, `Targets`, and then a line for each change: the name of a flood, or nothing to rest. It answers
each with how many attempts the last flood has made. It runs at the lowest priority, as a flood from another machine
takes none of this one's processors either.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc

from hybridsync.security.credentials import Credentials
from hybridsync.transport.grpc.dialling import make_channel
from hybridsync.transport.grpc.interceptors import TOKEN_KEY

MOST_OPEN = 200
"""Connections that a silent flood holds at each port."""
NUM_STREAMS = 40
"""Silent streams that are open at each role."""
PAUSE_SECS = 0.001
CLIENT_HELLO = bytes.fromhex("16030100c2010000be0303") + bytes(183)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)


@dataclass(frozen=True)
class Targets:
    """Holds what is flooded, and with what.

    Args:
      ports: every address, as (host, port), at which the run listens.
      roles: addresses of those that serve gRPC.
      credentials: of a worker, as `Credentials.as_dict` writes them.
      token: of the run.
    """

    ports: list[tuple[str, int]]
    roles: list[str]
    credentials: dict[str, str]
    token: str

    def as_json(self) -> str:
        """Write it on one line."""
        return json.dumps(asdict(self))


class Flooder:
    """Floods from one thread a target until it is told to rest.

    Args:
      targets: what is flooded.

    Attributes:
      has_begun: set with the first attempt of a flood.
    """

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._rests, self._counts = threading.Event(), deque[int]()
        self.has_begun = threading.Event()

    def run(self, name: str) -> Callable[[], int]:
        """Begin a flood; returns what ends it, and then returns the number of attempts."""
        self._rests.clear()
        self.has_begun.clear()
        self._counts.clear()
        makers: dict[str, tuple[list[Any], Callable[[Any], Iterator[None]]]] = {
            "silent connections": (self._targets.ports, self._silent),
            "TLS to plaintext, and plaintext to TLS": (self._targets.ports, self._wrong_words),
            "slow handshakes": (self._targets.ports, self._slow_handshake),
            "wrong tokens": (self._targets.roles, self._wrong_token),
            "silent streams": (self._targets.roles, self._silent_streams),
        }
        places, attempts = makers[name]
        threads = [threading.Thread(target=self._flood, args=(attempts, place)) for place in places]
        for thread in threads:
            thread.start()

        def end() -> int:
            self._rests.set()
            for thread in threads:
                thread.join()
            return sum(self._counts)

        return end

    def _flood(self, attempts: Callable[[Any], Iterator[None]], place: Any) -> None:
        count, tries = 0, attempts(place)
        while not self._rests.is_set():
            with contextlib.suppress(OSError, grpc.RpcError):
                next(tries)
                count += 1
                self.has_begun.set()
            self._rests.wait(PAUSE_SECS)
        self._counts.append(count)

    def _connections(self, place: tuple[str, int], words: bytes, most: int) -> Iterator[socket.socket | None]:
        held = deque[socket.socket]()
        with contextlib.ExitStack() as last:
            last.callback(lambda: [each.close() for each in held])
            while True:
                try:
                    made = socket.create_connection(place, 1.0)
                    made.sendall(words)
                except OSError:
                    yield None
                    continue
                held.append(made)
                yield made
                while len(held) >= most:
                    held.popleft().close()

    def _silent(self, place: tuple[str, int]) -> Iterator[None]:
        for _ in self._connections(place, b"", MOST_OPEN):
            yield

    def _wrong_words(self, place: tuple[str, int]) -> Iterator[None]:
        for words in zip(self._connections(place, CLIENT_HELLO, 4), self._connections(place, PREFACE, 4), strict=True):
            del words
            yield

    def _slow_handshake(self, place: tuple[str, int]) -> Iterator[None]:
        open_ones = deque[tuple[socket.socket, Iterator[int]]](maxlen=MOST_OPEN)
        for made in self._connections(place, CLIENT_HELLO[:1], MOST_OPEN):
            if made is not None:
                open_ones.append((made, iter(CLIENT_HELLO[1:])))
            for connection, rest in open_ones:
                with contextlib.suppress(OSError):
                    connection.sendall(bytes([next(rest, 0)]))
            yield

    def _wrong_token(self, address: str) -> Iterator[None]:
        with make_channel(address, Credentials.of(self._targets.credentials)) as channel:
            ask = channel.unary_unary("/hybridsync.Chief/Lease")
            while True:
                with contextlib.suppress(grpc.RpcError):
                    ask(b"", timeout=2.0, metadata=((TOKEN_KEY, "0" * 64),))
                yield

    def _silent_streams(self, address: str) -> Iterator[None]:
        held = deque[Any]()
        with make_channel(address, Credentials.of(self._targets.credentials)) as channel:
            open_stream = channel.stream_stream("/hybridsync.OptimizerState/Upload")
            while True:
                metadata = ((TOKEN_KEY, self._targets.token),)
                held.append(open_stream(self._nothing(), timeout=30.0, metadata=metadata))
                yield
                while len(held) >= NUM_STREAMS:
                    held.popleft().cancel()
                    self._rests.wait(0.02)

    def _nothing(self) -> Iterator[bytes]:
        self._rests.wait(30.0)
        yield from ()


def yield_processors() -> None:
    """Take only the processor time that nobody else wants.

    Linux shares it out among sessions first, and heeds a process's niceness within its session only. So this one has a
    session of its own, and that session is the nicest.
    """
    os.setsid()
    os.nice(19)
    with contextlib.suppress(FileNotFoundError):  # a kernel that heeds the niceness alone
        Path("/proc/self/autogroup").write_text("19")


def main() -> None:
    """Flood as told until standard input ends."""
    yield_processors()
    told = json.loads(sys.stdin.readline())
    flooder = Flooder(Targets(**{**told, "ports": [tuple(each) for each in told["ports"]]}))
    end: Callable[[], int] = int  # returns 0: nothing runs yet, so the first line ends nothing
    for line in sys.stdin:
        print(end(), flush=True)
        end = flooder.run(line.strip()) if line.strip() else int


if __name__ == "__main__":
    main()
