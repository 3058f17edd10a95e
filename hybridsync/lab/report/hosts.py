"""Computes what each host contributed to a run, for the page's table of hosts."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybridsync.telemetry.host_units import HostWorker, added, has_several, shares_of


@dataclass(frozen=True)
class HostRow:
    """A host of a run.

    Args:
        host: name of the host.
        workers: ids of the workers that ran there, ascending.
        units: units that were applied while those workers had them there.
        secs: seconds for which at least one of them was there.
    """

    host: str
    workers: tuple[int, ...]
    units: int
    secs: float


def hosts(
    events: Sequence[Mapping[str, Any]], metrics: Sequence[Mapping[str, Any]], applied: int, secs: float
) -> tuple[HostRow, ...]:
    """Return a row for each host, in order of their names; none for a run on one host.

    Args:
        events: events of the run, in order.
        metrics: metrics of the run, in order.
        applied: units of the run, to which the rows' units sum.
        secs: the run's last moment on its own time axis.
    """
    counted: dict[HostWorker, int] = {}
    for line in metrics:
        counted = added(counted, line.get("applied_by") or {})
    there = _stretches(events, secs)
    known = sorted({*counted, *there})
    if not has_several(host for host, _ in known):
        return ()
    units = shares_of(applied, counted)
    rows = []
    for host in dict.fromkeys(host for host, _ in known):
        pairs = [pair for pair in known if pair[0] == host]
        rows.append(
            HostRow(
                host=host,
                workers=tuple(worker for _, worker in pairs),
                units=sum(units.get(pair, 0) for pair in pairs),
                secs=_covered(stretch for pair in pairs for stretch in there.get(pair, ())),
            )
        )
    return tuple(rows)


def _stretches(events: Sequence[Mapping[str, Any]], secs: float) -> dict[HostWorker, list[tuple[float, float]]]:
    """Return from when to when each worker was on each host: a process until it is lost, or the session ends."""
    since: dict[int, tuple[str, float]] = {}
    found: dict[HostWorker, list[tuple[float, float]]] = defaultdict(list)
    last = 0.0

    def close(worker: int, end: float) -> None:
        if worker in since:
            host, begin = since.pop(worker)
            found[host, worker].append((begin, end))

    for event in events:
        kind, t = event["kind"], event["t"]
        if kind == "role_started" and event["role"] == "worker":
            close(event["id"], t)
            since[event["id"]] = event["host"], t
        elif kind == "worker_left":
            close(event.get("worker", -1), t)
        elif kind == "run_started":
            for worker in [*since]:
                close(worker, last)
        last = t
    for worker in [*since]:
        close(worker, secs)
    return found


def _covered(stretches: Iterable[tuple[float, float]]) -> float:
    """Return the seconds that stretches cover together.

    >>> _covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, until = 0.0, 0.0
    for begin, end in sorted(stretches):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
