"""The folder for the sockets of one run on this host: no other user can enter it.

The sockets lie neither in the workdir, whose path may be longer than a socket's can be and whose file system may know
no sockets, nor below XDG_RUNTIME_DIR, which ends with the user's last session while a run under nohup goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from hybridsync.core.addresses import MAX_SOCKET_PATH, at_socket
from hybridsync.core.errors import AddressError

_PREFIX = "hybridsync-"
_LONGEST_NAME = "worker-9999-9999"


class SocketFolder:
    """A folder of mode 0700, locked for as long as it is in use; made at once.

    A folder without its lock was left by a process that was killed. Whoever makes one removes those of this user. The
    lock is on the folder itself, which also keeps systemd-tmpfiles from removing it from a run of many days.

    Args:
      parent: where it is made; None for the system's folder of temporary files, or /tmp where that has a long name.

    Raises:
      AddressError: it cannot be made, or paths in it are longer than a socket's may be.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = _short_parent() if parent is None else parent
        _remove_abandoned(parent)
        try:
            self._path, self._lock = _make(parent)
        except OSError as error:
            raise AddressError(
                f"cannot make a folder for the run's sockets in {parent}: {error.strerror}; set TMPDIR to a folder "
                "that you can write to, or run with --bind=127.0.0.1"
            ) from error
        if len(os.fsencode(self._path / _LONGEST_NAME)) > MAX_SOCKET_PATH:
            self.remove()
            raise AddressError(
                f"the path of a socket has at most {MAX_SOCKET_PATH} bytes, and {parent} leaves too few of them; set "
                "TMPDIR to a folder with a shorter name, or run with --bind=127.0.0.1"
            )

    def address(self, name: str) -> str:
        """Return the address of a socket by its name in this folder."""
        return at_socket(self._path / name)

    def remove(self) -> None:
        """Remove the folder with all sockets in it; nothing happens the second time."""
        if self._lock >= 0:
            shutil.rmtree(self._path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _short_parent() -> Path:
    usual = Path(tempfile.gettempdir())
    fits = len(os.fsencode(usual)) + len(_PREFIX) + 9 + 1 + len(_LONGEST_NAME) <= MAX_SOCKET_PATH
    return usual if fits else Path("/tmp")


def _make(parent: Path) -> tuple[Path, int]:
    """Return a new folder and the descriptor that locks it."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))  # mode 0700
        descriptor = _open_folder(path)
        if descriptor is not None and _lock(descriptor):
            if path.exists():
                return path, descriptor
            os.close(descriptor)  # another launch took it for an abandoned one before it was locked
        elif descriptor is not None:
            os.close(descriptor)


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of this user's killed runs."""
    for path in parent.glob(f"{_PREFIX}*"):
        descriptor = _open_folder(path)
        if descriptor is None:
            continue
        try:
            if os.fstat(descriptor).st_uid == os.getuid() and _lock(descriptor):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)


def _open_folder(path: Path) -> int | None:
    """Return a descriptor of a folder, which no child inherits; None where there is none, or not for this user."""
    with contextlib.suppress(OSError):
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    return None


def _lock(descriptor: int) -> bool:
    """Lock a folder, and return whether nobody else had."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
