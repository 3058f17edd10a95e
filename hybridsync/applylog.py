"""The apply log: one JSON line for every update, from which `hybridsync replay` computes the run again, bit for bit.

    {"epoch", "sequence", "units", "base", "rate", "weight", "blend"[, "slots"][, "parts"][, "stepped"]}
    {"epoch", "sequence", "units", "base", "rate", "weight", "blend", "slots", "group", "bases", "optimizer"}
    {"epoch", "sequence", "left"}

`sequence` counts updates, `base` is the sequence of the parameters the gradient was computed on, `rate` the
protocol's factor on the schedule's learning rate, `weight` the units in the update, `blend` the share of the new model
statistics. Under lock-step the units stand in the order of the step's places and `base` is `sequence - 1`; `slots` are
the places that they have, and left out where those are the first ones. Whose a place is follows from the phase's shares
(see `hybridsync.dealing`); with one unit each it is the member's in that place of the mesh. `parts` are the pushes of
an update whose gradients were computed on several versions, or do not weigh the same: [units, base, weight] of each, in
the order of their sum; `base` is the oldest of them then.

Where workers step by themselves, what a push holds depends on all that its worker has done before. So `stepped` says
of each of an update's pushes [worker, incarnation, life, base, number of units]: an incarnation begins with the phase's
optimizer state, each of its lives with the worker's own. At the end of such a phase `left` names the workers, as
[worker, incarnation], whose optimizer states the phase left behind; their mean is the next one's.

In a group phase an entry is a meeting: each unit was applied by the member in its place of `slots` to its own replica,
with the gradient on what that was behind the meeting in its place of `bases`; then the members in the places `group`
averaged their parameters, in this order, and their optimizer's state where `optimizer` says so.

Every member of a mesh notes every update; whoever is captured writes down what the file does not hold yet, so that a
member's death loses none.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from hybridsync.messages import GroupUpdate, Part

APPLY_LOG = "apply_log"
"""Its name in the workdir."""

_TAIL_BYTES = 1 << 20
"""More than the longest line, and less than is noticed."""


class Stepped(NamedTuple):
    """One push of a worker that steps by itself, within an update (see the module's docstring)."""

    worker: int
    incarnation: int
    life: int
    base: int
    num_units: int


@dataclass(frozen=True)
class Left:
    """Whose optimizer states a phase left behind (see the module's docstring)."""

    epoch: int
    sequence: int
    left: tuple[tuple[int, int], ...]


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
    parts: tuple[Part, ...] = ()
    stepped: tuple[Stepped, ...] = ()
    group: tuple[int, ...] = ()
    bases: tuple[int, ...] = ()
    optimizer: bool = False

    @classmethod
    def of_groups(cls, epoch: int, update: GroupUpdate, rate: float) -> Entry:
        """Return the entry of a meeting."""
        return cls(
            epoch,
            update.sequence,
            update.units,
            update.sequence - 1,
            rate,
            float(len(update.units)),
            1.0,
            update.slots,
            group=update.group,
            bases=update.bases,
            optimizer=update.optimizer,
        )

    @property
    def pushes(self) -> tuple[Part, ...]:
        """What each push of a served update brought, in the order of their sum."""
        if self.stepped:
            stops = itertools.accumulate(push.num_units for push in self.stepped)
            ends = zip(self.stepped, stops, strict=True)
            return tuple(Part(self.units[stop - push.num_units : stop], push.base) for push, stop in ends)
        return self.parts or tuple(Part((unit,), self.base) for unit in self.units)

    @property
    def versions(self) -> set[int]:
        """Sequences of the parameters that the update's gradients were computed on."""
        return set(self.bases) or {part.base for part in self.stepped or self.parts} or {self.base}

    def by_slot(self) -> dict[int, int]:
        """Return the unit of each place of a step, or of a mesh in groups, that contributed one, in their order."""
        return dict(zip(self.slots or range(len(self.units)), self.units, strict=True))


class ApplyLog(Protocol):
    """Where updates are written down."""

    def write(self, entry: Entry) -> None:
        """Note one update; the caller serialises the calls."""
        ...

    def leave(self, left: Left) -> None:
        """Note whose optimizer states a phase leaves behind; the caller serialises the calls."""
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

    def leave(self, left: Left) -> None: ...

    def flush(self) -> None: ...

    def clear(self) -> None: ...


class FileApplyLog:
    """Appends to a file that other processes append to before and after; see `ApplyLog`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: list[Entry | Left] = []

    def write(self, entry: Entry) -> None:
        self._entries.append(entry)

    def leave(self, left: Left) -> None:
        self._entries.append(left)

    def flush(self) -> None:
        entries, self._entries = self._entries, []
        if not entries:
            return
        end, last = _tail(self._path)
        lines = [_line(entry) for entry in entries if _place(entry) > last]
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


def _line(entry: Entry | Left) -> str:
    fields = asdict(entry)
    for optional in ("slots", "parts", "stepped"):
        if not fields.get(optional, True):
            del fields[optional]
    if isinstance(entry, Entry) and not entry.group:
        del fields["group"], fields["bases"], fields["optimizer"]
    return json.dumps(fields, separators=(",", ":")) + "\n"


def _place(entry: Entry | Left) -> tuple[int, bool]:
    """Return what orders the lines: the end of a phase comes behind its last update."""
    return entry.sequence, isinstance(entry, Left)


def _parse(line: str | bytes) -> Entry | Left:
    fields = json.loads(line)
    if "left" in fields:
        return Left(**{**fields, "left": tuple(map(tuple, fields["left"]))})
    parts = (Part(tuple(units), base, weight) for units, base, weight in fields.get("parts", ()))
    fields["parts"] = tuple(parts)
    fields["stepped"] = tuple(Stepped(*push) for push in fields.get("stepped", ()))
    lists = {name: tuple(fields.get(name, ())) for name in ("units", "slots", "group", "bases")}
    return Entry(**{**fields, **lists})


def _tail(path: Path) -> tuple[int, tuple[int, bool]]:
    """Return where the last whole line ends, and its place; a writer that was killed may leave a torn one."""
    if not path.exists():
        return 0, (0, False)
    with open(path, "rb") as log:
        size = log.seek(0, os.SEEK_END)
        start = max(0, size - _TAIL_BYTES)
        log.seek(start)
        tail = log.read()
    end = tail.rfind(b"\n") + 1
    if not end:
        return 0, (0, False)
    return start + end, _place(_parse(tail[:end].splitlines()[-1]))


def read(path: Path) -> Iterator[Entry]:
    """Yield the updates in file order (see `records`)."""
    yield from (record for record in records(path) if isinstance(record, Entry))


def records(path: Path) -> Iterator[Entry | Left]:
    """Yield what was written in file order; a torn last line is ignored.

    Raises:
      OSError: the file cannot be read.
      ValueError: a whole line is not JSON.
      TypeError: it is no entry.
    """
    with open(path) as lines:
        for line in lines:
            if line.endswith("\n"):
                yield _parse(line)


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
    if last[0] <= sequence and end == path.stat().st_size:
        return 0
    kept, removed = [], 0
    for entry in records(path):
        if entry.sequence <= sequence:
            kept.append(_line(entry))
        else:
            removed += 1
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(kept))
    os.replace(temporary, path)
    return removed
