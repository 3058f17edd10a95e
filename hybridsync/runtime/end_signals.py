"""What asks a run for its end: signals, which a command takes as such and a role outlives, and the end of the parent.

A host that is stopped (a batch system, a container, a service manager) asks all of its processes at once. The roles
have to live until the supervisor has had the run saved. They still end with it: the kernel kills them when it ends, and
it kills them itself. `WakePipe` is how a signal reaches a main loop that waits.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

DEFAULTS = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
}
"""A Python program's default action on each of the signals that programs send to end their own processes."""
WARNINGS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""A closing terminal sends several, a batch system one of the others (Slurm's --signal), and a SIGTERM after them."""
Handler = Callable[[int, FrameType | None], object]
_OUTLIVES = signal.SIG_IGN in (signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGINT))
"""Whether this command was made to outlive its parent; read before any handler of ours takes the place of SIG_IGN."""


@contextlib.contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """Have `handler` called with each signal that asks for the end; to be entered on the main thread.

    A warning that was ignored at the start stays ignored: `nohup` does that with SIGHUP.
    """
    numbers = [signal.SIGTERM, signal.SIGINT]
    numbers += [number for number in WARNINGS if signal.getsignal(number) is not signal.SIG_IGN]
    former = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)


@contextlib.contextmanager
def handled_by_default(handler: Handler) -> Iterator[None]:
    """Have `handler` called with each of these signals on which this process would end, or an error be raised.

    A signal with a handler of the user's keeps that, and so does one that is ignored. Outside the main thread, where
    none can be handled, nothing changes.
    """
    former: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        defaults = (signal.SIG_DFL, signal.default_int_handler)
        numbers = [number for number in {*DEFAULTS, *WARNINGS} if signal.getsignal(number) in defaults]
        former = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in former.items():
            if signal.getsignal(number) == handler:  # else the user's code has set another one meanwhile
                signal.signal(number, before)


class Parent:
    """The process that started this command, if the run is to end with it: a script, a driver, a notebook's kernel.

    A command that was made to outlive its parent does: one with a process group of its own (a job of an interactive
    shell, `setsid`, `start_new_session`), one that ignores SIGHUP (`nohup`), and one that a script's shell started in
    its background, which ignores SIGINT.
    """

    def __init__(self) -> None:
        self._pid = parent = os.getppid()
        try:
            if parent <= 1 or _OUTLIVES or os.getpgid(parent) != os.getpgrp():
                self._pid = 0
        except ProcessLookupError:  # it ended in this moment
            pass

    def has_ended(self) -> bool:
        """Return whether the run is to end because the parent has."""
        return self._pid != 0 and os.getppid() != self._pid


def outlive_signals() -> None:
    """Let this process go on where a signal asks for its end; to be called on the main thread.

    A handler that does nothing, and not `SIG_IGN`: a program that this process starts would inherit that.
    """
    for number in (*DEFAULTS, *WARNINGS):
        signal.signal(number, _pass_over)
        signal.siginterrupt(number, False)  # system calls of libraries go on as if there had been no signal


def forks_end_on_signals() -> None:
    """Let processes that this one forks end on these signals again: their starter may send one."""
    os.register_at_fork(after_in_child=_restore)


def ignore_signals() -> None:
    """Ignore the signals in this process and the program that it becomes, until that calls `outlive_signals`."""
    for number in (*DEFAULTS, *WARNINGS):
        signal.signal(number, signal.SIG_IGN)


def _pass_over(number: int, frame: FrameType | None) -> None:
    """Do nothing."""


def _restore() -> None:
    for number, handler in DEFAULTS.items():
        signal.signal(number, handler)


class WakePipe:
    """A pipe that can be read from when the main loop is to look around; to be entered on the main thread.

    While it is entered, the signals that ask for the end are handled (see `handled`).

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
