"""Keeps what must survive a crash outside the checkpoints: durable writes, the phase number, the workdir's lock.

A file's name is as durable as the directory that holds it: every rename and every new directory here is
followed by an fsync of the parent.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import xxhash
from absl import logging

from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.errors import WorkdirError, WorkdirTaken
from hybridsync.core.plan import PhaseId
from hybridsync.core.process_start import boot_id, start_of
from hybridsync.storage.lock_beats import Beats, read_anew, read_beat
from hybridsync.storage.lock_record import BEAT_SECS, MISSED_BEATS, Decision, LockRecord, Look, Watch

PHASE_FILE = "phase"
LOCK_FILE = "lock"
FOLDER_MODE, FILE_MODE = 0o700, 0o600
"""Of everything that a run makes: what it has learnt and from what is its user's alone."""
FILE, FOLDER = "file", "folder"
_KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: FOLDER,
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}
_NONCE_BYTES = 8
HEIRS_SECS = 5.0
"""How long the roles of a killed supervisor may take to end with it."""
_LOOK_SECS = 0.5
_MOST_SYNCS = 32
_REPLACE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
Fence = Callable[[], None]
"""Raises `WorkdirTaken` when this process may write in the workdir no longer; asked before each rename there."""


def unfenced() -> None:
    """Let everything be written: nobody else can want the folder."""


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make the entries of a directory durable.

    Raises:
      OSError: the directory is absent or the disk refuses.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: str | os.PathLike[str]) -> int:
    """Make every file and directory entry below `path` durable, and `path` itself.

    No order among them matters, so all are synced at once: a slow disk takes about as long as for one.

    Returns:
      Bytes in all the files together.

    Raises:
      OSError: something vanished meanwhile or the disk refuses.
    """
    tree = list(os.walk(path, topdown=False))
    folders = [partial(sync_directory, folder) for folder, _, _ in tree]
    files = [partial(_sync_file, os.path.join(folder, name)) for folder, _, names in tree for name in names]
    return sum(num_bytes or 0 for num_bytes in _at_once([*folders, *files]))


def _sync_file(path: str) -> int:
    """Make a file's content durable; returns its bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _at_once(calls: Iterable[Callable[[], Any]]) -> list[Any]:
    """Make calls in some threads, and return their results in the order of their ends.

    The threads are daemons, and not an executor's: a disk that hangs must not keep the process from its end.

    Raises:
      Exception: the first one of a call; those that had not begun by then are left out.
    """
    left, results, errors = deque(calls), [], []

    def work() -> None:
        while left and not errors:
            try:
                call = left.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                results.append(call())
            except Exception as error:  # noqa: BLE001 (raised below)
                errors.append(error)

    threads: list[threading.Thread] = []
    for _ in range(min(len(left), _MOST_SYNCS) - 1):
        thread = threading.Thread(target=work, name="sync", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no other thread: fewer make the calls, in the end this one alone
            break
        threads.append(thread)
    work()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def open_file(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file of a run; one that is made is for this user alone. Nothing but a regular file is opened.

    A fifo would wait for another process, and a device or a folder holds no record.

    Raises:
      OSError: something else is in its place, or the disk refuses.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE)
    kind = kind_of(os.fstat(descriptor).st_mode)
    if kind != FILE:
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"it is a {kind}, not a file", os.fspath(path))
    return descriptor


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file of a run (see `open_file`).

    Raises:
      OSError: the file is absent, something else is in its place, or the disk refuses.
    """
    with open(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read()


def still_at(path: str | os.PathLike[str], descriptor: int, flags: int) -> int:
    """Return a descriptor of the file that a path names: a new one if the open file was moved, removed or replaced.

    If the folder itself is gone, the open file remains the right place: it has moved along with its folder.

    Raises:
      OSError: something else is in its place, or the disk refuses; the open file stays open.
    """
    try:
        found, here = os.stat(path, follow_symlinks=False), os.fstat(descriptor)
        if (found.st_dev, found.st_ino) == (here.st_dev, here.st_ino):
            return descriptor
    except FileNotFoundError:
        pass
    try:
        opened = open_file(path, flags)
    except FileNotFoundError:
        return descriptor
    os.close(descriptor)
    return opened


def kind_of(mode: int) -> str:
    """Return what the mode of a path says it is: `FILE`, `FOLDER`, or the name of another kind."""
    return _KINDS.get(stat.S_IFMT(mode), "special file")


def make_directory(path: str | os.PathLike[str]) -> Path:
    """Create a directory and its missing parents for this user alone, each made durable in its own parent.

    Returns:
      The absolute path.

    Raises:
      OSError: a part of the path is a file, or the disk refuses.
    """
    target = Path(path).absolute()
    missing = [part for part in (target, *target.parents) if not part.is_dir()]
    for part in reversed(missing):
        part.mkdir(mode=FOLDER_MODE, exist_ok=True)
        sync_directory(part.parent)
    return target


def private(path: str, flags: int) -> int:
    """Open a file of a run; one that is made is for this user alone. The `opener` of `open`."""
    return os.open(path, flags, FILE_MODE)


def keep_private(path: str | os.PathLike[str]) -> None:
    """Leave a folder that a library has written, and all in it, to this user alone.

    Raises:
      OSError: the disk refuses.
    """
    for folder, _, names in os.walk(path):
        os.chmod(folder, FOLDER_MODE)
        for name in names:
            os.chmod(os.path.join(folder, name), FILE_MODE)


def write_durable(path: str | os.PathLike[str], text: str, fence: Fence = unfenced) -> None:
    """Replace a file's whole content so that a crash leaves the old text or the new one, never a mixture.

    One writer a path: the temporary name is fixed, so that a crash leaves at most one. So `fence` is asked before that
    is written, which may be another chief's by now, and again before the rename.

    Raises:
      OSError: the disk refuses; the old content is intact, and what was written of the new one is gone.
      WorkdirTaken: by `fence`; the old content is intact.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.tmp")
    fence()
    try:
        with open(open_file(temporary, _REPLACE), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fence()
        os.replace(temporary, target)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(target.parent)


class PhaseNumberFile:
    """Hands out phases whose number is durable before anyone hears of it, so none is handed out twice.

    Args:
      workdir: existing directory; the file `phase` in it belongs to this class.
      fence: see `write_durable`.
    """

    def __init__(self, workdir: str | os.PathLike[str], fence: Fence = unfenced) -> None:
        self._path, self._fence = Path(workdir) / PHASE_FILE, fence

    def read(self) -> PhaseId | None:
        """Return the newest phase that was ever reserved, None before the first.

        Raises:
          WorkdirError: the file does not hold a phase, or cannot be read.
        """
        try:
            text = read_file(self._path).decode()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise WorkdirError(f"cannot read {self._path}: {error.strerror}; mend the disk or its rights") from error
        except UnicodeDecodeError as error:
            raise self._unreadable(f"bytes that are no text: {error}") from error
        try:
            record = json.loads(text)
            number, nonce, check = record["number"], int(record["nonce"], 16), record.get("digest")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._unreadable(repr(text[:80])) from error
        if type(number) is not int or number < 1 or not record.keys() <= {"number", "nonce", "digest"}:
            raise self._unreadable(repr(text[:80]))
        phase_id = PhaseId(number, nonce)
        if check not in (None, _digest_of(phase_id)):  # None: written by hand
            raise self._unreadable(f"{text[:80]!r}, whose digest is {_digest_of(phase_id)}")
        return phase_id

    def reserve(self, above: int = 0) -> PhaseId:
        """Reserve the next phase: its number is above the file's and above `above`.

        Args:
          above: a number known from elsewhere, such as the checkpoint's, in case the file was lost.

        Raises:
          WorkdirError: the file does not hold a phase, or the disk refuses: no phase was handed out.
          WorkdirTaken: by the fence: no phase was handed out.
        """
        self._fence()  # makes the file's name lead to it, or raises: an absent file would say that there was no phase
        newest = self.read()
        number = max(newest.number if newest else 0, above) + 1
        phase_id = PhaseId(number, int.from_bytes(os.urandom(_NONCE_BYTES), "big"))
        try:
            write_durable(self._path, _text_of(phase_id), self._fence)
        except OSError as error:
            raise WorkdirError(
                f"phase {number} cannot be reserved in {self._path}: {error.strerror}; nobody was given it: "
                "free space or mend the disk, and run the same command again"
            ) from error
        return phase_id

    def _unreadable(self, found: str) -> WorkdirError:
        return WorkdirError(
            f'{self._path} holds {found}, not {{"number": N, "nonce": "hex"}}; write the highest phase that '
            "events.jsonl names there, or start in another workdir"
        )


def _text_of(phase_id: PhaseId) -> str:
    record = {"number": phase_id.number, "nonce": f"{phase_id.nonce:016x}", "digest": _digest_of(phase_id)}
    return json.dumps(record) + "\n"


def _digest_of(phase_id: PhaseId) -> str:
    """Return what tells a number that was written from one in which a bit has changed."""
    return xxhash.xxh3_64_hexdigest(f"{phase_id.number} {phase_id.nonce}".encode())


class HeldLock(NamedTuple):
    """A lock that another process has taken for this one as well.

    Args:
      descriptor: file descriptor of the locked file; the lock lasts until both have closed it.
      nonce: nonce of the lock's record. It is handed on, not read there: by now the file may be another holder's.
    """

    descriptor: int
    nonce: str


class WorkdirLock:
    """Keeps a workdir to one chief at a time by an exclusive `flock`, which ends with the process.

    Where the file system grants every process a lock, a record and a beat in the workdir keep hosts apart (see
    `lock_record`). The process that has taken the lock beats, and the one that commits calls `check` before.

    Use it as a context manager. The file `lock` stays: removing it would let two holders lock two files.

    Args:
      workdir: existing directory.
      held: lock that another process has taken for this one; None to lock it here.
      say: shows a line to the user, when another host's holder has to be watched.
    """

    def __init__(
        self,
        workdir: str | os.PathLike[str],
        held: HeldLock | None = None,
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._workdir, self._path, self._say = Path(workdir), Path(workdir) / LOCK_FILE, say
        self._held = held
        self._descriptor: int | None = None
        self._beats: Beats | None = None
        self._nonce = ""
        self._following = threading.Lock()  # several threads of a process check
        self._renewed: list[int] = []
        self._links = self._found_links()  # the user's own
        self._folder: os.stat_result | None = None

    @property
    def held(self) -> HeldLock:
        """Return what another process needs to hold the lock as well."""
        assert self._descriptor is not None, "the lock is not held"
        return HeldLock(self._descriptor, self._nonce)

    @property
    def lost(self) -> WorkdirTaken | None:
        """Return why the last beat found the lock no longer this process's; None while it is. No disk is asked."""
        return self._beats.lost if self._beats is not None else None

    def check(self) -> None:
        """Read again who has the workdir: a `Fence`.

        A workdir that was moved while the run has it gets a link at its former name until it is released, and a lock
        file that was removed is made again: all roles know the workdir by that name.

        Raises:
          WorkdirTaken: another process has the workdir, or none any more.
          OSError: the disk refuses to read the record.
        """
        found = LockRecord.parse(read_anew(self._path))
        if found is None:
            with self._following:
                found = LockRecord.parse(read_anew(self._path))
                if found is None:
                    self._follow()
                    found = LockRecord.parse(read_anew(self._path))
        if found is None or found.nonce != self._nonce:
            here = f"process {os.getpid()} on {socket.gethostname()}"
            raise WorkdirTaken(
                f"workdir {self._workdir} is no longer this run's: {self._path} names {found or 'nobody'}, and this is "
                f"{here}, which was silent for {MISSED_BEATS * BEAT_SECS:g} s, or whose disk or workdir was taken "
                "away; it commits nothing more: let the other run go on, or stop it and run this command again"
            )

    def _follow(self) -> None:
        """Make the name of the workdir lead to the locked folder again, if that has been moved, or renew its lock file.

        Nothing happens where the folder is gone, or something else has its name.
        """
        assert self._descriptor is not None, "the lock is not held"
        with contextlib.suppress(OSError):
            lock = Path(os.readlink(f"/proc/self/fd/{self._descriptor}"))
            if not lock.exists() or self._is_locked_folder():  # its path says that it was removed, or moved elsewhere
                self._renew(self._descriptor)
                return
            name, folder = self._path.parent.absolute(), lock.parent
            while not name.parent.is_dir() and name.name == folder.name:  # a folder above it was moved
                name, folder = name.parent, folder.parent
            if name.is_symlink() and not name.exists():  # a link to where it was before
                name.unlink()
            os.symlink(folder, name)
            logging.warning("%s was moved to %s while its run has it; a link leads there from now on", name, folder)

    def _is_locked_folder(self) -> bool:
        """Return whether the folder that has the workdir's name is the one in which the lock was taken."""
        with contextlib.suppress(OSError):
            return self._folder is not None and os.path.samestat(os.stat(self._path.parent), self._folder)
        return False

    def _renew(self, locked: int) -> None:
        """Make the lock file again that was removed from its folder. Both files are locked from now on.

        It has its record before it has its name: whoever reads it without one takes the workdir for nobody's.
        """
        made = self._path.with_name(f".{LOCK_FILE}.{os.getpid()}")
        self._renewed.append(open_file(made, os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        try:
            fcntl.flock(self._renewed[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(self._renewed[-1], os.pread(locked, 4096, 0), 0)
            os.link(made, self._path)  # refused where another process of the run has made it
            logging.warning("%s was removed while its run has it; it is made again", self._path)
        finally:
            os.unlink(made)

    def acquire(self) -> None:
        """Take the lock, or say who has it: at once, unless that process has ended and only its roles still have to.

        A lock that names no holder is tried again as well: a command has asked for its holder, or it was taken a moment
        ago. One that was granted although it names a process under another boot id is taken when that one has been
        silent for three beats.

        Raises:
          WorkdirError: another process (or object of this one) holds it, or the directory is absent.
        """
        assert self._descriptor is None, "the lock is already held by this object"
        if self._held is not None:
            with contextlib.suppress(OSError):  # the first check says so
                self._folder = os.stat(self._path.parent)
            self._descriptor, self._nonce = self._held
            return
        try:
            descriptor = open_file(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        except OSError as error:
            raise WorkdirError(f"cannot open {self._path}: {error.strerror}; name a writable workdir") from error
        try:
            self._folder = os.stat(self._path.parent)
            self._await_lock(descriptor)
            self._await_silence()
            nonce = secrets.token_hex(_NONCE_BYTES)
            pid = os.getpid()
            record = LockRecord(pid, socket.gethostname(), start_of(pid), boot_id().strip(), nonce)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, record.text().encode(), 0)
            os.fsync(descriptor)  # another host is to read it before anything else is written
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError):
                raise WorkdirError(
                    f"cannot lock {self._path}: {error.strerror}; free space or mend the disk, and run the same "
                    "command again"
                ) from error
            raise
        self._descriptor, self._nonce = descriptor, nonce
        self._beats = Beats(self._workdir, nonce, FILE_MODE, self.check)
        self._beats.start()

    def _await_lock(self, descriptor: int) -> None:
        deadline = SYSTEM_CLOCK.monotonic() + HEIRS_SECS
        while not _flock(descriptor):
            content = os.pread(descriptor, 4096, 0)
            if (not content or _has_ended(LockRecord.parse(content))) and SYSTEM_CLOCK.monotonic() < deadline:
                pause(HEIRS_SECS / 100)
                continue
            raise self._in_use(LockRecord.parse(content))

    def _await_silence(self) -> None:
        """Wait until the holder that the lock names has missed its beats, where that is on another host.

        The kernel has granted the lock, and has known every other holder on this host.
        """
        look = self._look()
        if look.record is None or not look.record.is_of_another_boot(boot_id().strip()):
            return
        self._say(
            f"{self._workdir} was left to {look.record}, under another boot id: it is taken over when that one has "
            f"been silent for {MISSED_BEATS * BEAT_SECS:g} s"
        )
        watch = Watch(look, SYSTEM_CLOCK.monotonic())
        while True:
            now = SYSTEM_CLOCK.monotonic()
            look = self._look()
            decision = watch.decide(look, now)
            if decision is Decision.REFUSE:
                raise self._in_use(look.record, ", which beats")
            if decision is Decision.TAKE:
                return
            pause(_LOOK_SECS)

    def _look(self) -> Look:
        return Look(LockRecord.parse(read_anew(self._path)), read_beat(self._workdir))

    def _in_use(self, holder: LockRecord | None, why: str = "") -> WorkdirError:
        return WorkdirError(
            f"workdir {self._workdir} is in use by {holder or 'another process'}{why}; this is process {os.getpid()} "
            f"on {socket.gethostname()}: wait for that run to end, stop it, or name another workdir"
        )

    def release(self) -> None:
        """Give the lock back; nothing happens when it is not held. A record of somebody else is left alone."""
        if self._descriptor is None:
            return
        beats, self._beats = self._beats, None
        if beats is not None:
            beats.stop()
            with contextlib.suppress(OSError, WorkdirTaken):  # a disk that refuses costs the next host its wait
                self.check()
                beats.remove()
                os.ftruncate(self._descriptor, 0)
                for renewed in self._renewed:
                    os.ftruncate(renewed, 0)
            self._unlink()
        for descriptor in (self._descriptor, *self._renewed):
            os.close(descriptor)
        self._descriptor = None

    def _found_links(self) -> set[Path]:
        folder = self._path.parent.absolute()
        return {path for path in (folder, *folder.parents) if path.is_symlink()}

    def _unlink(self) -> None:
        """Remove the link to where the workdir was moved, which a process of the run has made."""
        for link in self._found_links() - self._links:
            with contextlib.suppress(OSError):
                folder = os.readlink(link)
                link.unlink()
                logging.warning("%s was moved to %s while the run had it; the link is removed", link, folder)

    def __enter__(self) -> WorkdirLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _has_ended(record: LockRecord | None) -> bool:
    """Tell whether the process that took the lock has ended, on this host: those that it had share it are killed."""
    if record is None or record.host != socket.gethostname():
        return False
    found = start_of(record.pid)
    return found < 0 or record.started not in (None, found)
