"""Says where the roles of a host serve: on sockets in a folder of the user's own, or at ports of one address."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
import tempfile
from pathlib import Path

from hybridsync.core.addresses import MAX_SOCKET_PATH, at_port, at_socket
from hybridsync.core.errors import AddressError
from hybridsync.core.process_start import boot_id

LOOPBACK = "127.0.0.1"


class RoleAddresses:
    """Holds the addresses of a run's roles on this host.

    Args:
      host: address at whose ports the roles serve; "" for sockets, which no other user can reach. The process group is
        served on a socket in any case, if there is a place for it.
      port: port of the chief; 0 takes a free one.
      num_hosts: number of hosts of the run; on several, everything is at ports of this one's address.

    Attributes:
      host: address for services that support TCP only.

    Raises:
      AddressError: there is no place for sockets, and no host.
    """

    def __init__(self, host: str = "", port: int = 0, *, num_hosts: int = 1) -> None:
        self.host = host or LOOPBACK
        self._port, self._serves_at_ports = port, bool(host)
        self._folder: SocketFolder | None = None
        try:
            self._folder = SocketFolder() if num_hosts == 1 else None
        except AddressError:
            if not host:
                raise
        self._num_services = 0

    def of(self, role: str, role_id: int, restart_count: int) -> str:
        """Return where a process serves; a chief that replaces another one does so at the same socket."""
        is_chief = role == "chief"
        if self._folder is None or self._serves_at_ports:
            return at_port(self.host, self._port if is_chief else 0)
        return self._folder.address(role if is_chief else f"{role}-{role_id}-{restart_count}")

    @property
    def are_sockets(self) -> bool:
        """Return whether the roles serve on sockets."""
        return self._folder is not None and not self._serves_at_ports

    @property
    def has_sockets(self) -> bool:
        """Return whether there is a place for sockets."""
        return self._folder is not None

    def keep_sockets(self) -> bool:
        """Make the folder of the sockets again if it is gone; returns whether it had to be made.

        Raises:
          AddressError: it cannot be made.
        """
        return self._folder is not None and self._folder.keep()

    def next_service(self) -> str:
        """Return where the next service that the workers join is served."""
        self._num_services += 1
        return at_port(self.host) if self._folder is None else self._folder.address(f"group-{self._num_services}")

    def close(self) -> None:
        """Remove the sockets; nothing happens the second time."""
        if self._folder is not None:
            self._folder.remove()


_PREFIX = "hybridsync-sockets-"
_MARK = "boot"
"""A file of each folder that holds this machine's boot id. Only a folder that has it is ever removed."""

_LONGEST_NAME = "worker-9999-9999.slabs"
_SAFE = re.compile(r"[A-Za-z0-9._/+=@-]+")
"""Characters that gRPC accepts unescaped in the path of a socket."""


class SocketFolder:
    """Makes a folder of mode 0700, and locks it for as long as it is in use.

    A marked folder without its lock was left by a process that was killed. A process that makes a folder first removes
    those of this user and this boot; it deletes only sockets and the mark, so that no user's files can be lost. The
    lock is on the folder itself, which also keeps systemd-tmpfiles from removing it from a run of many days.

    Args:
      parents: folders in which it may be made, the first that will do; () for TMPDIR, /tmp and /var/tmp.

    Raises:
      AddressError: none of the folders will do.
    """

    def __init__(self, *parents: Path) -> None:
        named = os.environ.get("TMPDIR")
        reasons = []
        for parent in parents or (*([Path(named)] if named else []), Path("/tmp"), Path("/var/tmp")):
            try:
                _check_parent(parent)
                _remove_abandoned(parent)
                self._path, self._lock = _make(parent)
                return
            except OSError as error:
                reasons.append(f"{parent}: {error.strerror or error}")
        raise AddressError(
            f"there is no place for the run's sockets ({'; '.join(reasons)}); set TMPDIR to another folder, or run "
            "with --bind=127.0.0.1"
        )

    def address(self, name: str) -> str:
        """Return the address of a socket by its name in this folder."""
        return at_socket(self._path / name)

    def keep(self) -> bool:
        """Make the folder again at its path if it was removed, moved or emptied; returns whether it had to be.

        The roles then make their sockets again (see `KeptSocket`).

        Raises:
          AddressError: it cannot be made there.
        """
        with contextlib.suppress(OSError):
            found = os.stat(self._path, follow_symlinks=False)
            if os.path.samestat(found, os.fstat(self._lock)) and (self._path / _MARK).exists():
                return False
        if self._lock >= 0:
            os.close(self._lock)  # it may be the lock of the same folder
            self._lock = -1
        try:
            self._path.mkdir(stat.S_IRWXU, parents=True, exist_ok=True)
            self._lock = _take(self._path)
        except OSError as error:
            raise AddressError(f"the folder of the run's sockets, {self._path}, is gone: {error.strerror}") from error
        return True

    def remove(self) -> None:
        """Remove the folder with all sockets in it; nothing happens the second time."""
        if self._lock >= 0:
            _remove(self._path)
            os.close(self._lock)
            self._lock = -1


def _check_parent(parent: Path) -> None:
    """Refuse a folder whose sockets could not be addressed, or in which others could put a folder in place of ours.

    Raises:
      OSError: the folder will not do.
    """
    path = os.path.abspath(parent)
    length = len(os.fsencode(path)) + 1 + len(_PREFIX) + len("12345678/") + len(_LONGEST_NAME)
    if length > MAX_SOCKET_PATH:
        raise OSError(f"its name is too long, a socket's path has at most {MAX_SOCKET_PATH} bytes")
    if not _SAFE.fullmatch(path):
        raise OSError("its name has characters that an address cannot have")
    found = os.stat(parent)
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    if others_write or found.st_uid not in (0, os.geteuid()):
        raise OSError("other users may rename what is in it")


def _make(parent: Path) -> tuple[Path, int]:
    """Return a new folder and the descriptor that locks it, which no child inherits.

    Raises:
      OSError: no folder, lock or socket can be made there.
    """
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=os.path.abspath(parent)))
    try:
        return path, _take(path)
    except BaseException:
        _remove(path)
        raise


def _take(path: Path) -> int:
    """Lock and mark a folder of this user's, and return the descriptor that locks it.

    Raises:
      OSError: it is another user's, or no lock or socket can be made there.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchmod(descriptor, stat.S_IRWXU)  # whatever the umask is, and without a group that the parent hands down
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it is another user's")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket(socket.AF_UNIX) as probe:  # some file systems know no sockets
            probe.bind(str(path / _LONGEST_NAME))
        os.unlink(path / _LONGEST_NAME)
        mark = os.open(path / _MARK, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
        with open(mark, "w") as file:  # after the lock: before, it would look abandoned
            os.fchmod(mark, stat.S_IRUSR | stat.S_IWUSR)
            file.write(boot_id())
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of this user's runs that were killed since this machine started."""
    for path in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, UnicodeDecodeError):  # another user's, or gone meanwhile
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid() and (path / _MARK).read_text() == boot_id():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its run lives
                    _remove(path)
            finally:
                os.close(descriptor)


def _remove(folder: Path) -> None:
    """Remove a folder's sockets and its mark, and the folder if nothing else is in it."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # its server has removed it meanwhile
                if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                    os.unlink(entry.path)
        (folder / _MARK).unlink(missing_ok=True)  # the last: the next launch completes an interrupted removal
        os.rmdir(folder)
