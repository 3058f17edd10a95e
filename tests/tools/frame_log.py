"""Logs every function of `hybridsync/` that a process enters. As a folder's `sitecustomize` it does so in all children.

`tests.tools.files_crossed` puts a copy of this file on PYTHONPATH. It needs three variables:

    FRAME_LOG_FOLDER     where each process leaves PID.log
    FRAME_LOG_PACKAGE    the folder whose files count, with a slash at its end
    FRAME_LOG_MARKS      JSON: "file:function" -> a dotted path to what is logged when the function is left

A line is (monotonic ns, thread, "call" or "return", file, function, JSON value). Returns are logged of marks alone; a
path begins with a local variable, or with `result`. Bodies of modules and classes are no functions.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
import time
from types import FrameType
from typing import Any

FOLDER, PACKAGE, MARKS = "FRAME_LOG_FOLDER", "FRAME_LOG_PACKAGE", "FRAME_LOG_MARKS"


class FrameLog:
    """The log of one process, and of each process that is forked from it.

    Args:
      folder: of the logs.
      package: begins the path of every file that counts.
      marks: see the module.
    """

    def __init__(self, folder: str, package: str, marks: dict[str, str]) -> None:
        self._folder, self._package, self._marks = folder, package, marks
        self._files: dict[str, str] = {}
        self._open()
        os.register_at_fork(after_in_child=self._open)

    def _open(self) -> None:
        path = os.path.join(self._folder, f"{os.getpid()}.log")
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def hook(self, frame: FrameType, event: str, arg: Any) -> None:
        """See `sys.setprofile`; a generator that goes on is entered again."""
        if event != "call" and event != "return":
            return
        code = frame.f_code
        file = self._files.get(code.co_filename)
        if file is None:
            is_ours = code.co_filename.startswith(self._package)
            file = self._files[code.co_filename] = code.co_filename[len(self._package) :] if is_ours else ""
        if not file or not code.co_flags & inspect.CO_OPTIMIZED:
            return
        path = self._marks.get(f"{file}:{code.co_qualname}")
        if event == "call" or path is not None:
            value = _found(path, {**frame.f_locals, "result": arg}) if path and event == "return" else None
            fields = time.monotonic_ns(), threading.current_thread().name, event, file, code.co_qualname
            os.write(self._fd, "\t".join((*map(str, fields), json.dumps(value, default=str) + "\n")).encode())


def _found(path: str, names: dict[str, Any]) -> Any:
    """Return what a dotted path leads to; None where it leads nowhere."""
    first, *rest = path.split(".")
    found = names.get(first)
    for name in rest:
        found = getattr(found, name, None)
    return found


if FOLDER in os.environ:
    _log = FrameLog(os.environ[FOLDER], os.environ[PACKAGE], json.loads(os.environ[MARKS]))
    threading.setprofile(_log.hook)
    sys.setprofile(_log.hook)
