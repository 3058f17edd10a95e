"""The apply log of a run, a file of lines (see `apply_log_entries`), from which `hybridsync replay` computes it again.

Every member of a mesh notes every update; the captured one writes the lines that the file does not hold yet, so that a
member's death loses none.

A disk that refuses does not end the run: the lines wait in memory and go out with the next snapshot of the same role.
If another role has written by then, or the role is gone, they are missing, and the sequences show from where on.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

from absl import logging

from hybridsync.storage.apply_log_entries import Entry, Left, line_of, parse, place_of
from hybridsync.storage.durable import open_file, sync_directory

APPLY_LOG = "apply_log"
"""Its name in the workdir."""

_TAIL_BYTES = 1 << 20
"""Read at first from the end: more than most lines, and less than is noticed."""

_MOST_NOTED = 10_000
"""Updates after which a member of a mesh looks which of them another one has written: each notes all of them."""

_MOST_WAITING = 100_000
"""Lines, some 50 MB of them, that wait in memory for a disk that refuses."""


class ApplyLog(Protocol):
    """Writes updates down."""

    def write(self, entry: Entry) -> None:
        """Note one update; the caller serialises the calls."""
        ...

    def record_left(self, left: Left) -> None:
        """Note whose optimizer states a phase leaves behind; the caller serialises the calls."""
        ...

    def detach(self) -> Callable[[], None]:
        """Take what was noted since the last call; the caller serialises this with `write`.

        Returns:
          what writes it down, durably, or keeps it for the next time where the disk refuses: no lock that others need
          is to be held meanwhile. It is called once, before what the next call returns.
        """
        ...

    def flush(self) -> None:
        """Write down what was noted at once (see `detach`)."""
        ...

    def clear(self) -> None:
        """Forget what was noted since the last flush: it is not, or no longer, part of the run."""
        ...


class NullApplyLog:
    """Keeps nothing."""

    def write(self, entry: Entry) -> None: ...

    def record_left(self, left: Left) -> None: ...

    def detach(self) -> Callable[[], None]:
        return self.flush

    def flush(self) -> None: ...

    def clear(self) -> None: ...


def in_thread(work: Callable[[], None]) -> None:
    """Have `work` done in a thread of its own, which keeps nobody waiting; not at all where there is none to be had."""
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=work, name="apply log", daemon=True).start()


class FileApplyLog:
    """Appends to a file that other processes append to before and after; see `ApplyLog`.

    Only what `detach` returns waits for the disk: `write` is called under locks that heartbeats need.

    Args:
      path: path of the file.
      look: starts a background read of the file for updates that other roles have written as well, which are forgotten
        then; None if no other role writes them.
    """

    def __init__(self, path: Path, look: Callable[[Callable[[], None]], object] | None = None) -> None:
        self._path, self._look = path, look
        self._entries: list[Entry | Left] = []
        self._owed: list[Entry | Left] = []
        self._look_at = _MOST_NOTED  # so many entries
        self._last_written: Entry | Left | None = None  # in the file, as it was seen; set by another thread

    def write(self, entry: Entry) -> None:
        self._entries.append(entry)
        if self._look is None or self._owed:  # those that wait need all that follow them
            return
        if len(self._entries) >= self._look_at:
            self._look_at = 2 * len(self._entries)
            self._look(self._see_last)
        if (last := self._last_written) is not None:  # read once: another look may find nothing meanwhile
            self._forget_written(last)

    def record_left(self, left: Left) -> None:
        self._entries.append(left)

    def detach(self) -> Callable[[], None]:
        entries, self._entries, self._look_at = self._entries, [], _MOST_NOTED
        return partial(self._write_down, entries)

    def flush(self) -> None:
        self.detach()()

    def _write_down(self, entries: list[Entry | Left]) -> None:
        self._owed = waiting = [*_before(entries, self._owed), *entries]  # whatever ends this, they are not lost
        if not waiting:
            return
        try:
            _append(self._path, waiting)
        except OSError as error:
            self._owed = self._kept(waiting, error)
        else:
            self._owed = []

    def clear(self) -> None:
        self._entries, self._look_at = [], _MOST_NOTED

    def _see_last(self) -> None:
        """See what the file ends with. This may wait for the disk for as long as it likes: `write` does not."""
        with contextlib.suppress(OSError):  # an error of the file is raised when it is written
            _, self._last_written = _tail(self._path)

    def _forget_written(self, last: Entry | Left) -> None:
        """Forget what the file holds of the current phase, which another member has written; else memory fills.

        Once `last` was seen, the run may have continued from before it: that begins a phase, whose updates all stay.
        """
        self._entries = [
            entry for entry in self._entries if entry.phase != last.phase or place_of(entry) > place_of(last)
        ]
        self._look_at, self._last_written = max(_MOST_NOTED, 2 * len(self._entries)), None

    def _kept(self, waiting: list[Entry | Left], error: OSError) -> list[Entry | Left]:
        """Return the lines that wait for the next flush, so that none before them is taken for the last."""
        if isinstance(waiting[0], Left):
            waiting = [*_take_back(self._path, waiting[0]), *waiting]
        if len(waiting) > _MOST_WAITING:
            logging.error(
                "%s: %s; the log is incomplete from update %d on: %d lines were waiting, more than memory is kept for",
                self._path,
                error,
                waiting[0].sequence,
                len(waiting),
            )
            return []
        logging.error(
            "%s: %s; the lines of updates %d to %d wait in memory until there is room",
            self._path,
            error,
            waiting[0].sequence,
            waiting[-1].sequence,
        )
        return waiting


def open_apply_log(workdir: Path | None, wanted: bool, *, others_note_too: bool = False) -> ApplyLog:
    """Return where a role of a run writes updates down: nowhere, if that is not `wanted` or there is no workdir.

    With `others_note_too` other processes note the same updates, as the members of a mesh do, and may write them.
    """
    if workdir is None or not wanted:
        return NullApplyLog()
    return FileApplyLog(workdir / APPLY_LOG, in_thread if others_note_too else None)


def _before(entries: list[Entry | Left], owed: list[Entry | Left]) -> list[Entry | Left]:
    """Return what of `owed` comes right before `entries`: nothing where the run went on from another state."""
    if not entries or not owed:
        return owed
    begin = entries[0].sequence - isinstance(entries[0], Entry)
    kept = [entry for entry in owed if entry.sequence <= begin]
    if kept and kept[-1].sequence == begin:
        return kept
    numbers = owed[0].sequence, owed[-1].sequence, begin
    logging.error("the waiting lines of updates %d to %d are dropped: the run went on from update %d", *numbers)
    return []


def _append(path: Path, entries: list[Entry | Left]) -> None:
    """Write what the file does not hold yet behind its last whole line, durably: all of it or nothing."""
    is_new = not path.exists()
    end, last = _tail(path)
    if last is not None:
        newer = next((entry for entry in entries if entry.phase > last.phase), None)
        if newer is not None and place_of(newer) <= place_of(last):  # a `cut` was refused
            cut(path, newer.sequence - 1)
            end, last = _tail(path)
    held = (0, False) if last is None else place_of(last)
    content = "".join(line_of(entry) for entry in entries if place_of(entry) > held).encode()
    descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_size > end:
            os.ftruncate(descriptor, end)
        try:
            written = os.pwrite(descriptor, content, end)
            if written < len(content):
                raise OSError(f"the disk took {written} of {len(content)} bytes of the apply log; make room on it")
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, end)  # also what a failed fsync may or may not have left
            raise
    finally:
        os.close(descriptor)
    if is_new:
        sync_directory(path.parent)


def _take_back(path: Path, left: Left) -> list[Entry]:
    """Remove the update before the end of a phase that could not be written, and return it.

    Without that line a phase of which all updates are there would be taken for one without uploads, and computed
    wrongly. Without its last update it is incomplete.
    """
    try:
        _, last = _tail(path)
        if not isinstance(last, Entry) or last.sequence != left.sequence:
            return []
        cut(path, last.sequence - 1)
    except OSError as error:
        logging.error("%s: %s; it lacks what phase %d left behind", path, error, left.phase)
        return []
    return [last]


def _tail(path: Path) -> tuple[int, Entry | Left | None]:
    """Return where the last sound line ends, and what it says.

    A writer that was killed may leave a torn line after it, a power loss lines whose bytes never became durable.
    """
    if not path.exists():
        return 0, None
    with open(open_file(path, os.O_RDONLY), "rb") as log:
        size = log.seek(0, os.SEEK_END)
        length = 0
        while length < size:
            length = min(2 * length or _TAIL_BYTES, size)
            log.seek(size - length)
            tail = log.read(length)
            end = tail.rfind(b"\n") + 1
            while (begin := tail.rfind(b"\n", 0, max(end - 1, 0)) + 1) or (end and length == size):
                if (last := _sound(tail[begin:end])) is not None:
                    return size - length + end, last
                end = begin
    return 0, None


def _sound(line: bytes) -> Entry | Left | None:
    """Return what a line says, None where it is damaged."""
    try:
        return parse(line)
    except (ValueError, TypeError, AttributeError):
        return None


def read(path: Path) -> Iterator[Entry]:
    """Yield the updates in file order (see `records`)."""
    yield from (record for record in records(path) if isinstance(record, Entry))


def records(path: Path) -> Iterator[Entry | Left]:
    """Yield what was written in file order; a torn last line is ignored.

    Raises:
      OSError: the file cannot be read.
      ValueError: a whole line is not JSON.
      TypeError: the line is not an entry.
    """
    with open(open_file(path, os.O_RDONLY)) as lines:
        for line in lines:
            if line.endswith("\n"):
                yield parse(line)


def cut(path: Path, sequence: int) -> int:
    """Remove the entries after `sequence`, those of updates that were lost, and what is damaged at the end.

    A damaged line before them stays: a replay refuses it by its number, the run continues.

    Args:
      path: path of the log; may be absent.
      sequence: number of updates that the state holds.

    Returns:
      How many entries were removed.

    Raises:
      OSError: the disk refuses; the log is as it was.
    """
    if not path.exists():
        return 0
    end, last = _tail(path)
    removed = 0
    if last is not None and last.sequence > sequence:
        end = 0
        with open(open_file(path, os.O_RDONLY), "rb") as lines:
            for line in lines:
                if removed or ((found := _sound(line)) is not None and found.sequence > sequence):
                    removed += line.endswith(b"\n")
                else:
                    end += len(line)
    if end < path.stat().st_size:
        # Needs no room, and a crash leaves the log as it was or as it will be.
        with open(open_file(path, os.O_RDWR), "r+b") as log:
            os.ftruncate(log.fileno(), end)
            os.fsync(log.fileno())
    return removed


def forget(path: Path, sequence: int) -> None:
    """Cut the log behind `sequence` (see `cut`); where the disk refuses, the next lines that it takes do so first."""
    try:
        cut(path, sequence)
    except OSError as error:
        logging.error("%s: %s; what it holds behind update %d is not part of the run", path, error, sequence)
