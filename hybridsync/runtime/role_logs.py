"""The roles' log files, without which a run goes on: the folder is made again, or nothing is kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from hybridsync.storage.durable import FOLDER_MODE, open_file


class Logs:
    """Opens log files; says once that they cannot be written.

    Args:
      folder: folder of the logs; exists.
      say: shows a line to the user.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder, self._say, self._said = folder, say, False

    def path(self, name: str) -> Path:
        """Return where a role's log is."""
        return self._folder / f"{name}.log"

    def open(self, path: Path) -> BinaryIO:
        """Open a log at its end; /dev/null where the disk refuses.

        Raises:
          OSError: this process cannot open any file.
        """
        try:
            path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)  # the user may have removed it, or moved the workdir
            return open(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")
        except OSError as error:
            if not self._said:
                self._said = True
                self._say(f"logs cannot be written to {self._folder}: {error}; the run goes on without them")
            return open(os.devnull, "ab")
