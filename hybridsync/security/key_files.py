"""Notices that files of a folder of keys were replaced."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from hybridsync.core.errors import CredentialsError

T = TypeVar("T")


class KeyFiles(Generic[T]):
    """Reads a folder of keys again whenever one of its files is another one.

    Files are replaced one after the other. Files that changed while they were read, or do not fit together, are not
    used: the next look reads them again, and the former ones stay in use.

    Args:
      folder: folder of the files.
      names: names of the files that matter; some may be missing.
      read: returns the content of the files, or raises CredentialsError.
      say: notifies the user of a folder that cannot be read, once for each change.

    Attributes:
      found: the content that was read last.

    Raises:
      CredentialsError: by `read`.
    """

    def __init__(
        self, folder: Path, names: Sequence[str], read: Callable[[], T], say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._paths, self._read, self._say = [folder / name for name in names], read, say
        self._seen = self._refused = self._marks()
        self.found: T = read()

    def look(self) -> bool:
        """Read the files again if they have changed; returns whether `found` is new."""
        marks = self._marks()
        if marks == self._seen:
            return False
        try:
            found = self._read()
        except CredentialsError as error:
            if marks not in (self._refused, self._seen) and marks == self._marks():
                self._refused = marks
                self._say(f"the former certificate stays in use: {error}")
            return False
        if marks != self._marks():
            return False
        self._seen, self.found = marks, found
        return True

    def _marks(self) -> list[tuple[int, ...]]:
        return [_mark(path) for path in self._paths]


def _mark(path: Path) -> tuple[int, ...]:
    """Return what differs once a file was replaced; () where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
