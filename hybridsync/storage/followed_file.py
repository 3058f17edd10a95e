"""Reads a text file that others write to: its end, and what comes."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from hybridsync.storage.durable import open_file


class FollowedFile:
    """One file, shown from its end on. It is opened anew at each look, so that a network file system shows what is new.

    Args:
      path: path of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def tail(self, lines: int, *, whole: bool = False) -> list[str]:
        """Return its last lines, all of them where `lines` is 0.

        Args:
          lines: maximum number of lines.
          whole: whether to leave a last line without its end to `news`.

        Raises:
          OSError: the file cannot be read.
        """
        with open(open_file(self._path, os.O_RDONLY), "rb") as file:
            found = deque(file, maxlen=lines or None)
            self._at = file.tell()
        if whole and found and not found[-1].endswith(b"\n"):
            self._at -= len(found.pop())
        return [_text(line) for line in found]

    def news(self, *, ended: bool = False) -> list[str]:
        """Return the lines that came since the last call; a last one without its end waits for it.

        Args:
          ended: no process writes any more, so that nothing waits.

        Raises:
          OSError: the file cannot be read.
        """
        with open(open_file(self._path, os.O_RDONLY), "rb") as file:
            self._at = self._at if self._at <= file.seek(0, 2) else 0  # it was emptied
            file.seek(self._at)
            found = file.read()
        found = found if ended else found[: found.rfind(b"\n") + 1]
        self._at += len(found)
        return [_text(line) for line in found.splitlines()]


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\n")
