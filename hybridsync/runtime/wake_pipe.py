"""Wakes a main loop that waits: a signal does, and a call from any thread."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

from hybridsync.runtime.role_signals import Handler, handled


class WakePipe:
    """A pipe that can be read from when the main loop is to look around; to be entered on the main thread.

    While it is entered, the signals that ask for the end are handled (see `role_signals.handled`).

    Args:
      on_signal: called on the main thread with the signal's number, between any two steps of it.

    Attributes:
      fd: end of the pipe to read from; the reader empties it.
    """

    def __init__(self, on_signal: Handler) -> None:
        self._handled = handled(on_signal)
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
        self._handled.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._handled.__exit__(None, None, None)
        signal.set_wakeup_fd(self._former_wake)
        with self._lock:
            os.close(self._write_fd)
            self._write_fd = -1
        os.close(self.fd)
