"""The apply log: one JSON line for every update, from which `launch.replay` computes the run again, bit for bit.

    {"epoch", "sequence", "units", "base", "rate", "weight", "blend"[, "slots"][, "group", "bases", "optimizer"]}

`sequence` counts updates, `base` is the sequence of the parameters the gradient was computed on, `rate` the
protocol's factor on the schedule's learning rate, `weight` the units in the update, `blend` the share of the new model
statistics. Under lock-step the units stand in member order and `base` is `sequence - 1`; `slots` are the positions in
the mesh of the members whose units they are, and left out where those are the first ones.

In a group phase an entry is a meeting: each unit was applied by the member in its place of `slots` to its own replica,
with the gradient on what that was behind the meeting in its place of `bases`; then the members in the places `group`
averaged their parameters, in this order, and their optimizer's state where `optimizer` says so.

Every member of a mesh notes every update; whoever is captured writes down what the file does not hold yet, so that a
member's death loses none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from hybridsync.messages import GroupUpdate

APPLY_LOG = "apply_log"
"""Its name in the workdir."""

_TAIL_BYTES = 1 << 20
"""More than the longest line, and less than is noticed."""


@dataclass(frozen=True)
class Entry:
    """One update (see the module's docstring)."""

    epoch: int
    sequence: int
    units: tuple[int, ...]
    base: int
    rate: float
    weight: float
    blend: float
    slots: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    bases: tuple[int, ...] = ()
    optimizer: bool = False

    @classmethod
    def of_groups(cls, epoch: int, update: GroupUpdate, rate: float) -> Entry:
        """Return the entry of a meeting."""
        weight, base = float(len(update.units)), update.sequence - 1
        return cls(
            *(epoch, update.sequence, update.units, base, rate, weight, 1.0),
            *(update.slots, update.group, update.bases, update.optimizer),
        )

    def by_slot(self) -> dict[int, int]:
        """Return the unit of each position in the mesh that contributed one."""
        return dict(zip(self.slots or range(len(self.units)), self.units, strict=True))


class ApplyLog(Protocol):
    """Where updates are written down."""

    def write(self, entry: Entry) -> None:
        """Note one update; the caller serialises the calls."""
        ...

    def flush(self) -> None:
        """Write down what was noted, durably.

        Raises:
          OSError: the disk refuses.
        """
        ...

    def clear(self) -> None:
        """Forget what was noted and not written down: it is not, or no longer, part of the run."""
        ...


class NullApplyLog:
    """Keeps nothing."""

    def write(self, entry: Entry) -> None: ...

    def flush(self) -> None: ...

    def clear(self) -> None: ...


class FileApplyLog:
    """Appends to a file that other processes append to before and after; see `ApplyLog`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: list[Entry] = []

    def write(self, entry: Entry) -> None:
        self._entries.append(entry)

    def flush(self) -> None:
        entries, self._entries = self._entries, []
        if not entries:
            return
        end, sequence = _tail(self._path)
        lines = [_line(entry) for entry in entries if entry.sequence > sequence]
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, end)
            content = "".join(lines).encode()
            written = os.pwrite(descriptor, content, end)
            if written < len(content):
                os.ftruncate(descriptor, end)
                raise OSError(f"the disk took {written} of {len(content)} bytes of the apply log; make room on it")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def clear(self) -> None:
        self._entries = []


def _line(entry: Entry) -> str:
    fields = asdict(entry)
    if not entry.slots:
        del fields["slots"]
    if not entry.group:
        del fields["group"], fields["bases"], fields["optimizer"]
    return json.dumps(fields, separators=(",", ":")) + "\n"


def _tail(path: Path) -> tuple[int, int]:
    """Return where the last whole line ends, and its sequence; a writer that was killed may leave a torn one."""
    if not path.exists():
        return 0, 0
    with open(path, "rb") as log:
        size = log.seek(0, os.SEEK_END)
        start = max(0, size - _TAIL_BYTES)
        log.seek(start)
        tail = log.read()
    end = tail.rfind(b"\n") + 1
    if not end:
        return 0, 0
    last = tail[:end].splitlines()[-1]
    return start + end, json.loads(last)["sequence"]


def read(path: Path) -> Iterator[Entry]:
    """Yield the entries in file order; a torn last line is ignored.

    Raises:
      OSError: the file cannot be read.
      ValueError: a whole line is not JSON.
    """
    with open(path) as lines:
        for line in lines:
            if line.endswith("\n"):
                fields = json.loads(line)
                lists = {name: tuple(fields.get(name, ())) for name in ("units", "slots", "group", "bases")}
                yield Entry(**{**fields, **lists})


def cut(path: Path, sequence: int) -> int:
    """Remove the entries after `sequence`, those of updates that were lost, and a torn last line.

    Args:
      path: of the log; may be absent.
      sequence: updates that the state holds.

    Returns:
      How many entries were removed.

    Raises:
      OSError: the disk refuses; the log is as it was.
      ValueError: a whole line is no entry (see `read`); the log is as it was.
    """
    if not path.exists():
        return 0
    end, last = _tail(path)
    if last <= sequence and end == path.stat().st_size:
        return 0
    kept, removed = [], 0
    for entry in read(path):
        if entry.sequence <= sequence:
            kept.append(_line(entry))
        else:
            removed += 1
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(kept))
    os.replace(temporary, path)
    return removed
