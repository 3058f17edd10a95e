"""events.jsonl: what happened to the run, one JSON object a line.

Every line holds `t` (seconds since the run's first start), `wall` (unix time), `kind`, `phase` (the number)
and the kind's own fields; a writer may add fields, never leave one out.
"""

import os
import threading
from pathlib import Path
from typing import Any, Protocol

from hybridsync.core.clock import Clock
from hybridsync.storage.jsonl import LineFile, read_lines

EVENTS_FILE = "events.jsonl"

FIELDS: dict[str, tuple[str, ...]] = {
    "run_started": (),
    "role_started": ("role", "id", "pid", "host", "address"),
    "role_lost": ("role", "id", "reason"),
    "phase_entered": ("protocol", "members", "reason", "units", "learning_rate", "units_per_update"),
    "phase_ended": (),
    "switch": (
        "from", "to", "reason", "units", "fingerprint",
        "drain_secs", "capture_secs", "reserve_secs", "enter_secs", "commit_secs", "compile_secs",
        "stall_secs",
    ),
    "straggler_flagged": ("worker", "rate", "threshold"),
    "straggler_cleared": ("worker", "rate", "threshold"),
    "policy_decided": (
        "policy", "action", "workers", "rates", "threshold", "why",
        "expected_secs", "saved_secs", "cost_secs", "units_left",
    ),
    "switch_ordered": ("number", "protocol", "units", "why"),
    "order_dropped": ("number", "protocol", "why"),
    "stop_ordered": ("why",),
    "worker_joined": (),
    "worker_left": (),
    "world_renewed": ("why",),
    "hang_suspected": ("role", "id", "doing", "limit_secs", "setting"),
    "rollback": ("to_units", "rolled_back"),
    "evaluation": ("examples", "accuracy", "loss"),
    "checkpoint": ("units", "bytes", "secs"),
    "save_failed": ("units", "error"),
    "unit_quarantined": ("unit", "workers", "reason"),
    "worker_quarantined": ("worker", "reason"),
    "run_finished": (),
}  # fmt: skip
"""The fields that a line of each kind holds besides `t`, `wall`, `kind` and `phase`.

`run_started` adds, among others, `quarantined`: the damaged checkpoints that were set aside before it, newest first,
each as [number, reason]. The number is the commit's running number, which names its folder in `checkpoints/`, and is
no count of units.
"""

_COMMON = {"t", "wall", "kind", "phase"}


class Elapsed:
    """The run's own time: seconds since its first start, which go on where an earlier session ended.

    Args:
        clock: time source.
        offset: seconds that earlier sessions of the run took.
    """

    def __init__(self, clock: Clock, offset: float = 0.0) -> None:
        self._clock = clock
        self._zero = clock.monotonic() - offset

    def __call__(self) -> float:
        return self._clock.monotonic() - self._zero

    def not_before(self, t: float) -> None:
        """Go on from `t` where that is later: another file of an earlier session ended there."""
        self._zero -= max(t - self(), 0.0)

    def at(self, monotonic: float) -> float:
        """Return the run's time at a reading of this host's monotonic clock."""
        return monotonic - self._zero


class Events(Protocol):
    """Takes events; `elapsed` is the run's time, shared by everything that is written."""

    elapsed: Elapsed

    def write(self, kind: str, *, phase: int, wall: float | None = None, **fields: Any) -> dict[str, Any]:
        """Write one event and return it as written.

        Args:
            kind: a key of FIELDS.
            phase: number of the active phase, 0 before the first.
            wall: unix time at which it happened, when that was earlier; None for now.
            **fields: the kind's fields, and more if useful; `**{"from": ...}` for the reserved word.
        """
        ...

    def close(self) -> None:
        """Close what is open; no event follows."""
        ...


class EventLog:
    """Writes events.jsonl; opening it on a used workdir goes on behind the last whole line.

    The lock makes `t` rise from line to line although several threads write.

    Args:
        workdir: existing directory.
        clock: time source.
        restarted: whether the run continued since the last line, without a process to write: that time counts.
            Otherwise it stood still, and `t` continues without a gap.

    Raises:
        OSError: the disk refuses.
    """

    def __init__(self, workdir: str | os.PathLike[str], clock: Clock, *, restarted: bool = False) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._file = LineFile(Path(workdir) / EVENTS_FILE)
        last = self._file.last
        outage = max(clock.wall() - last["wall"], 0.0) if last and restarted else 0.0
        self.elapsed = Elapsed(clock, last["t"] + outage if last else 0.0)

    def write(self, kind: str, *, phase: int, wall: float | None = None, **fields: Any) -> dict[str, Any]:
        """Append one line; see `Events.write`.

        Raises:
            OSError: the disk refuses.
        """
        with self._lock:
            event = _event(kind, phase, self.elapsed(), self._clock.wall() if wall is None else wall, fields)
            self._file.append(event)
        return event

    def close(self) -> None:
        self._file.close()


class NullEventLog:
    """Checks events and keeps none: a run without a workdir."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.elapsed = Elapsed(clock)

    def write(self, kind: str, *, phase: int, wall: float | None = None, **fields: Any) -> dict[str, Any]:
        return _event(kind, phase, self.elapsed(), self._clock.wall() if wall is None else wall, fields)

    def close(self) -> None:
        pass


def read_events(workdir: str | os.PathLike[str], kind: str | None = None) -> list[dict[str, Any]]:
    """Return a run's events in order, all or those of one kind.

    Raises:
        OSError: the file cannot be read; an absent one has no events.
    """
    events = read_lines(Path(workdir) / EVENTS_FILE)
    return [event for event in events if kind in (None, event["kind"])]


def _event(kind: str, phase: int, t: float, wall: float, fields: dict[str, Any]) -> dict[str, Any]:
    assert type(phase) is int, f"an event names its phase by number, got {phase!r}"
    assert kind in FIELDS, f"unknown kind of event {kind!r}; FIELDS names {', '.join(FIELDS)}"
    missing = [name for name in FIELDS[kind] if name not in fields]
    assert not missing, f"a {kind} event lacks {', '.join(missing)}"
    assert not _COMMON & fields.keys(), f"a {kind} event may not bring its own {_COMMON & fields.keys()}"
    return {"t": round(t, 6), "wall": round(wall, 6), "kind": kind, "phase": phase, **fields}
