"""Keeps what must survive a crash outside the checkpoints: durable writes, the phase number, the workdir's lock.

A file's name is as durable as the directory that holds it: every rename and every new directory here is
followed by an fsync of the parent.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
from pathlib import Path
from types import TracebackType

import xxhash

from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.errors import WorkdirError
from hybridsync.core.plan import PhaseId

PHASE_FILE = "phase"
LOCK_FILE = "lock"
FOLDER_MODE, FILE_MODE = 0o700, 0o600
"""Of everything that a run makes: what it has learnt and from what is its user's alone."""
_NONCE_BYTES = 8
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # pathlib makes one slash of two
HEIRS_SECS = 5.0
"""How long the roles of a killed supervisor may take to end with it."""


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

    Returns:
      Bytes in all the files together.

    Raises:
      OSError: something vanished meanwhile or the disk refuses.
    """
    num_bytes = 0
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            descriptor = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW)
            try:
                os.fsync(descriptor)
                num_bytes += os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
        sync_directory(folder)
    return num_bytes


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a workdir, which must be one of the file system.

    >>> local_path("runs/digits").name
    'digits'

    Raises:
      WorkdirError: it names an object store.
    """
    text = os.fspath(path)
    if scheme := _SCHEME.match(text):
        raise WorkdirError(
            f"the workdir {text} names an object store ({scheme[1]}): object stores are not supported yet; write to a "
            "local or shared path"
        )
    return Path(path)


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


def write_durable(path: str | os.PathLike[str], text: str) -> None:
    """Replace a file's whole content so that a crash leaves the old text or the new one, never a mixture.

    One writer a path: the temporary name is fixed, so that a crash leaves at most one.

    Raises:
      OSError: the disk refuses; the old content is intact, and what was written of the new one is gone.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", opener=private) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
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
    """

    def __init__(self, workdir: str | os.PathLike[str]) -> None:
        self._path = Path(workdir) / PHASE_FILE

    def read(self) -> PhaseId | None:
        """Return the newest phase that was ever reserved, None before the first.

        Raises:
          WorkdirError: the file does not hold a phase, or cannot be read.
        """
        try:
            text = self._path.read_text(encoding="utf-8")
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
        """
        newest = self.read()
        number = max(newest.number if newest else 0, above) + 1
        phase_id = PhaseId(number, int.from_bytes(os.urandom(_NONCE_BYTES), "big"))
        try:
            write_durable(self._path, _text_of(phase_id))
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


class WorkdirLock:
    """Keeps a workdir to one chief at a time by an exclusive `flock`, which ends with the process.

    Use it as a context manager. The file `lock` stays: removing it would let two holders lock two files.

    Args:
      workdir: existing directory.
      held: descriptor by which another process has locked the workdir for this one as well; None to lock it here. The
        lock lasts until both have closed it.
    """

    def __init__(self, workdir: str | os.PathLike[str], held: int | None = None) -> None:
        self._workdir = Path(workdir)
        self._held = held
        self._descriptor: int | None = None

    @property
    def descriptor(self) -> int:
        """The locked file's, for a process that is to hold the lock as well."""
        assert self._descriptor is not None, "the lock is not held"
        return self._descriptor

    def acquire(self) -> None:
        """Take the lock, or say who has it: at once, unless that process has ended and only its roles still have to.

        Raises:
          WorkdirError: another process (or object of this one) holds it, or the directory is absent.
        """
        assert self._descriptor is None, "the lock is already held by this object"
        path = self._workdir / LOCK_FILE
        if self._held is not None:
            self._descriptor = self._held
            return
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
        except OSError as error:
            raise WorkdirError(f"cannot open {path}: {error.strerror}; name a writable workdir") from error
        deadline = SYSTEM_CLOCK.monotonic() + HEIRS_SECS
        while not _flock(descriptor):
            content = os.pread(descriptor, 4096, 0)
            if _has_ended(content) and SYSTEM_CLOCK.monotonic() < deadline:
                pause(HEIRS_SECS / 100)
                continue
            os.close(descriptor)
            raise WorkdirError(
                f"workdir {self._workdir} is in use by {_holder(content)}; this is process {os.getpid()} on "
                f"{socket.gethostname()}: wait for that run to end, stop it, or name another workdir"
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back; nothing happens when it is not held."""
        if self._descriptor is not None:
            if self._held is None:
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

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


def _has_ended(content: bytes) -> bool:
    """Tell whether the process that took the lock has ended, on this host: those that it had share it are killed."""
    try:
        record = json.loads(content)
        if record["host"] == socket.gethostname():
            os.kill(int(record["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, TypeError, KeyError):
        return False
    return False


def _holder(content: bytes) -> str:
    try:
        record = json.loads(content)
        return f"process {record['pid']} on {record['host']}"
    except (ValueError, TypeError, KeyError):  # taken a moment ago, its name not written yet
        return "another process"
