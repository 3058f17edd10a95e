"""Shows what went otherwise than planned, as marks on the lanes and rows of a table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hybridsync.core.counted import duration
from hybridsync.lab.report.scales import number

Sort = Literal["lost", "back", "slow", "decided", "rollback", "other"]

QUIET = frozenset(
    {
        "run_started",
        "role_started",
        "phase_entered",
        "training_started",
        "phase_ended",
        "switch",
        "evaluation",
        "evaluation_skipped",
        "checkpoint",
        "run_finished",
    }
)
"""Kinds that are no incident by themselves; what a reader does not know is shown as it is."""

_COMMON = ("t", "wall", "kind", "phase")


@dataclass(frozen=True)
class Incident:
    """One mark.

    Args:
        t: seconds of the run.
        phase: number of the active phase.
        sort: kind of mark on the page.
        worker: worker on whose lane the mark stands; None for the run's own.
        kind: kind of the event.
        text: description of the incident.
    """

    t: float
    phase: int
    sort: Sort
    worker: int | None
    kind: str
    text: str


def _lost(event: Mapping[str, Any]) -> str:
    return f"{event['role']} {event['id']} lost: {event['reason']}"


def _straggler(event: Mapping[str, Any]) -> str:
    said = "is slow" if event["kind"] == "straggler_flagged" else "is as fast as the others again"
    rates = [number(value) if isinstance(value, int | float) else "?" for value in (event["rate"], event["threshold"])]
    return f"worker {event['worker']} {said}: {rates[0]} units/s, the threshold is {rates[1]}"


def _decided(event: Mapping[str, Any]) -> str:
    """Return what a policy decided, and the numbers that it rests on."""
    slow, rates = event["workers"], event["rates"]
    measured = [f"worker {worker} at {number(rates[str(worker)])}" for worker in slow if str(worker) in rates]
    numbers: list[str] = []
    if measured:
        numbers.append(f"{', '.join(measured)} units/s, the threshold is {number(event['threshold'] or 0.0)}")
    if event["expected_secs"] is not None:
        numbers.append(f"expected to last {duration(event['expected_secs'])}")
    if event["cost_secs"]:
        numbers.append(f"saves {duration(event['saved_secs'])} and costs {duration(event['cost_secs'])}")
    told = "; ".join([*numbers, f"{event['units_left']:,} units of the stage are left"])
    return f"{event['policy']}: {event['action']}, because {event['why']} ({told})"


def _reason(event: Mapping[str, Any]) -> str:
    return f": {event['why']}" if event["why"] else ""


def _stop(event: Mapping[str, Any]) -> str:
    stop = "stopped for good by a callback" if event.get("for_good") else "asked to save and stop"
    return f"{stop}{_reason(event)}"


_TOLD: dict[str, tuple[Sort, Callable[[Mapping[str, Any]], str]]] = {
    "role_lost": ("lost", _lost),
    "worker_left": ("lost", lambda event: f"worker {event.get('worker', '?')} left"),
    "worker_joined": ("back", lambda event: f"worker {event.get('worker', '?')} joined"),
    "straggler_flagged": ("slow", _straggler),
    "straggler_cleared": ("back", _straggler),
    "hang_suspected": (
        "slow",
        lambda event: (
            f"{event['role']} {event['id']} has been {event['doing']} for long; it is ended after "
            f"{duration(event['limit_secs'])} ({event['setting']}) if others wait for it"
        ),
    ),
    "policy_decided": ("decided", _decided),
    "switch_ordered": (
        "decided",
        lambda event: f"asked to switch to {event['protocol']} for the rest of the stage{_reason(event)}",
    ),
    "order_dropped": ("decided", lambda event: f"the order of {event['protocol']} dropped: {event['why']}"),
    "stop_ordered": ("decided", _stop),
    "save_failed": ("other", lambda event: f"the state at unit {event['units']:,} was not saved: {event['error']}"),
    "unit_quarantined": ("other", lambda event: f"unit {event['unit']:,} is trained no more: {event['reason']}"),
    "worker_quarantined": ("lost", lambda event: f"worker {event['worker']} is given up: {event['reason']}"),
    "world_renewed": ("back", lambda event: f"all workers started again in a new group: {event['why']}"),
    "user_code_failed": ("other", lambda event: f"{event['code']}: {event['error']}"),
    "rollback": (
        "rollback",
        lambda event: f"back to unit {event['to_units']:,}; {event['rolled_back']:,} units are applied again",
    ),
}


def incidents(events: Sequence[Mapping[str, Any]]) -> tuple[Incident, ...]:
    """Return a run's incidents in order.

    Workers that join before their session's first phase are not incidents, nor is a `worker_left` that repeats a
    `role_lost`.
    """
    found: list[Incident] = []
    seen: set[tuple[str, int]] = set()
    lost: set[int] = set()
    in_phase = False
    for event in events:
        kind = event["kind"]
        if kind == "run_started":
            in_phase = False
            if event.get("reason") == "resume":
                found.append(_incident(event, "back", "the run goes on from its newest checkpoint"))
        elif kind == "phase_entered":
            in_phase = True
        elif kind == "role_started":
            role = (event["role"], event["id"])
            if role in seen and in_phase and role[0] != "worker":
                found.append(_incident(event, "back", f"{role[0]} {role[1]} started again"))
            seen.add(role)
        elif kind == "worker_joined" and not in_phase:
            continue
        elif kind == "worker_left" and event.get("worker") in lost:
            lost.discard(event["worker"])
        elif kind in _TOLD:
            sort, tell = _TOLD[kind]
            if kind == "role_lost" and event["role"] == "worker":
                lost.add(event["id"])
            found.append(_incident(event, sort, tell(event)))
        elif kind not in QUIET:
            fields = ", ".join(f"{key} {value}" for key, value in event.items() if key not in _COMMON)
            found.append(_incident(event, "other", f"{kind.replace('_', ' ')}{': ' if fields else ''}{fields}"))
    return tuple(found)


def _incident(event: Mapping[str, Any], sort: Sort, text: str) -> Incident:
    worker = event.get("worker")
    if event["kind"] in ("role_lost", "hang_suspected") and event["role"] == "worker":
        worker = event["id"]
    return Incident(event["t"], event["phase"], sort, worker=worker, kind=event["kind"], text=text)
