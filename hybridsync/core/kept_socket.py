"""Looks after the file of a socket that is served for days in a folder of temporary files, which others may clean.

Where the folder was removed as well, another user may have made one of that name: a socket is made again only in a
folder that is this user's, and closed to all others.
"""

from __future__ import annotations

import errno
import os
import stat
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
      again: makes another socket at `path`. A thread of its own calls it while the folder is this user's alone, again
        and again until it succeeds; it may raise HybridSyncError or OSError.
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
                _check_folder(os.path.dirname(self._path))
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


def _check_folder(path: str | os.PathLike[str]) -> None:
    """Refuse a folder in which another user may put a socket in place of this process's.

    Raises:
      OSError: it is gone, a link or a file, another user's, or open to others.
    """
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is a link or a file, not a folder", path)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        mode, owner = stat.S_IMODE(found.st_mode), found.st_uid
        raise PermissionError(errno.EPERM, f"it is user {owner}'s, of mode {mode:o}, not this user's of mode 700", path)
