"""Wakes a main loop that waits: a signal does, and a call from any thread."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


class WakePipe:
    """A pipe that can be read from when the main loop is to look around; to be entered on the main thread.

    While it is entered, SIGTERM and SIGINT are handled, and SIGHUP unless it is ignored, as by nohup.

    Args:
      on_signal: called on the main thread with the signal's number, between any two steps of it.

    Attributes:
      fd: end of the pipe to read from; the reader empties it.
    """

    def __init__(self, on_signal: Callable[[int, FrameType | None], None]) -> None:
        self._on_signal = on_signal
        self._lock = threading.Lock()  # of the end to write to, which is closed while other threads may wake
        self.fd, self._write_fd = -1, -1

    def wake(self) -> None:
        """Wake the loop; any thread may call it."""
        with self._lock, contextlib.suppress(BlockingIOError):  # it is awake
            if self._write_fd >= 0:
                os.write(self._write_fd, b"\0")

    def __enter__(self) -> WakePipe:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)
        self._former_wake = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        self._former = {number: signal.signal(number, self._on_signal) for number in numbers}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._former_wake)
        with self._lock:
            os.close(self._write_fd)
            self._write_fd = -1
        os.close(self.fd)
