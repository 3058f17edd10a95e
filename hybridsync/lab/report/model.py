"""Computes what the page says about a run from what the run left; nothing here touches a file."""

import itertools
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybridsync.config.resume_rules import flattened
from hybridsync.interfaces.reports import BESIDE
from hybridsync.lab.report.hosts import HostRow, hosts
from hybridsync.lab.report.incidents import Incident, incidents
from hybridsync.lab.report.scales import Point
from hybridsync.telemetry.older_times import TRAINING_STARTED
from hybridsync.telemetry.run_record import Record

STAGES = ("drain", "capture", "reserve", "enter")
"""A switch's stages that have a length of their own; `rest` is what of the stall they do not explain."""


@dataclass(frozen=True)
class PhaseBar:
    """A phase on the lanes; one that nothing ended lasts as long as the run has lines."""

    phase: int
    protocol: str
    reason: str
    members: tuple[int, ...]
    begin: float
    end: float
    units: int
    end_units: int
    learning_rate: float
    units_per_update: int


@dataclass(frozen=True)
class Stretch:
    """The span of time in which a worker was there, or was marked as slow."""

    worker: int
    begin: float
    end: float


@dataclass(frozen=True)
class Stall:
    """Holds the cost of entering a phase.

    Args:
        phase: number of the phase that was entered.
        before: protocol that was left.
        after: protocol that was entered.
        reason: reason of the phase.
        units: units applied when the phase was entered.
        secs: duration of the stall in seconds; None if no source has it.
        stages: seconds of each of STAGES and of the `rest`; empty if no `switch` event has them.
        compile_secs: seconds of compilation before the stall, apart from it.
        commit_secs: seconds of the commit, in the background of the training.
        timeline_secs: the stall by the timeline; None without one.
    """

    phase: int
    before: str
    after: str
    reason: str
    units: int
    secs: float | None
    stages: Mapping[str, float]
    compile_secs: float | None
    commit_secs: float | None
    timeline_secs: float | None


@dataclass(frozen=True)
class Evaluation:
    """One measurement of the state."""

    t: float
    units: int | None
    examples: int
    accuracy: float | None
    loss: float | None


@dataclass(frozen=True)
class RunModel:
    """One run, ready to be drawn.

    Args:
        record: the record that the model was made from.
        exit: "completed", "stopped", "preempted", "restarting", "failed" or "unfinished".
        error: reason of a failure; None if the run did not fail.
        secs: the last moment of the run's training, on its own time axis; the last moment of all while it goes on.
        start_up_secs: seconds that the run's sessions took until their first units, which are not on that axis; None if
            none leased a unit.
        phases: phases in order.
        present: stretches in which each worker was present.
        slow: stretches in which a worker was marked as a straggler.
        incidents: marks and rows.
        stalls: stalls of every phase that followed another.
        evaluations: evaluations in order.
        hosts: hosts of a run on several hosts.
        busy: worker to seconds of each kind of span, of those that the timeline kept.
        color: index into the page's colours.
    """

    record: Record
    exit: str
    error: str | None
    secs: float
    start_up_secs: float | None
    phases: tuple[PhaseBar, ...]
    present: tuple[Stretch, ...]
    slow: tuple[Stretch, ...]
    incidents: tuple[Incident, ...]
    stalls: tuple[Stall, ...]
    evaluations: tuple[Evaluation, ...]
    hosts: tuple[HostRow, ...]
    busy: Mapping[str, Mapping[str, float]]
    color: int = 0

    @property
    def name(self) -> str:
        """Name of the run on the page."""
        return self.record.name

    @property
    def workers(self) -> tuple[int, ...]:
        """Every worker that the run ever had."""
        reported = {int(worker) for line in self.record.metrics for worker in line["workers"]}
        return tuple(sorted(reported | {stretch.worker for stretch in self.present}))

    def line(self, x: str, value: Callable[[Mapping[str, Any]], float | None]) -> list[Point]:
        """Return a figure of the metrics over `x` ("t", "units" or "examples"), where there is one."""
        points = [(line[x], value(line)) for line in _whole(self.record)]
        return [(at, figure) for at, figure in points if figure is not None]


def _whole(record: Record) -> Sequence[Mapping[str, Any]]:
    """Return the lines of whole intervals: earlier versions wrote the short rest at a session's end as one of its own.

    Such a rest is the last line before a session ended, of less than half the usual interval. A run that was killed
    wrote none.
    """
    times = [line["t"] for line in record.metrics]
    rests, begin = set(), 0
    for event in record.events:
        if event["kind"] != "run_finished":
            continue
        end = bisect_right(times, event["t"])
        secs = [after - before for before, after in itertools.pairwise(times[begin:end])]
        if len(secs) > 1 and "secs" not in record.metrics[end - 1] and secs[-1] < statistics.median(secs[:-1]) / 2:
            rests.add(end - 1)
        begin = end
    return [line for place, line in enumerate(record.metrics) if place not in rests]


def model(record: Record) -> RunModel:
    """Return what there is to draw of a run."""
    events = record.events
    secs = _last_moment(record)
    phases = _phases(record, secs)
    started = [event["start_up_secs"] or 0.0 for event in events if event["kind"] == TRAINING_STARTED]
    how, error = ended(record)
    return RunModel(
        record=record,
        exit=how,
        error=error,
        secs=secs,
        start_up_secs=sum(started) if started else None,
        phases=phases,
        present=_stretches(events, "worker_joined", "worker_left", secs),
        slow=_stretches(events, "straggler_flagged", "straggler_cleared", secs),
        incidents=incidents(events),
        stalls=_stalls(record, phases),
        evaluations=tuple(
            Evaluation(
                event.get("state_t", event["t"]),
                event.get("units"),
                event["examples"],
                event.get("accuracy"),
                event.get("loss"),
            )
            for event in events
            if event["kind"] == "evaluation"
        ),
        hosts=hosts(events, record.metrics, _applied(record, how), secs),
        busy=_busy(record.trace),
    )


def _last_moment(record: Record) -> float:
    """Return where the time axis ends: of a run that has ended, where its training did.

    Saving, measuring and the wait for callbacks come later. A run that failed in a phase has no such end: there it is
    the last thing that happened, apart from the callbacks.
    """
    events = record.events
    times = [line["t"] for line in record.metrics[-1:]]
    times += [event.get("state_t", event["t"]) for event in events if event["kind"] == "evaluation"]
    if ended(record)[0] == "unfinished":
        return max([0.0, *times, *(event["t"] for event in events[-1:])])
    last_of_phase = [event for event in events if event["kind"] in ("phase_entered", "phase_ended")][-1:]
    if not last_of_phase or last_of_phase[0]["kind"] == "phase_entered":
        last_of_phase = [event for event in events if event["kind"] not in ("user_code_failed", "run_finished")][-1:]
    return max([0.0, *times, *(event["t"] for event in last_of_phase)])


def _applied(record: Record, how: str) -> int:
    """Return the units applied: the summary's, where it is of the last session, else the newest line's."""
    if record.summary is not None and how != "unfinished":
        return record.summary["units"].get("applied", 0)
    return record.metrics[-1]["units"] if record.metrics else 0


def ended(record: Record) -> tuple[str, str | None]:
    """Return how the run's last session ended: a summary may be of an earlier one."""
    for event in reversed(record.events):
        if event["kind"] == "run_finished":
            summary = record.summary or {}
            return event.get("exit") or summary.get("exit") or "unfinished", event.get("error") or summary.get("error")
        if event["kind"] == "run_started":
            return "unfinished", None
    return (record.summary or {}).get("exit", "unfinished"), (record.summary or {}).get("error")


def _phases(record: Record, secs: float) -> tuple[PhaseBar, ...]:
    """Return the phases; one that was cut off lasts until its session's last line."""
    bars: list[PhaseBar] = []
    entered: Mapping[str, Any] | None = None
    last_t, last_units = 0.0, 0

    def close(end: float, units: int) -> None:
        nonlocal entered
        if entered is not None:
            bars.append(
                PhaseBar(
                    phase=entered["phase"],
                    protocol=entered["protocol"],
                    reason=entered["reason"],
                    members=tuple(entered["members"]),
                    begin=entered["t"],
                    end=max(end, entered["t"]),
                    units=entered["units"],
                    end_units=max(units, entered["units"]),
                    learning_rate=entered["learning_rate"],
                    units_per_update=entered["units_per_update"],
                )
            )
        entered = None

    # Where both stand at the same second, the metrics are of the session before: the time stands still at a start.
    lines = sorted([*record.metrics, *record.events], key=lambda line: line["t"])
    for line in lines:
        kind = line.get("kind")
        if kind == "phase_entered":
            close(line["t"], line["units"])
            entered = line
        elif kind == "phase_ended" and entered is not None and line["phase"] == entered["phase"]:
            close(line["t"], line.get("units", last_units))
        elif kind == "run_started":
            close(last_t, last_units)
        elif kind is None:
            last_units = line["units"]
        last_t = line["t"]
    close(secs, last_units)
    return tuple(bars)


def _stretches(events: Sequence[Mapping[str, Any]], begins: str, ends: str, secs: float) -> tuple[Stretch, ...]:
    """Return from when to when something held for each worker; a new session of the run begins anew."""
    since: dict[int, float] = {}
    found: list[Stretch] = []
    last = 0.0
    for event in events:
        worker = event.get("worker", -1)
        if event["kind"] == begins:
            since.setdefault(worker, event["t"])
        elif event["kind"] == ends and worker in since:
            found.append(Stretch(worker, since.pop(worker), event["t"]))
        elif event["kind"] == "run_started":
            found += [Stretch(open_one, begin, last) for open_one, begin in since.items()]
            since.clear()
        last = event["t"]
    found += [Stretch(worker, begin, secs) for worker, begin in since.items()]
    return tuple(sorted(found, key=lambda stretch: (stretch.worker, stretch.begin)))


def _stalls(record: Record, phases: Sequence[PhaseBar]) -> tuple[Stall, ...]:
    switches = {event["phase"]: event for event in record.events if event["kind"] == "switch"}
    stalls = []
    for before, after in itertools.pairwise(phases):
        event = switches.get(after.phase)
        timeline_secs = record.stall_secs.get(after.phase)
        if event is None and timeline_secs is None:
            continue
        # A chief that died during the switch left an event without its figures.
        told = {} if event is None else {stage: event[f"{stage}_secs"] for stage in STAGES}
        stages = {} if None in told.values() else {stage: float(secs) for stage, secs in told.items()}
        secs = timeline_secs if event is None or event["stall_secs"] is None else event["stall_secs"]
        if stages:
            stages["rest"] = max((secs or 0.0) - sum(stages.values()), 0.0)
        stalls.append(
            Stall(
                phase=after.phase,
                before=before.protocol,
                after=after.protocol,
                reason=after.reason,
                units=after.units,
                secs=secs,
                stages=stages,
                compile_secs=event["compile_secs"] if event else None,
                commit_secs=event["commit_secs"] if event else None,
                timeline_secs=timeline_secs,
            )
        )
    return tuple(stalls)


def _busy(trace: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return each worker's seconds by span name; time inside an inner span is counted once, as the inner one's.

    Work in the background of the training took none of them.
    """
    names = {row["pid"]: row["args"]["name"] for row in trace if row["name"] == "process_name"}
    rows: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for span in trace:
        if span["ph"] == "X" and not span["cat"].startswith(BESIDE) and names.get(span["pid"], "").startswith("worker"):
            rows[names[span["pid"]]].append(span)
    return {role: _own_secs(rows[role]) for role in sorted(rows, key=lambda role: int(role.split()[-1]))}


def _own_secs(spans: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    secs: dict[str, float] = defaultdict(float)
    enclosing: list[tuple[float, str]] = []
    for span in sorted(spans, key=lambda span: (span["ts"], -span["dur"])):
        name = span["name"].replace("_", " ")
        while enclosing and enclosing[-1][0] <= span["ts"]:
            enclosing.pop()
        if enclosing:
            secs[enclosing[-1][1]] -= min(span["dur"], enclosing[-1][0] - span["ts"]) / 1e6
        secs[name] += span["dur"] / 1e6
        enclosing.append((span["ts"] + span["dur"], name))
    return {name: max(value, 0.0) for name, value in secs.items()}


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the dotted keys that do not have one value in all of these configurations, in order."""
    flat = [flattened(config) for config in configs]
    keys = dict.fromkeys(key for values in flat for key in values)
    return [key for key in keys if len({values.get(key, "-") for values in flat}) > 1]
