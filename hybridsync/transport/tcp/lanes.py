"""Messages and buffers over the sockets of one connection: frames of a fixed size, each with a digest.

A message goes over the first socket: how many bytes, their digest, the bytes. The buffer that it speaks of follows in
frames. Frame `i` goes over socket `i` modulo their number, and small buffers over the first one alone. A receiver knows
which frame is due, and receives it where it belongs: only the kernel copies a buffer.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import xxhash
from absl import logging

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.errors import DamagedState, HybridSyncError, InvalidMessage
from hybridsync.transport.link_service import has_hung_up, shut
from hybridsync.transport.link_session import MOST_BYTES

FRAME_BYTES = 1 << 20
"""Of a buffer in one frame; from a half to four MiB the speed is the same."""

SMALL_BYTES = 1 << 20
"""Buffers below this go over the first socket: for them a second thread costs more than it brings."""

NUM_LANES = 2
"""Sockets of a connection; the kernel's work for one is on one core."""

NOTHING = np.empty(0, np.uint8)

_MESSAGE = struct.Struct("<IQ")  # bytes, digest
_FRAME = struct.Struct("<IIQ")  # index, bytes, digest
_TIMEVAL = struct.Struct("=qq")
_LINGER_SECS = 5.0
"""For a caller to read why its connection ends; until then what it goes on to send is thrown away."""
_IDLE_SECS, _PROBES, _UNACKNOWLEDGED_MS = 5, 3, 20_000
"""The connection ends if the other host does not acknowledge, as it does for the other calls."""


class Lanes:
    """The sockets of one connection. One thread sends or receives at a time, but for `shut`.

    Args:
      sockets: connected and blocking, in the order that both ends know.
    """

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self._sockets = tuple(sockets)
        self._first = select.poll()
        self._first.register(self._sockets[0], select.POLLIN)
        self._threads: ThreadPoolExecutor | None = None
        self._secs = -1.0
        for each in self._sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECS)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _IDLE_SECS)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        self.within(transfer_secs(0))

    def within(self, secs: float) -> None:
        """Give up what is sent and received from now on, with BlockingIOError, about `secs` from now."""
        self._deadline = SYSTEM_CLOCK.monotonic() + secs
        if secs == self._secs:
            return
        self._secs = secs
        whole, rest = divmod(secs, 1.0)
        for each in self._sockets:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                each.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(int(whole), int(rest * 1e6)))

    # --- messages ---

    def send(
        self, message: bytes, buffer: np.ndarray = NOTHING, before_last: Callable[[], None] = lambda: None
    ) -> None:
        """Send a message, and a buffer behind it.

        Args:
          message: message of at most `MOST_BYTES`.
          buffer: uint8, C-contiguous; unchanged until the call returns.
          before_last: is waited for before the last frame is sent.

        Raises:
          OSError: the connection is lost, or the time is up.
        """
        head = _MESSAGE.pack(len(message), xxhash.xxh3_64_intdigest(message)) + message
        if not buffer.nbytes:
            self._put(0, [memoryview(head)])
            return
        count = self._num_lanes(buffer.nbytes)
        last = (buffer.nbytes - 1) // FRAME_BYTES

        def move(lane: int) -> None:
            before = [] if lane else [memoryview(head)]
            for index in range(lane, last + 1, count):
                part = _frame(buffer, index)
                if index == last:
                    before_last()
                header = _FRAME.pack(index, len(part), xxhash.xxh3_64_intdigest(part))
                self._put(lane, [*before, memoryview(header), part])
                before = []

        self._each(count, move)

    def await_message(self, forever: bool = False) -> bytes | None:
        """Return the next message; None where the other end has ended the connection before one.

        Args:
          forever: do not give up before its first byte.

        Raises:
          InvalidMessage: it is too long. The connection is of no more use, as after all other errors.
          DamagedState: its digest differs.
          OSError: the connection is lost, or the time is up.
        """
        if not self._first.poll(None if forever else max(0.0, self._deadline - SYSTEM_CLOCK.monotonic()) * 1e3):
            raise BlockingIOError
        if forever:
            self.within(self._secs)
        header = bytearray(_MESSAGE.size)
        if not self._fill(0, [memoryview(header)], may_end=True):
            return None
        num_bytes, digest = _MESSAGE.unpack(header)
        if num_bytes > MOST_BYTES:
            raise InvalidMessage(
                f"the request or its reply has {num_bytes} bytes, more than {MOST_BYTES} bytes, and a buffer is not "
                "sent in it"
            )
        message = bytearray(num_bytes)
        if num_bytes:
            self._fill(0, [memoryview(message)])
        if (found := xxhash.xxh3_64_intdigest(message)) != digest:
            raise DamagedState(_damaged(f"a message of {num_bytes} bytes", digest, found))
        return bytes(message)

    # --- buffers ---

    def receive(self, into: np.ndarray) -> None:
        """Fill `into` (uint8, C-contiguous) with the frames that are due; after an error it holds anything.

        Raises:
          DamagedState: a frame has another digest than its sender has computed, or is not the one that is due.
          OSError: the connection is lost, or the time is up.
        """
        count = self._num_lanes(into.nbytes)
        last = (into.nbytes - 1) // FRAME_BYTES

        def move(lane: int) -> None:
            header = bytearray(_FRAME.size)
            for index in range(lane, last + 1, count):
                part = _frame(into, index)
                self._fill(lane, [memoryview(header), part])
                at, num_bytes, digest = _FRAME.unpack(header)
                if (at, num_bytes) != (index, len(part)):
                    raise DamagedState(
                        f"frame {at} of {num_bytes} bytes came where frame {index} of {len(part)} is due; the "
                        "connection is ended, ask again"
                    )
                if (found := xxhash.xxh3_64_intdigest(part)) != digest:
                    raise DamagedState(_damaged(f"frame {index} of a buffer", digest, found))

        self._each(count, move)

    def discard(self, num_bytes: int) -> None:
        """Throw away the frames of so many bytes.

        Raises:
          OSError: the connection is lost, or the time is up.
        """
        count = self._num_lanes(num_bytes)
        last = (num_bytes - 1) // FRAME_BYTES

        def move(lane: int) -> None:
            scratch = memoryview(bytearray(_FRAME.size + min(num_bytes, FRAME_BYTES)))
            for index in range(lane, last + 1, count):
                part = min(FRAME_BYTES, num_bytes - index * FRAME_BYTES)
                self._fill(lane, [scratch[: _FRAME.size + part]])

        self._each(count, move)

    def hang_up(self) -> None:
        """End a connection whose frames are of no more use, once its caller has read what was sent last."""
        deadline, scratch = SYSTEM_CLOCK.monotonic() + _LINGER_SECS, bytearray(1 << 16)
        opened = {each.fileno(): each for each in self._sockets}
        waiting = select.poll()
        for number in opened:
            waiting.register(number, select.POLLIN)
        try:
            for each in self._sockets:
                each.shutdown(socket.SHUT_WR)
            while opened and (left := deadline - SYSTEM_CLOCK.monotonic()) > 0:
                for number, _ in waiting.poll(left * 1e3):
                    if not opened[number].recv_into(scratch, 0, socket.MSG_DONTWAIT):
                        waiting.unregister(number)
                        del opened[number]
        except OSError:  # the caller has heard enough
            return

    # --- ends ---

    def shut(self) -> None:
        """End the connection, and every send or receive there."""
        for each in self._sockets:
            shut(each)

    def have_ended(self) -> bool:
        """Return whether one of the ends has ended the connection."""
        return has_hung_up(self._sockets[0])

    def close(self) -> None:
        """Let go of the sockets."""
        self.shut()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        for each in self._sockets:
            each.close()

    # --- one lane ---

    def _num_lanes(self, num_bytes: int) -> int:
        return 1 if num_bytes < SMALL_BYTES else len(self._sockets)

    def _each(self, count: int, move: Callable[[int], None]) -> None:
        """Move frames on so many lanes side by side.

        Raises:
          ConnectionAbortedError: no thread could be started for one of them; the connection is of no more use.
        """
        if count == 1:
            move(0)
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(len(self._sockets) - 1, "lane")
        try:
            others = [self._threads.submit(self._kept, move, lane) for lane in range(1, count)]
        except RuntimeError as error:
            self.shut()
            self._threads.shutdown(cancel_futures=True)  # what has begun ends, and what waits must not begin later
            self._threads = None
            lost = ConnectionAbortedError(None, f"no thread could be started for one of its sockets: {error}")
            logging.log_every_n_seconds(logging.WARNING, "a link was ended: %s", 10, lost.strerror)
            raise lost from error
        errors = [error for error in (self._kept(move, 0), *(each.result() for each in others)) if error is not None]
        if errors:
            # Which one came first: the others may have it from the lanes that were shut.
            raise min(errors, key=lambda error: (not isinstance(error, HybridSyncError), _is_lost(error)))

    def _kept(self, move: Callable[[int], None], lane: int) -> Exception | None:
        try:
            move(lane)
        except HybridSyncError as error:  # the other lanes go on, so that both ends can still speak
            return error
        except Exception as error:  # noqa: BLE001 - handed to the thread that called
            self.shut()
            return error
        return None

    def _put(self, lane: int, parts: list[memoryview]) -> None:
        """Send all parts, in one call of the kernel if it can be."""
        self._check_time()
        sent = self._sockets[lane].sendmsg(parts)
        for part in parts:
            if sent < len(part):
                self._sockets[lane].sendall(part[sent:])
            sent = max(0, sent - len(part))

    def _fill(self, lane: int, parts: list[memoryview], *, may_end: bool = False) -> bool:
        """Receive all parts, in one call of the kernel if it can be; returns False at an end that may be."""
        self._check_time()
        connection = self._sockets[lane]
        received = connection.recvmsg_into(parts, 0, socket.MSG_WAITALL)[0]
        if not received and may_end:
            return False
        for part in parts:
            while received < len(part):
                more = connection.recv_into(part[received:], 0, socket.MSG_WAITALL)
                if not more:
                    raise ConnectionResetError(None, "it ended the connection")
                self._check_time()
                received += more
            received -= len(part)
        return True

    def _check_time(self) -> None:
        if SYSTEM_CLOCK.monotonic() > self._deadline:
            raise BlockingIOError


def _frame(buffer: np.ndarray, index: int) -> memoryview:
    return buffer.data[index * FRAME_BYTES : (index + 1) * FRAME_BYTES]


def _is_lost(error: Exception) -> bool:
    return isinstance(error, OSError) and not isinstance(error, BlockingIOError)


def _damaged(what: str, digest: int, found: int) -> str:
    return (
        f"{what} arrived damaged: its digest is {found:016x} where {digest:016x} was sent; the connection is ended, "
        "ask again"
    )
