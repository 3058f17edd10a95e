"""Shows others on other hosts that the holder of a workdir's lock lives: a file that changes every few seconds.

It is not the lock's own file. A write that hung in a disk may arrive when another process has taken the lock: it must
not bring back the record of its former holder.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from hybridsync.core.errors import WorkdirTaken
from hybridsync.storage.lock_record import BEAT_SECS

BEAT_FILE = "beat"
_JOIN_SECS = 1.0


class Beats:
    """Beats from a thread of its own, because a disk that hangs must stop nobody else.

    Args:
      workdir: workdir that this process has locked.
      nonce: nonce of the lock's record.
      mode: mode bits of the file.
      check: raises WorkdirTaken if another process has the lock by now.
    """

    def __init__(self, workdir: Path, nonce: str, mode: int, check: Callable[[], None]) -> None:
        self._path, self._nonce, self._mode, self._check = workdir / BEAT_FILE, nonce, mode, check
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="workdir_beat", daemon=True)
        self.lost: WorkdirTaken | None = None

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Beat no longer; a beat that hangs in the disk is left behind."""
        self._stop.set()
        self._thread.join(_JOIN_SECS)

    def remove(self) -> None:
        """Leave no beat: the lock is given back.

        Raises:
          OSError: the disk refuses.
        """
        self._path.unlink(missing_ok=True)

    def _beat_on(self) -> None:
        count = 0
        while True:
            # The next beat tries again; what a disk refuses for good is reported by roles that save.
            with contextlib.suppress(OSError):
                try:
                    self._check()
                except WorkdirTaken as taken:
                    self.lost = taken
                    return
                self._write(count)
            count += 1
            if self._stop.wait(BEAT_SECS):
                return

    def _write(self, count: int) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, self._mode)
        try:
            os.pwrite(descriptor, f"{self._nonce} {count:020d}\n".encode(), 0)
            os.fsync(descriptor)  # else it stays in this host's memory
        finally:
            os.close(descriptor)


def read_beat(workdir: Path) -> bytes:
    """Return the newest beat in a workdir; b"" where there is none.

    Raises:
      OSError: the disk refuses.
    """
    return read_anew(workdir / BEAT_FILE)


def read_anew(path: Path) -> bytes:
    """Return a small file's content, b"" where there is none; opened for it, because NFS asks its server only then.

    Raises:
      OSError: the disk refuses.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return b""
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
