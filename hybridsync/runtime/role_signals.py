"""Signals that ask a process for its end, and that a role outlives: who started it decides when it ends.

A host that is stopped (a batch system, a container, a service manager) asks all of its processes at once. The roles
have to live until the supervisor has had the run saved. They still end with it: the kernel kills them when it ends, and
it kills them itself.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

DEFAULTS = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
}
"""A Python program's default action on each of these signals."""


def outlive_signals() -> None:
    """Let this process go on where a signal asks for its end; to be called on the main thread.

    A handler that does nothing, and not `SIG_IGN`: a program that this process starts would inherit that.
    """
    for number in DEFAULTS:
        signal.signal(number, _pass_over)
        signal.siginterrupt(number, False)  # system calls of libraries go on as if there had been no signal


def forks_end_on_signals() -> None:
    """Let processes that this one forks end on these signals again: their starter may send one."""
    os.register_at_fork(after_in_child=_restore)


def ignore_signals() -> None:
    """Ignore the signals in this process and the program that it becomes, until that calls `outlive_signals`."""
    for number in DEFAULTS:
        signal.signal(number, signal.SIG_IGN)


def _pass_over(number: int, frame: FrameType | None) -> None:
    """Do nothing."""


def _restore() -> None:
    for number, handler in DEFAULTS.items():
        signal.signal(number, handler)
