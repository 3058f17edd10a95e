"""For `planted.py`: no bug, but a record of what in a role makes code of data, and by which thread."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import hybridsync

EVENTS = frozenset(
    {
        "pickle.find_class",
        "marshal.load",
        "marshal.loads",
        "exec",
        "compile",
        "code.__new__",
        "os.system",
        "os.exec",
        "os.fork",
        "os.posix_spawn",
        "subprocess.Popen",
        "ctypes.dlopen",
    }
)
"""Events of Python's audit hooks: it is about to unpickle a name, load or run code, or start a program."""

FOLDER = "audit"
_OWN_CODE = (
    "<frozen importlib._bootstrap>:",
    "<frozen importlib._bootstrap_external>:",
    f"{Path(hybridsync.__file__).parent}/transport/grpc/codec.py:_record",
)
"""Where code of files is run: an import, also of a configuration, and the annotations of the messages' classes."""


def what_makes_code_of_data_is_recorded(role: str, workdir: Path) -> None:
    """Write a line for each such event, into a file of each process: what it was, in which thread, and from where."""
    if role == "supervisor":
        return
    (workdir / FOLDER).mkdir(exist_ok=True)
    path = workdir / FOLDER / f"{role}-{os.getpid()}.jsonl"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    _write(descriptor, "begun", "")
    busy = threading.local()

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS or getattr(busy, "is_writing", False):
            return
        busy.is_writing = True
        try:
            stack, frame = [], sys._getframe(1)
            while frame is not None:
                stack.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
                frame = frame.f_back
            if not any(each.startswith(_OWN_CODE) for each in stack):
                _write(descriptor, event, repr(arguments)[:200], stack[:6])
        finally:
            busy.is_writing = False

    sys.addaudithook(heard)


def _write(descriptor: int, event: str, what: str, stack: list[str] | None = None) -> None:
    line = {"event": event, "thread": threading.current_thread().name, "what": what, "stack": stack or []}
    os.write(descriptor, json.dumps(line).encode() + b"\n")


AUDITS = {what_makes_code_of_data_is_recorded.__name__: what_makes_code_of_data_is_recorded}
