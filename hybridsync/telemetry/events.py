"""events.jsonl: what happened to the run, one JSON object a line.

Every line holds `t` (seconds for which the run has trained, see `Elapsed`), `wall` (unix time), `kind`, `phase` (the
number) and the kind's own fields; a writer may add fields, never leave one out.
"""

import math
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from hybridsync.core.clock import Clock
from hybridsync.core.errors import WorkdirError
from hybridsync.storage.jsonl import LineFile, plain, read_lines
from hybridsync.telemetry.kinds import NUMBER, wrong
from hybridsync.telemetry.older_times import TRAINING_STARTED, session_of, training_times

EVENTS_FILE = "events.jsonl"

COMMON = {"t": "a number", "wall": "a number", "kind": "a text", "phase": "a count"}
"""The fields of every line, and their kinds (see `telemetry.kinds`)."""

NO_FIGURES = frozenset({*COMMON, "units", "examples", "state_t", "secs"})
"""Fields of an `evaluation` that are no figures of the task."""

FIELDS: dict[str, dict[str, str]] = {
    "run_started": {},
    "role_started": {"role": "a text", "id": "a count", "pid": "a count", "host": "a text", "address": "a text"},
    "role_lost": {"role": "a text", "id": "a count", "reason": "a text"},
    "phase_entered": {
        "protocol": "a text", "members": "counts", "reason": "a text", "units": "a count",
        "learning_rate": NUMBER, "units_per_update": "a count",
    },
    "training_started": {"start_up_secs": NUMBER},
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
    "evaluation_skipped": {
        "first": "a count", "last": "a count", "places": "a count", "units": "a count", "why": "a text",
    },
    "checkpoint": {"units": "a count", "bytes": "a count", "secs": NUMBER},
    "save_failed": {"units": "a count", "error": "a text"},
    "user_code_failed": {"code": "a text", "error": "a text", "times": "a count"},
    "unit_quarantined": {"unit": "a count", "workers": "counts", "reason": "a text"},
    "worker_quarantined": {"worker": "a count", "reason": "a text"},
    "run_finished": {},
}  # fmt: skip
"""The fields that a line of each kind holds besides COMMON, and their kinds.

A line that breaks this is not written, and a reader leaves it out.

`training_started` says that a session's first unit was leased: `t` stands still before it, and `wall` is that moment's.
`evaluation` has in `state_t` the time, as `t`, at which the state was captured, or of its last update if it was kept at
its place; it was measured by `t`, in the background of the training. Measuring it took `secs`.
`evaluation_skipped`: of the places that `telemetry.evaluate_units` asks for, those from `first` to `last` had no
evaluation of their own, for the reason in `why`; `units` are those of the state that was captured next, or of the one
whose evaluation gave no figures.
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
    "stop_ordered": {"for_good": "true or false"},
    "worker_joined": {"worker": "a count"},
    "worker_left": {"worker": "a count"},
    "evaluation": {"units": "a count", "state_t": "a number", "secs": NUMBER},
    "run_finished": {"exit": "a text", "error": "a text or null"},
}
"""Fields that a line may lack, and that readers use where they are there. What is declared nowhere has any kind."""


def unsound(event: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the values of an event, as JSON holds it; of a kind that is not known, COMMON counts.

    >>> unsound({"kind": "stop_ordered", "why": 3})
    ['why is 3, not a text']
    """
    found = wrong(event, COMMON)
    kind = str(event.get("kind"))
    return found or [*wrong(event, FIELDS.get(kind, {})), *wrong(event, MORE.get(kind, {}))]


class Elapsed:
    """The run's time: seconds for which it has trained, from its first unit leased, without pauses between sessions.

    It stands still from a session's start until the session's first unit is leased, and from the session's end.

    Args:
        clock: time source.
        t: the run's time after its earlier sessions.
        opened: monotonic seconds at which this session's start-up began; None for now.
        first_wall: unix time at which `t` was 0; None while no unit was leased.
    """

    def __init__(
        self, clock: Clock, t: float = 0.0, opened: float | None = None, first_wall: float | None = None
    ) -> None:
        self._clock, self._least, self._first_wall = clock, t, first_wall
        self._opened = clock.monotonic() if opened is None else opened
        self._zero: float | None = None
        self._most = math.inf

    @property
    def runs(self) -> bool:
        """Whether this session has leased a unit."""
        return self._zero is not None

    def __call__(self) -> float:
        return self._least if self._zero is None else min(self._clock.monotonic() - self._zero, self._most)

    def wall(self) -> float:
        """Return unix time, as if the run had trained without pauses from its first unit."""
        return self._clock.wall() if self._first_wall is None else self._first_wall + self()

    def start_up_secs(self, leased: float) -> float:
        """Return how long this session took until its first unit, which was leased at `leased` of the clock."""
        return leased - self._opened

    def begin(self, leased: float) -> None:
        """Run from where this session's first unit was leased, by this host's monotonic clock."""
        self._zero = leased - self._least
        if self._first_wall is None:
            self._first_wall = self._clock.wall() - self()

    def go_on(self, t: float, begun: float) -> None:
        """Run on from `t`, in a session whose first unit was leased at `begun`: only its chief was away."""
        self._zero, self._least = self._clock.monotonic() - t, begun

    def stop(self) -> float:
        """Stand still and return the time: the session has ended, and its callbacks may take their time."""
        self._most = self()
        return self._most

    def not_before(self, t: float) -> None:
        """Go on from `t` where that is later: another file of an earlier session ended there."""
        later = max(t - self(), 0.0)
        if self._zero is None:
            self._least += later
        else:
            self._zero -= later

    def at(self, monotonic: float) -> float:
        """Return the run's time at a reading of this host's monotonic clock; never before this session's first unit."""
        return self._least if self._zero is None else min(max(monotonic - self._zero, self._least), self._most)


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
        restarted: whether the run continued since the last line, without a process to write: that time counts, once
            the session has leased a unit. Otherwise it stood still, and `t` continues without a gap.
        opened: see `Elapsed`.

    Raises:
        OSError: the disk refuses.
        WorkdirError: see `read_sound_events`.
    """

    def __init__(
        self,
        workdir: str | os.PathLike[str],
        clock: Clock,
        *,
        restarted: bool = False,
        opened: float | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._file = LineFile(Path(workdir) / EVENTS_FILE)
        events = read_sound_events(workdir)
        first = next((event for event in events if event["kind"] == TRAINING_STARTED), None)
        last_t = events[-1]["t"] if events else 0.0
        self.elapsed = Elapsed(clock, last_t, opened, first["wall"] - first["t"] if first else None)
        begun = [event["t"] for event in session_of(events) if event["kind"] == TRAINING_STARTED]
        if restarted and begun:
            self.elapsed.go_on(last_t + max(clock.wall() - events[-1]["wall"], 0.0), begun[0])

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
    """Checks events and writes no file: a run without a workdir.

    Args:
        clock: time source.
        opened: see `Elapsed`.
        lines: list that takes each event; None for none.
    """

    def __init__(self, clock: Clock, opened: float | None = None, lines: list[dict[str, Any]] | None = None) -> None:
        self._clock, self._lines = clock, lines
        self.elapsed = Elapsed(clock, opened=opened)

    def write(self, kind: str, *, phase: int, wall: float | None = None, **fields: Any) -> dict[str, Any]:
        event = _event(kind, phase, self.elapsed(), self._clock.wall() if wall is None else wall, fields)
        if self._lines is not None:
            self._lines.append(event)
        return event

    def close(self) -> None:
        pass


def read_events(workdir: str | os.PathLike[str], kind: str | None = None) -> list[dict[str, Any]]:
    """Return a run's events in order, all or those of one kind.

    Raises:
        OSError: the file cannot be read; an absent one has no events.
    """
    events, _ = training_times(read_lines(Path(workdir) / EVENTS_FILE))
    return [event for event in events if kind in (None, event["kind"])]


def read_sound_events(workdir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return a run's events in order, for a session that goes on from them.

    Raises:
        OSError: as `read_events`.
        WorkdirError: a line is damaged, or lacks what every line holds.
    """
    path = Path(workdir) / EVENTS_FILE
    for number, line in enumerate(read_lines(path), start=1):
        if found := [f"{name} is missing" for name in COMMON if name not in line] or wrong(line, COMMON):
            raise WorkdirError(f"{path} is damaged in line {number}, {found[0]}: restore the file, or cut that line")
    return read_events(workdir)


def started_at(events: Iterable[Mapping[str, Any]]) -> float:
    """Return the run's time at its newest start from unit 0: what was before that is another run's."""
    starts = [event["t"] for event in events if event["kind"] == "run_started" and event.get("reason") != "resume"]
    return starts[-1] if starts else 0.0


def _event(kind: str, phase: int, t: float, wall: float, fields: dict[str, Any]) -> dict[str, Any]:
    assert type(phase) is int, f"an event names its phase by number, got {phase!r}"
    assert kind in FIELDS, f"unknown kind of event {kind!r}; FIELDS names {', '.join(FIELDS)}"
    missing = [name for name in FIELDS[kind] if name not in fields]
    assert not missing, f"a {kind} event lacks {', '.join(missing)}"
    assert not COMMON.keys() & fields.keys(), f"a {kind} event may not bring its own {COMMON.keys() & fields.keys()}"
    event = plain({"t": round(t, 6), "wall": round(wall, 6), "kind": kind, "phase": phase, **fields})
    assert not unsound(event), f"a {kind} event cannot be read: {', '.join(unsound(event))}"
    return event
