"""Follows a run through its own record: what `hybridsync status` and a metrics server tell of it.

Events and metrics go through here on their way into the files, and a finished run's files are read in again, so that
the same code describes a running and a finished run.

>>> figures = RunFigures()
>>> figures.event({"kind": "phase_entered", "t": 1.0, "phase": 1, "protocol": "bsp", "reason": "start"})
>>> figures.event({"kind": "switch", "t": 3.0, "phase": 2, "stall_secs": 0.25})
>>> figures.read().protocol, figures.read().num_switches, figures.read().stall_secs
('bsp', 1, 0.25)
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hybridsync.interfaces.commands import Evaluation, Figure
from hybridsync.telemetry.events import NO_FIGURES, Elapsed, Events, started_at
from hybridsync.telemetry.host_units import HostWorker, added, has_several, shares_of, units_by_host
from hybridsync.telemetry.metrics import Metrics, MetricsSink

MOST_EVALUATIONS = 20
MOST_CHECKPOINTS = 100
Place = tuple[str, int]


@dataclass(frozen=True)
class Newest:
    """The newest figures of a run.

    Args:
      t: seconds of the run at its last sign.
      phase, protocol, reason: number, protocol and reason of the phase that was entered last; 0 and "" before the
        first.
      num_switches, stall_secs: number of switches in the record, and their total cost in seconds.
      restarts: place -> processes that took another's place.
      pids: place -> process that has it; 0 for a thread.
      quarantined: workers that were given up in this session.
      checkpoints: the newest ones, in order: units applied in it, and when it was durable, seconds of the run.
      checkpoint_bytes: size of all checkpoints together, in bytes.
      evaluations: the newest ones, in order.
      units: units applied at this session's newest line of metrics; -1 before the first.
      figures: figures of this session's newest line of metrics, by name; what is not finite is left out.
      units_per_sec: units per second of each worker, in that line.
      sent_bytes, received_bytes: bytes of each worker, in all lines together.
      worker_hosts: worker -> host where it runs, or ran last in this session.
      applied_by: (host, worker) -> units that the chief saw applied while that worker had them there, in all lines.
    """

    t: float = 0.0
    phase: int = 0
    protocol: str = ""
    reason: str = ""
    num_switches: int = 0
    stall_secs: float = 0.0
    restarts: Mapping[Place, int] = field(default_factory=dict)
    pids: Mapping[Place, int] = field(default_factory=dict)
    quarantined: frozenset[int] = frozenset()
    checkpoints: tuple[tuple[int, float], ...] = ()
    checkpoint_bytes: int = 0
    evaluations: tuple[Evaluation, ...] = ()
    units: int = -1
    figures: Mapping[str, float] = field(default_factory=dict)
    units_per_sec: Mapping[int, float] = field(default_factory=dict)
    sent_bytes: Mapping[int, int] = field(default_factory=dict)
    received_bytes: Mapping[int, int] = field(default_factory=dict)
    worker_hosts: Mapping[int, str] = field(default_factory=dict)
    applied_by: Mapping[HostWorker, int] = field(default_factory=dict)

    @property
    def has_several_hosts(self) -> bool:
        """Whether workers of this run run on several hosts, or did."""
        return has_several([*self.worker_hosts.values(), *(host for host, _ in self.applied_by)])

    def host_of(self, role: str, role_id: int) -> str:
        """Return where a worker runs, or ran last in this session; "" of others, and for a run on one host."""
        return self.worker_hosts.get(role_id, "") if role == "worker" and self.has_several_hosts else ""

    def units_of(self, applied: int) -> dict[HostWorker, int]:
        """Return (host, worker) -> units, which sum to `applied`; empty for a run on one host."""
        return dict(sorted(shares_of(applied, self.applied_by).items())) if self.has_several_hosts else {}

    def hosts_of(self, applied: int) -> dict[str, int]:
        """Return host -> units, which sum to `applied`; empty for a run on one host."""
        return units_by_host(self.units_of(applied))

    @property
    def checkpoint_units(self) -> int:
        """Units of the newest checkpoint; -1 for none."""
        return self.checkpoints[-1][0] if self.checkpoints else -1

    @property
    def checkpoint_t(self) -> float:
        """Return when that checkpoint was durable, in seconds of the run; 0 for none."""
        return self.checkpoints[-1][1] if self.checkpoints else 0.0


class RunFigures:
    """Folds the events and metrics of a run into its newest figures.

    The lock guards the newest figures: the chief's threads write them, and its callers' threads read them.

    Args:
      elapsed: the run's time; None for that of its last sign.
    """

    def __init__(self, elapsed: Callable[[], float] | None = None) -> None:
        self._elapsed = elapsed
        self._lock = threading.Lock()
        self._newest = Newest()

    @property
    def seconds(self) -> float:
        """Seconds of the run so far."""
        return self._elapsed() if self._elapsed is not None else self.read().t

    def read(self) -> Newest:
        """Return the newest figures; the value does not change any more."""
        with self._lock:
            return self._newest

    def event(self, event: Mapping[str, Any]) -> None:
        """Take an event as it was written; of a kind that says nothing here, its time alone counts."""
        with self._lock:
            newest = replace(self._newest, t=event["t"])
            follow = _EVENTS.get(event["kind"])
            self._newest = follow(newest, event) if follow is not None else newest

    def metrics(self, units: int, examples: int, line: Mapping[str, Any]) -> None:
        """Take a line of metrics."""
        size = examples / units if units else 1.0
        staleness = {f"staleness_{name}": value for name, value in line["staleness"].items()}
        found = {
            "units_per_sec": line["examples_per_sec"] / size,
            "loss": line["loss"],
            "learning_rate": line["learning_rate"],
            **staleness,
        }
        rates = {int(worker): rate / size for worker, rate in line["workers"].items() if rate is not None}
        with self._lock:
            self._newest = replace(
                self._newest,
                units=units,
                figures=_finite(found),
                units_per_sec=rates,
                sent_bytes=_summed(self._newest.sent_bytes, line.get("sent_bytes", {})),
                received_bytes=_summed(self._newest.received_bytes, line.get("received_bytes", {})),
                applied_by=added(self._newest.applied_by, line.get("applied_by", {})),
            )


def _finite(figures: Mapping[str, Any]) -> dict[str, float]:
    numbers = {name: value for name, value in figures.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def _summed(before: Mapping[int, int], more: Mapping[Any, int]) -> dict[int, int]:
    return {**before, **{int(worker): before.get(int(worker), 0) + count for worker, count in more.items()}}


def _run_started(newest: Newest, event: Mapping[str, Any]) -> Newest:
    if event.get("reason") != "resume":  # what was before is another run's
        return Newest(t=event["t"])
    left = newest.checkpoints[: max(0, len(newest.checkpoints) - len(event.get("quarantined", ())))]
    cleared = {
        "pids": {},
        "worker_hosts": {},
        "quarantined": frozenset(),
        "units": -1,
        "figures": {},
        "units_per_sec": {},
    }
    return replace(newest, **cleared, checkpoints=left)


def _rollback(newest: Newest, event: Mapping[str, Any]) -> Newest:
    """Forget checkpoints of what was rolled back: they were set aside."""
    left = tuple(each for each in newest.checkpoints if each[0] <= event["to_units"])
    return replace(newest, checkpoints=left)


def _role_started(newest: Newest, event: Mapping[str, Any]) -> Newest:
    place = event["role"], event["id"]
    again = place in newest.pids
    restarts = {**newest.restarts, place: newest.restarts.get(place, 0) + again}
    hosts = {event["id"]: event.get("host", "")} if event["role"] == "worker" else {}
    return replace(
        newest,
        restarts=restarts,
        pids={**newest.pids, place: event["pid"]},
        worker_hosts={**newest.worker_hosts, **hosts},
    )


def _evaluation(newest: Newest, event: Mapping[str, Any]) -> Newest:
    found = _finite({name: value for name, value in event.items() if name not in NO_FIGURES})
    measured = Evaluation(event.get("units", -1), tuple(Figure(*each) for each in found.items()))
    return replace(newest, evaluations=(*newest.evaluations, measured)[-MOST_EVALUATIONS:])


_EVENTS: dict[str, Callable[[Newest, Mapping[str, Any]], Newest]] = {
    "run_started": _run_started,
    "role_started": _role_started,
    "phase_entered": lambda newest, event: replace(
        newest, phase=event["phase"], protocol=event["protocol"], reason=event["reason"]
    ),
    "switch": lambda newest, event: replace(
        newest, num_switches=newest.num_switches + 1, stall_secs=newest.stall_secs + (event["stall_secs"] or 0.0)
    ),
    "worker_quarantined": lambda newest, event: replace(newest, quarantined=newest.quarantined | {event["worker"]}),
    "checkpoint": lambda newest, event: replace(
        newest,
        checkpoints=(*newest.checkpoints, (event["units"], event["t"]))[-MOST_CHECKPOINTS:],
        checkpoint_bytes=newest.checkpoint_bytes + event["bytes"],
    ),
    "rollback": _rollback,
    "evaluation": _evaluation,
}


def follow(events: Iterable[Mapping[str, Any]], lines: Iterable[Mapping[str, Any]], figures: RunFigures) -> None:
    """Take in what a run has written so far; what was before a start from unit 0 is another run's.

    Args:
      events: events of the run, in order.
      lines: lines of its metrics, in order.
      figures: figures that are updated.
    """
    events = list(events)
    begun = started_at(events)
    waiting = deque(line for line in lines if line["t"] > begun or not begun)
    for event in events:
        while waiting and begun < event["t"] and waiting[0]["t"] <= event["t"]:  # of a session before
            _take(waiting.popleft(), figures)
        figures.event(event)
    for line in waiting:
        _take(line, figures)


def _take(line: Mapping[str, Any], figures: RunFigures) -> None:
    figures.metrics(line["units"], line["examples"], line)


class FollowedEvents:
    """Events that go through `figures` on their way (see `telemetry.events.Events`)."""

    def __init__(self, events: Events, figures: RunFigures) -> None:
        self._events, self._figures = events, figures
        self.elapsed: Elapsed = events.elapsed

    def write(self, kind: str, *, phase: int, wall: float | None = None, **fields: Any) -> dict[str, Any]:
        event = self._events.write(kind, phase=phase, wall=wall, **fields)
        self._figures.event(event)
        return event

    def close(self) -> None:
        self._events.close()


class FollowedMetrics:
    """Metrics that go through `figures` on their way (see `telemetry.metrics.MetricsSink`)."""

    def __init__(self, metrics: MetricsSink, figures: RunFigures) -> None:
        self._metrics, self._figures = metrics, figures

    def write(self, metrics: Metrics, at: float | None = None) -> None:
        self._metrics.write(metrics, at)
        self._figures.metrics(metrics.units, metrics.examples, vars(metrics))

    def close(self) -> None:
        self._metrics.close()
