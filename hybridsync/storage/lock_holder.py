"""Says who has a workdir locked. The lock itself is asked: what its file says may be of a process long gone."""

from __future__ import annotations

import fcntl
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from hybridsync.core.errors import WorkdirError
from hybridsync.core.process_start import start_of
from hybridsync.storage.durable import LOCK_FILE
from hybridsync.storage.lock_record import LockRecord


@dataclass(frozen=True)
class Holder:
    """Describes the process that has a workdir locked.

    Args:
      pid: id of the process that took the lock; 0 if unknown: it has ended, and those that it had share the lock have
        not yet, or it has not written its name yet.
      host: host of that process.
      since: time at which it took the lock, unix seconds.
    """

    pid: int
    host: str
    since: float

    @property
    def name(self) -> str:
        """Return its name for errors, where its process is known."""
        return f"process {self.pid}" + ("" if self.host == socket.gethostname() else f" on {self.host}")


def holder_of(workdir: Path) -> Holder | None:
    """Return who has `workdir` locked; None where nobody has. It does not wait.

    The lock is taken for a moment, shared; a process that wants it meanwhile tries again (see `WorkdirLock`).

    Raises:
      WorkdirError: the lock cannot be read.
    """
    try:
        descriptor = os.open(workdir / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WorkdirError(
            f"cannot read {workdir / LOCK_FILE}: {error.strerror}; name the --workdir of a run that this user has "
            "started"
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pid, host = _named(os.pread(descriptor, 4096, 0))
            return Holder(pid, host, os.fstat(descriptor).st_mtime)
        return None
    finally:
        os.close(descriptor)


def _named(content: bytes) -> tuple[int, str]:
    """Return the process that a lock names and its host; (0, "") where it is gone or not named."""
    record = LockRecord.parse(content)
    if record is None:
        return 0, ""
    if record.host == socket.gethostname():
        found = start_of(record.pid)
        if found < 0 or record.started not in (None, found):
            return 0, ""
    return record.pid, record.host
