"""Reads the cost of each switch from a run's timeline.json and events.jsonl.

A switch's stall is the time from the last unit applied in phase e to the first one applied in the next phase,
less one median unit time of that: in which a run without the switch would have applied nothing either.
"""

import itertools
import json
import math
import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridsync.core.errors import WorkdirError
from hybridsync.storage.durable import read_file
from hybridsync.telemetry.events import read_events
from hybridsync.telemetry.timeline import TIMELINE_FILE

UPDATES = {("step", "sync"), ("apply", "server"), ("compute", "group")}
"""Name and category of the spans at whose end units are applied; in groups by each worker to its own replica."""

NO_SWITCH = ("start", "resume")
"""Reasons of phases that follow no running one."""


@dataclass(frozen=True)
class SwitchStall:
    """One switch.

    Args:
        phase: number of the phase that was entered.
        before: protocol that was left.
        after: protocol that was entered.
        stall_secs: duration of the stall in seconds, from the timeline.
        unit_secs: the median unit time that was taken off; 0 when the phase was too short to tell.
        event_stall_secs: stall in seconds of the chief's `switch` event; None without one.
        compile_secs: seconds of compilation, from the same event; compiling happens before the stall.
    """

    phase: int
    before: str
    after: str
    stall_secs: float
    unit_secs: float
    event_stall_secs: float | None
    compile_secs: float | None


def read_stalls(workdir: str | os.PathLike[str]) -> list[SwitchStall]:
    """Return the switches of the run in `workdir`, in order.

    Raises:
        WorkdirError: the run left no timeline.
    """
    path = Path(workdir) / TIMELINE_FILE
    if not path.exists():
        raise WorkdirError(f"{path} does not exist; run with telemetry.timeline=true and name that run's workdir")
    return switch_stalls(json.loads(read_file(path))["traceEvents"], read_events(workdir))


def switch_stalls(trace: Iterable[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> list[SwitchStall]:
    """Return each switch between two phases that both applied units.

    Args:
        trace: Chrome trace events, microseconds.
        events: the run's events.
    """
    ends: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for span in trace:
        if span["ph"] == "X" and (span["name"], span["cat"]) in UPDATES:
            ends[span["args"]["phase"]][span["pid"]].append((span["ts"] + span["dur"]) / 1e6)
    switches = {event["phase"]: event for event in events if event["kind"] == "switch"}
    phases = [event for event in events if event["kind"] == "phase_entered"]
    stalls = []
    for before, after in itertools.pairwise(phases):
        old, new = ends.get(before["phase"]), ends.get(after["phase"])
        if after["reason"] in NO_SWITCH or not old or not new:
            continue
        unit_secs = _unit_secs(new, len(after["members"]), after["units_per_update"])
        gap = min(map(min, new.values())) - max(map(max, old.values()))
        event = switches.get(after["phase"], {})
        stalls.append(
            SwitchStall(
                phase=after["phase"],
                before=before["protocol"],
                after=after["protocol"],
                stall_secs=max(gap - unit_secs, 0.0),
                unit_secs=unit_secs,
                event_stall_secs=event.get("stall_secs"),
                compile_secs=event.get("compile_secs"),
            )
        )
    return stalls


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of `values` do not exceed (nearest rank).

    >>> percentile([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def _unit_secs(ends: Mapping[int, list[float]], num_members: int, units_per_update: int) -> float:
    """Return the median time that one worker takes for a unit.

    While every member applies one unit, `num_members / units_per_update` updates happen: one step in
    lock-step, one apply of each member at a server, one local update in its own row of groups.
    """
    lag = max(round(num_members / units_per_update), 1)
    gaps = [
        later - earlier for row in ends.values() for earlier, later in zip(sorted(row), sorted(row)[lag:], strict=False)
    ]
    return statistics.median(gaps) if gaps else 0.0
