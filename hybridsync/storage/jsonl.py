"""Files of JSON lines that survive a crash: whole lines only, and an append goes on behind the last of them.

>>> encode({"loss": float("nan"), "rate": 0.5})
'{"loss":null,"rate":0.5}'
"""

import errno
import json
import math
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from absl import logging

from hybridsync.core.errors import WorkdirError
from hybridsync.storage.durable import open_file, read_file, still_at

_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
_WAITING_BYTES = 16 << 20


def encode(value: Any) -> str:
    """Return strict JSON on one line: what is not finite becomes null, NumPy scalars become numbers."""
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":"))


def plain(value: Any) -> Any:
    """Return a value as JSON will hold it; `encode` says what becomes of what."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the whole lines of a file; a torn last one is left out, an absent file has none.

    Raises:
        OSError: the file cannot be read.
        WorkdirError: a line before the last is damaged, which no crash does.
    """
    try:
        content = read_file(path)
    except FileNotFoundError:
        return []
    lines = []
    for index, line in enumerate(content[: _whole(content)].split(b"\n")[:-1], start=1):
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            said = line[:60].decode(errors="replace")
            raise WorkdirError(f"{path} is damaged in line {index}, {said!r}: restore the file, or cut that line")
        lines.append(value)
    return lines


def _whole(content: bytes) -> int:
    """Return the length of `content` without the lines at its end that a crash has torn."""
    end = content.rfind(b"\n") + 1
    while end:
        begin = content.rfind(b"\n", 0, end - 1) + 1
        try:
            if isinstance(json.loads(content[begin:end]), dict):
                return end
        except ValueError:
            pass  # a length that became durable before its bytes
        end = begin
    return 0


class LineFile:
    """Appends JSON lines, each by one `write`; opening cuts what a crash has torn off.

    A file that was moved or removed continues in a new one, as log rotation expects.

    A full disk does not end a run for the sake of its record: lines that the disk refuses wait in memory, in their
    order, and go out before the next one that it takes.

    The lock keeps the lines of several threads apart, and guards those that wait.

    Args:
        path: path of the file; created when absent.

    Raises:
        OSError: the disk refuses.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._lock = threading.Lock()
        self._path = Path(path)
        self._waiting = b""
        self._descriptor = open_file(path, _APPEND)
        content = read_file(path)
        whole = _whole(content)
        if whole < len(content):
            os.ftruncate(self._descriptor, whole)

    def append(self, value: Mapping[str, Any]) -> None:
        """Append one line, behind those that wait.

        Raises:
            OSError: the disk refuses, and has refused more than 16 MiB by now.
        """
        self.extend([encode(value)])

    def extend(self, lines: Iterable[str]) -> None:
        """Append lines that are encoded already, by one `write`, behind those that wait.

        Raises:
            OSError: as `append`.
        """
        added = "".join(f"{line}\n" for line in lines).encode()
        with self._lock:
            waited = bool(self._waiting)
            self._waiting += added
            try:
                self._write()
            except OSError as error:
                if len(self._waiting) > _WAITING_BYTES:
                    raise
                if not waited:
                    logging.error("%s: %s; its lines wait in memory until there is room", self._path, error)

    def close(self) -> None:
        """Write what waits and close the file; a second call does nothing.

        Raises:
            OSError: the disk refuses; the lines that waited are lost.
        """
        with self._lock:
            if self._descriptor < 0:
                return
            try:
                self._write()
            finally:
                os.close(self._descriptor)
                self._descriptor = -1

    def _write(self) -> None:
        """Write the lines that wait, all or none of them."""
        if not self._waiting:
            return
        self._descriptor = still_at(self._path, self._descriptor, _APPEND)
        end = os.fstat(self._descriptor).st_size
        written = os.write(self._descriptor, self._waiting)
        if written < len(self._waiting):
            os.ftruncate(self._descriptor, end)
            raise OSError(errno.ENOSPC, f"{written} of {len(self._waiting)} bytes taken; make room", str(self._path))
        self._waiting = b""
