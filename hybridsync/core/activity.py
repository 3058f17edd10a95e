"""Lets code that many workers share notify the worker whose thread runs it: it reads data, or begins to compile.

The compiled programs of a run are shared by all workers of a process, and a function that is traced knows no caller.
"""

from __future__ import annotations

import threading
from typing import Protocol


class Activity(Protocol):
    """Takes what a training thread is at."""

    def reading(self) -> None:
        """Note that the data of a unit are read from now on."""
        ...

    def has_read(self) -> None:
        """Note that they are here."""
        ...

    def compiling(self) -> None:
        """Note that a program is traced, and compiled after it."""
        ...


class _Nobody:
    def reading(self) -> None: ...

    def has_read(self) -> None: ...

    def compiling(self) -> None: ...


class _OfThread(threading.local):
    activity: Activity = _Nobody()


_OF_THREAD = _OfThread()


def follow(activity: Activity) -> None:
    """Notify `activity` of what this thread does from now on."""
    _OF_THREAD.activity = activity


def current() -> Activity:
    """Return what is notified of this thread."""
    return _OF_THREAD.activity
