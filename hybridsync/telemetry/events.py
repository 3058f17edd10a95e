"""events.jsonl: what happened to the run, one JSON object a line.

Every line holds `t` (seconds since the run's first start), `wall` (unix time), `kind`, `phase` (the number)
and the kind's own fields; a writer may add fields, never leave one out.
"""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from hybridsync.core.clock import Clock
from hybridsync.storage.jsonl import LineFile, plain, read_lines
from hybridsync.telemetry.kinds import NUMBER, wrong

EVENTS_FILE = "events.jsonl"

COMMON = {"t": "a number", "wall": "a number", "kind": "a text", "phase": "a count"}
"""The fields of every line, and their kinds (see `telemetry.kinds`)."""

FIELDS: dict[str, dict[str, str]] = {
    "run_started": {},
    "role_started": {"role": "a text", "id": "a count", "pid": "a count", "host": "a text", "address": "a text"},
    "role_lost": {"role": "a text", "id": "a count", "reason": "a text"},
    "phase_entered": {
        "protocol": "a text", "members": "counts", "reason": "a text", "units": "a count",
        "learning_rate": NUMBER, "units_per_update": "a count",
    },
    "phase_ended": {},
    "switch": {
        "from": "a text", "to": "a text", "reason": "a text", "units": "a count", "fingerprint": "a text",
        "drain_secs": NUMBER, "capture_secs": NUMBER, "reserve_secs": NUMBER, "enter_secs": NUMBER,
        "commit_secs": NUMBER, "compile_secs": NUMBER, "stall_secs": NUMBER,
    },
    "straggler_flagged": {"worker": "a count", "rate": NUMBER, "threshold": NUMBER},
    "straggler_cleared": {"worker": "a count", "rate": NUMBER, "threshold": NUMBER},
    "policy_decided": {
        "policy": "a text", "action": "a text", "workers": "counts", "rates": "numbers by count",
        "threshold": NUMBER, "why": "a text", "expected_secs": NUMBER, "saved_secs": NUMBER, "cost_secs": NUMBER,
        "units_left": "a number",
    },
    "switch_ordered": {"number": "a count", "protocol": "a text", "units": "a count", "why": "a text"},
    "order_dropped": {"number": "a count", "protocol": "a text", "why": "a text"},
    "stop_ordered": {"why": "a text"},
    "worker_joined": {},
    "worker_left": {},
    "world_renewed": {"why": "a text"},
    "hang_suspected": {
        "role": "a text", "id": "a count", "doing": "a text", "limit_secs": NUMBER, "setting": "a text",
    },
    "rollback": {"to_units": "a count", "rolled_back": "a count"},
    "evaluation": {"examples": "a count", "accuracy": NUMBER, "loss": NUMBER},
    "checkpoint": {"units": "a count", "bytes": "a count", "secs": NUMBER},
    "save_failed": {"units": "a count", "error": "a text"},
    "unit_quarantined": {"unit": "a count", "workers": "counts", "reason": "a text"},
    "worker_quarantined": {"worker": "a count", "reason": "a text"},
    "run_finished": {},
}  # fmt: skip
"""The fields that a line of each kind holds besides COMMON, and their kinds.

A line that breaks this is not written, and a reader leaves it out.
`run_started` adds, among others, `quarantined`: the damaged checkpoints that were set aside before it, newest first,
each as [number, reason]. The number is the commit's running number, which names its folder in `checkpoints/`, and is
no count of units.
"""

MORE: dict[str, dict[str, str]] = {
    "run_started": {"reason": "a text", "quarantined": "a list"},
    "phase_entered": {"why": "a text", "fingerprint": "a text", "compile_secs": NUMBER, "lane": "a number"},
    "phase_ended": {"units": "a count", "why": "a text"},
    "straggler_flagged": {"centre": NUMBER, "rounds": "a count", "workers": "a count"},
    "straggler_cleared": {"centre": NUMBER, "rounds": "a count", "workers": "a count"},
    "worker_joined": {"worker": "a count"},
    "worker_left": {"worker": "a count"},
    "evaluation": {"units": "a count"},
    "run_finished": {"exit": "a text", "error": "a text or null"},
}
"""Fields that a line may lack, and that readers use where they are there. What is declared nowhere has any kind."""


def unsound(event: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the values of an event, as JSON holds it; of a kind that is not known, COMMON counts.

    >>> unsound({"kind": "stop_ordered", "why": 3})
    ['why is 3, not a text']
    """
    found = wrong(event, COMMON)
    kind = event.get("kind")
    return found or [*wrong(event, FIELDS.get(kind, {})), *wrong(event, MORE.get(kind, {}))]


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
    assert not COMMON.keys() & fields.keys(), f"a {kind} event may not bring its own {COMMON.keys() & fields.keys()}"
    event = plain({"t": round(t, 6), "wall": round(wall, 6), "kind": kind, "phase": phase, **fields})
    assert not unsound(event), f"a {kind} event cannot be read: {', '.join(unsound(event))}"
    return event
