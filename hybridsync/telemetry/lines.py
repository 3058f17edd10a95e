"""Files of JSON lines that survive a crash: whole lines only, and an append goes on behind the last of them.

>>> encode({"loss": float("nan"), "rate": 0.5})
'{"loss":null,"rate":0.5}'
"""

import json
import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridsync.errors import WorkdirError


def encode(value: Any) -> str:
    """Return strict JSON on one line: what is not finite becomes null, NumPy scalars become numbers."""
    return json.dumps(_plain(value), allow_nan=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
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
        content = Path(path).read_bytes()
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

    The lock keeps the lines of several threads apart.

    Args:
        path: of the file; created when absent.

    Raises:
        OSError: the disk refuses.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._lock = threading.Lock()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        content = Path(path).read_bytes()
        whole = _whole(content)
        if whole < len(content):
            os.ftruncate(self._descriptor, whole)
        begin = content.rfind(b"\n", 0, max(whole - 1, 0)) + 1
        self.last: dict[str, Any] | None = json.loads(content[begin:whole]) if whole else None

    def append(self, value: Mapping[str, Any]) -> None:
        """Append one line.

        Raises:
            OSError: the disk refuses; what it took of the line is cut again.
        """
        line = encode(value).encode() + b"\n"
        with self._lock:
            end = os.fstat(self._descriptor).st_size
            written = os.write(self._descriptor, line)
            if written < len(line):
                os.ftruncate(self._descriptor, end)
                raise OSError(f"the disk took {written} of a line's {len(line)} bytes; make room on it")

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
