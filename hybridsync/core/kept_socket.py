"""Looks after the file of a socket that is served for days in a folder of temporary files, which others may clean."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from absl import logging

from hybridsync.core.errors import HybridSyncError

LOOK_SECS = 1.0
_WARN_SECS = 60


class KeptSocket:
    """Has a socket made again at its path when its file is gone; connections that are open are not concerned.

    Args:
      path: path of the socket.
      again: makes another socket at `path`. A thread of its own calls it, again and again until it succeeds; it may
        raise HybridSyncError or OSError while the folder is missing.
    """

    def __init__(self, path: str | os.PathLike[str], again: Callable[[], None]) -> None:
        self._path, self._again = path, again
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="kept socket", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Make no other socket from now on."""
        self._closed.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._closed.wait(LOOK_SECS):
            if os.path.lexists(self._path):
                continue
            try:
                self._again()
                logging.warning("the socket %s was gone; there is another one now", self._path)
            except (HybridSyncError, OSError) as error:
                logging.log_every_n_seconds(
                    logging.WARNING,
                    "the socket %s is gone, and there is no other one yet: %s",
                    _WARN_SECS,
                    self._path,
                    error,
                )
