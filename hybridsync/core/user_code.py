"""What comes back from the user's own code: an error, told in one line, or a process that it has forked."""

from __future__ import annotations

import functools
import os
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

from hybridsync.core.errors import described

P = ParamSpec("P")
T = TypeVar("T")
_PACKAGE = Path(__file__).parents[1]
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def explain(error: BaseException, default: str = "") -> str:
    """Return one line about an error: the user's line that raised or called what raised, its type and first line.

    Args:
      error: an error that code of the user's raised, or that was raised by what it called.
      default: place to name where no line is the user's.
    """
    what, *_ = described(error).splitlines()
    where = users_line(error) or default
    return f"{where}: {what}" if where else what


def users_line(error: BaseException) -> str:
    """Return "FILE, line N" of the last frame in the user's code, "" where there is none."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


def ends_forks(function: Callable[P, T]) -> Callable[P, T]:
    """Return `function`, which calls user code, so that a process that the user code forks does not come out of it."""

    @functools.wraps(function)
    def guarded(*args: P.args, **named: P.kwargs) -> T:
        pid = os.getpid()
        try:
            result = function(*args, **named)
        except BaseException as error:
            end_if_forked(pid, error)
            raise
        end_if_forked(pid)
        return result

    return guarded


def end_if_forked(pid: int, error: BaseException | None = None) -> None:
    """End this process if it is not process `pid`, in which user code was called: user code has forked it.

    It would go on as the role beside its parent, on the same sockets and shared memory.

    Args:
      pid: process in which user code was called.
      error: error that came out of the user code; its process ends as a program's would.
    """
    if os.getpid() != pid:
        _end(pid, error)


def _end(parent: int, error: BaseException | None) -> NoReturn:
    """End without the exit handlers, and without what the parent has not flushed yet: both are the parent's."""
    code, text = 0, ""
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        code, text = 1, "".join(traceback.format_exception(error))
    else:
        text = "It came back from there as its parent did. A process that is forked ends itself, by os._exit.\n"
    if text:
        os.write(2, f"Process {os.getpid()}, which user code of process {parent} forked, ends. {text}".encode())
    os._exit(code & 0xFF)


def _is_users(filename: str) -> bool:
    if filename.startswith("<"):  # the import system, generated code
        return False
    path = Path(filename)
    return not filename.startswith(_INSTALLED) and "site-packages" not in path.parts and _PACKAGE not in path.parents
