"""Standard streams that cannot end a run: a full disk, a reader that has left, a terminal that was closed.

A command that works for hours continues without its display (`outlast`). A command whose output is its result ends with
the reader of it (`ends_with_its_reader`).
"""

from __future__ import annotations

import errno
import functools
import io
import os
import sys
from collections.abc import Callable

from hybridsync.core.errors import EXIT_FAILED
from hybridsync.runtime.user_output import say

EXIT_BROKEN_PIPE = 141
"""Exit code that shells report for a command ended by SIGPIPE."""


class OutputLost(OSError):
    """Tells a failed write to a standard stream from a failed one to any other file."""


class _Lasting(io.FileIO):
    """A descriptor whose writes always succeed: it drops what the system refuses."""

    def write(self, data, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


class _Telling(io.FileIO):
    """A descriptor whose failed writes are told from those of any other file."""

    def write(self, data, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputLost(error.errno, error.strerror) from error


def outlast() -> None:
    """Let this process go on when its stdout or stderr is full, closed or hung up. To be called first."""
    _open_closed()
    _replace("stdout", _Lasting)
    _replace("stderr", _Lasting)


def ends_with_its_reader(main: Callable[[list[str]], int]) -> Callable[[list[str]], int]:
    """Let a command end quietly when nobody reads its stdout any more, and with a message when that is full."""

    @functools.wraps(main)
    def guarded(argv: list[str]) -> int:
        _open_closed()
        _replace("stdout", _Telling)
        _replace("stderr", _Lasting)
        try:
            try:
                return main(argv)
            finally:  # also after `sys.exit`, as absl's --help calls it
                sys.stdout.flush()
        except OutputLost as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)  # what is buffered must not fail once more when Python ends
            os.close(nowhere)
            if error.errno == errno.EPIPE:
                return EXIT_BROKEN_PIPE
            say(f"error: stdout cannot be written: {error.strerror}; send it elsewhere")
            return EXIT_FAILED

    return guarded


def _open_closed() -> None:
    """Open standard descriptors that are closed on /dev/null, before another file gets their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one


def _replace(name: str, kind: type[io.FileIO]) -> None:
    """Put a stream on top of a descriptor of `kind`, unless somebody has replaced Python's own already."""
    stream = getattr(sys, name)
    if stream is not getattr(sys, f"__{name}__"):
        return
    raw = kind({"stdout": 1, "stderr": 2}[name], "wb", closefd=False)
    if stream is None:  # the descriptor was closed when Python started
        made = io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace")
    else:
        unbuffered = isinstance(stream.buffer, io.RawIOBase)
        made = io.TextIOWrapper(
            raw if unbuffered else io.BufferedWriter(raw),  # as Python does
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
    setattr(sys, name, made)
    setattr(sys, f"__{name}__", made)
