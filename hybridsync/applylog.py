"""The apply log: one JSON line for every update, from which `launch.replay` computes the run again, bit for bit.

    {"epoch", "sequence", "units", "base", "rate", "weight", "blend"}

`sequence` counts updates, `base` is the sequence of the parameters the gradient was computed on, `rate` the
protocol's factor on the schedule's learning rate, `weight` the units in the update, `blend` the share of the new model
statistics. Under lock-step the units stand in member order and `base` is `sequence - 1`.

Each phase has one writer: the primary, or the mesh's first member.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol


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


class ApplyLog(Protocol):
    """Where updates are written down."""

    def write(self, entry: Entry) -> None: ...

    def flush(self) -> None: ...


class NullApplyLog:
    """Keeps nothing."""

    def write(self, entry: Entry) -> None: ...

    def flush(self) -> None: ...


class FileApplyLog:
    """Appends to a file; lines are buffered until `flush`, which makes them durable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []

    def write(self, entry: Entry) -> None:
        """Buffer one entry; the caller serialises writes with its updates."""
        self._lines.append(json.dumps(asdict(entry), separators=(",", ":")))

    def flush(self) -> None:
        """Write the buffered lines and wait until they are on the disk.

        Raises:
          OSError: the disk refuses; what it took of the lines is cut again.
        """
        lines, self._lines = self._lines, []
        if lines:
            content = ("\n".join(lines) + "\n").encode()
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                end = os.fstat(descriptor).st_size
                written = os.write(descriptor, content)
                if written < len(content):
                    os.ftruncate(descriptor, end)
                    raise OSError(f"the disk took {written} of {len(content)} bytes of the apply log; make room on it")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


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
                yield Entry(**{**fields, "units": tuple(fields["units"])})


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
    kept, removed = [], 0
    for entry in read(path):
        if entry.sequence <= sequence:
            kept.append(json.dumps(asdict(entry), separators=(",", ":")) + "\n")
        else:
            removed += 1
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(kept))
    os.replace(temporary, path)
    return removed
