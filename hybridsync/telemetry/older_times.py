"""Brings the times of records that earlier versions wrote to the run's time: their `t` counts start-up as well.

A session that leased a unit and has no `training_started` is such a one. Its first phase stands for its first unit.

>>> events, _ = training_times([
...     {"t": 0.0, "wall": 50.0, "kind": "run_started", "phase": 0},
...     {"t": 4.0, "wall": 54.0, "kind": "phase_entered", "phase": 1},
...     {"t": 9.0, "wall": 59.0, "kind": "run_finished", "phase": 1},
... ])
>>> [(event["t"], event["kind"]) for event in events]
[(0.0, 'run_started'), (0.0, 'phase_entered'), (0.0, 'training_started'), (5.0, 'run_finished')]
"""

from collections.abc import Sequence
from typing import Any

TRAINING_STARTED = "training_started"


def training_times(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[int, float]]:
    """Return a record's events on the run's time, and by how much the `t` of each phase's metrics is too late.

    Args:
        events: the events in order. A line without a kind, a time or a phase leaves all as they are: whoever reads it
            refuses it.
    """
    if not all(
        isinstance(event.get("t"), int | float) and {"kind", "wall", "phase"} <= event.keys() for event in events
    ):
        return events, {}
    found: list[dict[str, Any]] = []
    late: dict[int, float] = {}
    total = latest = 0.0
    for session in _sessions(events):
        if any(event["kind"] == TRAINING_STARTED for event in session):
            found += session
        else:
            opened, closed = session[0]["t"], session[-1]["t"]
            entered = next((event for event in session if event["kind"] == "phase_entered"), session[-1])
            start_up_secs = entered["t"] - opened
            total += start_up_secs
            for event in session:
                found.append({**event, "t": max(round(max(event["t"], entered["t"]) - total, 6), latest)})
                if event["kind"] == "phase_entered":
                    late[event["phase"]] = total
                if event is entered and closed > entered["t"]:
                    began = {key: found[-1][key] for key in ("t", "wall", "phase")}
                    found.append({**began, "kind": TRAINING_STARTED, "start_up_secs": start_up_secs})
        latest = found[-1]["t"]
    return found, late


def session_of(events: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return the events of the newest session."""
    return _sessions(events)[-1] if events else ()


def _sessions(events: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    sessions: list[list[dict[str, Any]]] = []
    for event in events:
        if event["kind"] == "run_started" or not sessions:
            sessions.append([])
        sessions[-1].append(event)
    return sessions
