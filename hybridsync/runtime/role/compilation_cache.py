"""The user's folder of compiled programs, which every run finds what the last ones compiled in. Importing loads no JAX.

An entry is machine code that JAX loads and runs: a user who can write to the folder, or replace it, runs programs as
its owner. So it belongs to this user alone, and every folder above it to this user or the system.

It has a part for each kind of processor and number of XLA's threads. JAX's keys know neither `PJRT_NPROC`, on which a
program's machine code depends, nor for certain the processor, and a home may be shared by hosts of several kinds.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from hybridsync.core.errors import ConfigError
from hybridsync.core.paths import local_path
from hybridsync.storage.durable import FOLDER_MODE

PLACE = "HYBRIDSYNC_COMPILATION_CACHE"
"""Names the folder, or `OFF`, in the environment."""
OFF = "off"
JAX_OWN = "JAX_COMPILATION_CACHE_DIR"
MAX_BYTES = 256 << 20
MAX_ENTRIES = 4096
"""The number of entries kept between two runs, in all parts together; the most recently used ones stay."""

_SWEPT = "swept"
_PARTS = re.compile(r"\w*-[0-9a-f]{12}-[1-9][0-9]*")
"""The names that `_part` makes: nothing else in a folder that was named is ours."""
_PIECE_BYTES = 1 << 20
_MOST_UNPACKED_BYTES = 4 * MAX_BYTES
"""A larger program counts as damaged: every role would have to unpack it."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PROCESSOR = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")
"""Lines of /proc/cpuinfo that say what machine code a processor runs."""


def open_cache(
    named: str, num_threads: int | None, say: Callable[[str], object], environment: Mapping[str, str] = os.environ
) -> str:
    """Make a folder ready for a run's processes, and return its part for them; "" where nothing is to be kept.

    Args:
      named: a folder, "off", or "" for what the environment names: a folder of JAX's own (then JAX makes the part, and
        nothing is checked or removed here), `HYBRIDSYNC_COMPILATION_CACHE`, or else the user's cache folder.
      num_threads: number of threads with which XLA computes; None for all cores.
      say: shows a line to the user, where the user's cache folder cannot be used: no run fails for that.
      environment: environment variables of this process.

    Raises:
      ConfigError: a folder that was named cannot be used: it cannot be made, or others can write to it.
    """
    if not named and (own := environment.get(JAX_OWN)):
        return os.path.join(own, _part(num_threads))
    named = named or environment.get(PLACE, "")
    if named == OFF:
        return ""
    folder = local_path(named) if named else _of_user(environment)
    try:
        part = _make(folder) / _part(num_threads)
        part.mkdir(mode=FOLDER_MODE, exist_ok=True)
        _check(part)
        _sweep(folder)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        advice = f"name another folder with --compilation_cache or ${PLACE}, or {OFF!r}"
        if named:
            raise ConfigError(f"compiled programs cannot be kept in {folder}: {reason}; {advice}") from error
        say(f"compiled programs are not kept in {folder}: {reason}; {advice}")
        return ""
    return str(part.resolve())


def use_cache(folder: str) -> None:
    """Have this process's JAX keep all that it compiles in a folder from `open_cache`; "" leaves JAX as it is.

    JAX's own settings decide what it keeps below a folder of its own.
    """
    if not folder:
        return
    import jax

    from hybridsync.runtime.role.compilations import share_compilations

    share_compilations()
    jax.config.update("jax_compilation_cache_dir", folder)
    own = os.environ.get(JAX_OWN)
    if own and Path(folder).is_relative_to(own):
        return
    # Most of a start are small programs: the state of a small model is made by thirty of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _of_user(environment: Mapping[str, str]) -> Path:
    cache = environment.get("XDG_CACHE_HOME", "")
    base = Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache"  # as the XDG standard has it
    return base / "hybridsync" / "compiled"


def _make(folder: Path) -> Path:
    """Make a folder for this user alone, and return it without links in its path.

    Raises:
      OSError: it cannot be made, or others could change what is in it.
    """
    folder = folder.absolute()
    for part in reversed([part for part in (folder, *folder.parents) if not part.exists()]):
        part.mkdir(mode=FOLDER_MODE, exist_ok=True)
    folder = folder.resolve(strict=True)
    _check(folder)
    for parent in folder.parents:
        found = parent.stat()
        others_rename = found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX
        if others_rename or found.st_uid not in (0, os.geteuid()):
            raise OSError(f"other users may put another folder in its place, because they can write to {parent}")
    return folder


def _check(folder: Path) -> None:
    """Refuse a folder in which another user's program could come to lie.

    Raises:
      OSError: it is not this user's, or others can write to it.
    """
    found = folder.stat(follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(f"{folder} is no folder")
    if found.st_uid != os.geteuid():
        raise OSError(f"{folder} belongs to user {found.st_uid}, not to {os.geteuid()}")
    if found.st_mode & _OTHERS_WRITE:
        raise OSError(f"others can write to {folder}, whose mode is {stat.S_IMODE(found.st_mode):o}, not 700")


def _part(num_threads: int | None) -> str:
    """Return the name of what processes like these share."""
    threads = num_threads or len(os.sched_getaffinity(0))
    return f"{platform.machine()}-{_processor()}-{threads}"


def _processor() -> str:
    """Return what tells this kind of processor from others."""
    described = [platform.machine()]
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():  # the first core stands for all
                break
            name, _, value = line.partition(":")
            if name.strip() in _PROCESSOR:
                described.append(value.strip())
    return hashlib.sha256("\n".join(described).encode()).hexdigest()[:12]


def _sweep(folder: Path) -> None:
    """Remove entries that a process left unfinished when it was killed, and what has not been used for longest.

    JAX never replaces an entry: one that is damaged would be read in vain, and compiled again, by every run. Other runs
    may read and write meanwhile. A process that finds an entry gone, or half of it, compiles.
    """
    mark = folder / _SWEPT
    try:
        swept = mark.stat().st_mtime
    except FileNotFoundError:
        swept = 0.0
    mark.touch(mode=0o600)
    kept_bytes = num_kept = 0
    for found, path in sorted(_entries(folder), key=lambda each: -max(each[0].st_atime, each[0].st_mtime)):
        kept_bytes, num_kept = kept_bytes + found.st_size, num_kept + 1
        is_new = found.st_mtime >= swept - 1.0  # some file systems count whole seconds
        if kept_bytes > MAX_BYTES or num_kept > MAX_ENTRIES or (is_new and not _is_whole(path)):
            path.unlink(missing_ok=True)


def _entries(folder: Path) -> Iterator[tuple[os.stat_result, Path]]:
    """Find what JAX has written below the parts; the folder may hold files of the user's own, too."""
    for part in folder.iterdir():
        if _PARTS.fullmatch(part.name) is None or part.is_symlink() or not part.is_dir():
            continue
        for path in part.glob("*-cache"):
            with contextlib.suppress(FileNotFoundError):  # another run has removed it
                found = path.stat(follow_symlinks=False)
                if stat.S_ISREG(found.st_mode):
                    yield found, path


def _is_whole(path: Path) -> bool:
    """Tell whether an entry was written to its end: it is not empty, and unpacks where JAX has packed it with zlib."""
    try:
        with path.open("rb") as packed:
            first = packed.read(1)
            packed.seek(0)
            return bool(first) and (first != b"\x78" or _unpacks(packed))
    except FileNotFoundError:
        return True


def _unpacks(packed: BinaryIO) -> bool:
    """Tell whether a file unpacks with zlib; holds little of it at a time."""
    unpacker, left = zlib.decompressobj(), _MOST_UNPACKED_BYTES
    try:
        while not unpacker.eof:
            piece = unpacker.unconsumed_tail or packed.read(_PIECE_BYTES)
            unpacked = unpacker.decompress(piece, _PIECE_BYTES)
            left -= len(unpacked)
            if left < 0 or not (piece or unpacked):
                return False
    except zlib.error:
        return False
    return True
