"""Describes the holder of a workdir's lock, and decides when another host may take the lock from a silent one.

Some file systems grant every process a lock: NFS without its lock daemon, and disks in user space. There the file's
record and a beat stand in for it. A boot id, not a host's name, shows whether the kernel that granted the lock also
knew its holder: two machines may have one name. Pure; `durable.WorkdirLock` reads, waits and writes.

    >>> ours, theirs = LockRecord(7, "here", 1, "boot-1", "a"), LockRecord(8, "there", 1, "boot-2", "b")
    >>> LockRecord.parse(theirs.text().encode()) == theirs
    True
    >>> theirs.is_of_another_boot("boot-1"), ours.is_of_another_boot("boot-1")
    (True, False)
    >>> watch = Watch(Look(theirs, b"b 1"), now=100.0)
    >>> watch.decide(Look(theirs, b"b 1"), now=114.0).name
    'WAIT'
    >>> watch.decide(Look(theirs, b"b 2"), now=114.5).name
    'REFUSE'
    >>> watch.decide(Look(theirs, b"b 1"), now=115.0).name
    'TAKE'
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass
from typing import NamedTuple

BEAT_SECS = 5.0
"""How often the holder of a lock shows that it lives."""
MISSED_BEATS = 3
"""How many beats of a holder have to be missed until another host takes its lock."""


@dataclass(frozen=True)
class LockRecord:
    """Names the process that has taken a workdir's lock.

    Args:
      pid: id of the process.
      host: name of its machine.
      started: clock ticks at which the process started; None where an older version wrote the record.
      boot: boot id of the machine that it runs on; "" where an older version wrote the record, which did not beat.
      nonce: drawn anew each time that the lock is taken.
    """

    pid: int
    host: str
    started: int | None = None
    boot: str = ""
    nonce: str = ""

    @classmethod
    def parse(cls, content: bytes) -> LockRecord | None:
        """Return what a lock's file says; None where it names nobody."""
        try:
            told = json.loads(content)
            pid, host, started = int(told["pid"]), str(told["host"]), told.get("started")
            boot, nonce = str(told.get("boot", "")), str(told.get("nonce", ""))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        return cls(pid, host, started if type(started) is int else None, boot, nonce)

    def text(self) -> str:
        """Return what `parse` reads."""
        return json.dumps(asdict(self))

    def is_of_another_boot(self, boot: str) -> bool:
        """Return whether the kernel with the boot id `boot` cannot have known that this process held the lock."""
        return self.boot not in ("", boot)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Look(NamedTuple):
    """Holds what was read at one moment.

    Args:
      record: record of the lock; None if it names no holder, because the last one has given it back.
      beat: content of the holder's beat; b"" if absent.
    """

    record: LockRecord | None
    beat: bytes


class Decision(enum.Enum):
    """Names what a taker does next."""

    WAIT = enum.auto()
    REFUSE = enum.auto()
    TAKE = enum.auto()


class Watch:
    """Decides whether the lock of a holder on another host may be taken: it goes by the taker's clock alone.

    A change of the beat counts, not its content: the clocks of two hosts need not agree.

    Args:
      first: look at the lock.
      now: monotonic seconds of that look.
    """

    def __init__(self, first: Look, now: float) -> None:
        self._first, self._until = first, now + MISSED_BEATS * BEAT_SECS

    def decide(self, look: Look, now: float) -> Decision:
        """Return what follows from another look.

        Args:
          look: read at `now` or after it; one from before would not show that the holder has come back.
          now: monotonic seconds.
        """
        if look.record is None:
            return Decision.TAKE
        if look != self._first:
            return Decision.REFUSE
        return Decision.TAKE if now >= self._until else Decision.WAIT
