"""Fits the cluster of a simulation to what a real run left: its timeline, events and summary.

A worker's cycle in an asynchronous phase is compute + call, a lock-step step is the slowest member's compute + the
rest; the fit takes the means of both parts, without the worker's own injected slowness. Quantities that the run says
nothing about are not fitted and keep their defaults.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridsync.config import Straggler
from hybridsync.core.errors import WorkdirError
from hybridsync.emulation.ring_model import ring_secs
from hybridsync.interfaces.reports import READING, SEND
from hybridsync.lab.simulator.arithmetic import Sizes
from hybridsync.lab.simulator.cluster import Cluster, Costs, Device, Link, Scenario
from hybridsync.storage.durable import read_file
from hybridsync.telemetry.events import read_events
from hybridsync.telemetry.summary import read_config, read_summary
from hybridsync.telemetry.timeline import TIMELINE_FILE

ALIKE = 0.05
"""Workers whose devices differ by less than this share of their mean are of one kind."""
OUTLIER = 10.0
"""A stretch so many times the median is no part of a cycle: the timeline left something out, or a phase began."""
ROUNDED = 1e-4
"""Seconds by which a span may begin after the end of the one before it, and follow it at once: both were rounded."""


@dataclass(frozen=True)
class Stretch:
    """A span of one role, seconds of the run."""

    name: str
    path: str
    role: str
    id: int
    phase: int
    start: float
    secs: float

    @property
    def end(self) -> float:
        """Time at which it was over."""
        return self.start + self.secs


@dataclass(frozen=True)
class Measured:
    """Holds what a finished real run left.

    Args:
      workdir: workdir of the run.
      config: content of config.json.
      file: path of its configuration file.
      summary: content of summary.json.
      events: lines of events.jsonl.
      spans: spans of timeline.json, by start.
    """

    workdir: Path
    config: Mapping[str, Any]
    file: str
    summary: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]]
    spans: Sequence[Stretch]


@dataclass(frozen=True)
class Value:
    """One fitted figure.

    Args:
      name: name of the cluster's field.
      secs: fitted value in seconds; None if the run has no sample of it, and the default stays.
      spread: standard deviation of the samples.
      samples: number of samples.
    """

    name: str
    secs: float | None
    spread: float = 0.0
    samples: int = 0


@dataclass(frozen=True)
class Fitted:
    """A cluster like the one on which a run was made.

    Args:
      cluster: cluster to simulate.
      values: fitted values of the cluster.
      measured: the run that the values come from.
    """

    cluster: Cluster
    values: tuple[Value, ...]
    measured: Measured

    def onto(self, scenario: Scenario) -> Scenario:
        """Return the scenario on this cluster."""
        return dataclasses.replace(scenario, cluster=self.cluster)


def read_measured(workdir: Path) -> Measured:
    """Return what the run in `workdir` left.

    Raises:
      WorkdirError: there is no finished real run with a timeline.
    """
    if not os.path.isdir(workdir):  # False, where a Path raises, in a folder without permission to read
        raise WorkdirError(f"there is no workdir {workdir}; give --calibrate the --workdir of a run")
    config, summary = read_config(workdir), read_summary(workdir)
    if config is None or summary is None or summary["exit"] != "completed":
        raise WorkdirError(f"{workdir} holds no completed run; calibrate on one that has ended")
    if config["file"] is None:
        raise WorkdirError(f"the run in {workdir} had no configuration file; calibrate on one of hybridsync train")
    try:
        trace = json.loads(read_file(workdir / TIMELINE_FILE))["traceEvents"]
        found = sorted(map(_stretch, (span for span in trace if span["ph"] == "X")), key=lambda span: span.start)
        spans = _with_reads(found)
    except FileNotFoundError:
        raise WorkdirError(f"{workdir} has no {TIMELINE_FILE}; run with telemetry.timeline=true") from None
    except (ValueError, KeyError, TypeError) as error:
        raise WorkdirError(f"{workdir / TIMELINE_FILE} is damaged ({error!r}); name another run") from None
    return Measured(
        workdir, config["config"], config["file"], summary=summary, events=read_events(workdir), spans=spans
    )


def fit(measured: Measured, sizes: Sizes) -> Fitted:
    """Return the cluster that a run was made on, as far as the run tells.

    Args:
      measured: measurements of the run.
      sizes: sizes of its messages.

    Raises:
      WorkdirError: no worker computed anything that the timeline kept.
    """
    spans, base = measured.spans, Cluster()
    devices, values = _devices(measured)
    num_servers = int(measured.config.get("servers", 1))
    link = base.worker_link
    applies = _mean("costs.apply_secs", (span.secs * num_servers for span in spans if span.name == "apply"))
    slow = _slow(measured)
    calls = _mean("an asynchronous unit without its compute", _calls([span for span in spans if span.id not in slow]))
    steps = _mean("a lock-step step without its compute", _steps(spans))
    commits = _mean("costs.commit_secs", (event["secs"] for event in measured.events if event["kind"] == "checkpoint"))
    switches = [event for event in measured.events if event["kind"] == "switch"]
    snapshots = _mean("costs.capture_secs", (event["capture_secs"] for event in switches))
    reserves = _mean("costs.reserve_secs", (event["reserve_secs"] for event in switches))
    returns = _mean("costs.restart_secs", _returns(measured.events))
    costs = base.costs
    server_link = base.server_link
    apply_secs = costs.apply_secs if applies.secs is None else applies.secs
    emulation = measured.config.get("emulation", {})
    if calls.secs is not None:  # there and back again, through both ports
        slower = (emulation.get("link_bytes_per_sec"), emulation.get("port_bytes_per_sec"))
        moved = (sizes.gradient + sizes.parameters) / min([link.bytes_per_sec, *filter(None, slower)])
        moved += 2 * emulation.get("latency_secs", 0.0)  # a simulation of this run emulates its links as well
        latency = (calls.secs - apply_secs / num_servers - moved) / 2 - link.latency_secs
        server_link = dataclasses.replace(server_link, latency_secs=max(latency, 0.0))
    phases = [event for event in measured.events if event["kind"] == "phase_entered"]
    num_members = max((len(phase["members"]) for phase in phases), default=1)
    step_secs = costs.step_secs
    if steps.secs is not None:
        emulated = emulation.get("link_bytes_per_sec") or math.inf, emulation.get("latency_secs", 0.0)
        slower = min(emulated[0], link.bytes_per_sec), emulated[1] + link.latency_secs
        step_secs = steps.secs - costs.update_secs - ring_secs(sizes.gradient, num_members, *slower)
        if step_secs < 0:  # faster than the network was thought to be
            link = Link(link.latency_secs * 0.1, link.bytes_per_sec * 10)
            step_secs = max(steps.secs - costs.update_secs - ring_secs(sizes.gradient, num_members, *emulated), 0.0)
    fitted = {
        "apply_secs": apply_secs,
        "step_secs": step_secs,
        "commit_secs": _or(commits, costs.commit_secs),
        "capture_secs": _or(snapshots, costs.capture_secs),
        "reserve_secs": _or(reserves, costs.reserve_secs),
        "restart_secs": _or(returns, costs.restart_secs),
    }
    cluster = Cluster(devices, link, server_link, Costs(**{name: _rounded(secs) for name, secs in fitted.items()}))
    return Fitted(cluster, (*values, applies, calls, steps, commits, snapshots, reserves, returns), measured)


def _with_reads(spans: Sequence[Stretch]) -> list[Stretch]:
    """Return the spans in order, with what a worker read as a part of the computation behind it: both are its own."""
    found: list[Stretch] = []
    reads: dict[int, Stretch] = {}
    for span in spans:
        if span.name == READING:
            reads[span.id] = span
        elif span.name == "compute" and span.id in reads and span.start - reads[span.id].end < ROUNDED:
            start = reads.pop(span.id).start
            found.append(dataclasses.replace(span, start=start, secs=span.end - start))
        else:
            found.append(span)
    return found


def _slow(measured: Measured) -> set[int]:
    """Return the workers that were made slow."""
    return {each.worker for each in Straggler.parse(measured.config.get("emulation", {}).get("stragglers", ""))}


def _devices(measured: Measured) -> tuple[tuple[Device, ...], list[Value]]:
    """Return the workers' devices: one where they are alike, else one for each.

    A worker that was made slow is taken to have the mean device of the others; where all were, their delays are taken
    off what they took.
    """
    computed: dict[int, list[float]] = {}
    for span in measured.spans:
        if span.name == "compute":
            computed.setdefault(span.id, []).append(span.secs)
    if not computed:
        raise WorkdirError(f"the timeline in {measured.workdir} holds no computation; calibrate on a longer run")
    computed = {worker: _usual(secs) for worker, secs in sorted(computed.items())}
    slow = _slow(measured)
    even = {worker: secs for worker, secs in computed.items() if worker not in slow}
    if not even:
        raise WorkdirError(
            f"every worker of {measured.workdir} was made slow; calibrate on a run whose --stragglers leaves one out"
        )
    means = {worker: statistics.fmean(secs) for worker, secs in even.items()}
    overall = statistics.fmean(means.values())
    pooled = list(itertools.chain.from_iterable(even.values()))
    if max(abs(mean - overall) for mean in means.values()) <= ALIKE * overall:
        return (_device(pooled),), [_mean("devices, secs of a unit", pooled)]
    whole = _device(pooled)
    workers = range(int(measured.config.get("workers", len(computed))))
    devices = tuple(_device(even[worker]) if worker in even else whole for worker in workers)
    return devices, [_mean(f"device of worker {worker}, secs of a unit", even[worker]) for worker in even]


def _device(secs: Sequence[float]) -> Device:
    mean = statistics.fmean(secs)
    return Device(_rounded(mean), round(statistics.pstdev(secs) / mean, 4))


def _calls(spans: Sequence[Stretch]) -> list[float]:
    """Return what each asynchronous unit took beside its compute, until the next one's began."""
    found: list[float] = []
    for computes in _rows(spans, "compute", "server"):
        found += [max(after.start - before.end, 0.0) for before, after in itertools.pairwise(computes)]
    return _usual(found)


def _steps(spans: Sequence[Stretch]) -> list[float]:
    """Return what each lock-step step took beside the slowest member's compute, and what it was made to wait for."""
    found: list[float] = []
    for phase in sorted({span.phase for span in spans if span.name == "step"}):
        here = [span for span in spans if span.phase == phase]
        computes = _rows(_with_sends(here), "compute", "sync")
        if not computes or len({len(row) for row in computes}) > 1:
            continue  # a member was lost: its last steps cannot be distinguished
        for now, then in itertools.pairwise(zip(*computes, strict=True)):
            cycle = min(span.start for span in then) - min(span.start for span in now)
            found.append(max(cycle - max(span.secs for span in now), 0.0))
    return _usual(found)


def _with_sends(spans: Sequence[Stretch]) -> list[Stretch]:
    """Return the lock-step computations in order, each with what its worker's slow link took behind it."""
    found: list[Stretch] = []
    newest: dict[int, int] = {}
    for span in (span for span in spans if span.path == "sync" and span.name in ("compute", SEND)):
        if span.name == "compute":
            newest[span.id] = len(found)
            found.append(span)
        elif span.id in newest:
            computed = found[newest[span.id]]
            found[newest[span.id]] = dataclasses.replace(computed, secs=span.end - computed.start)
    return found


def _rows(spans: Sequence[Stretch], name: str, path: str) -> list[list[Stretch]]:
    """Return the spans of each worker in each phase."""
    rows: dict[tuple[int, int], list[Stretch]] = {}
    for span in spans:
        if span.name == name and span.path == path:
            rows.setdefault((span.phase, span.id), []).append(span)
    return [rows[key] for key in sorted(rows)]


def _returns(events: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return how long each lost worker was away."""
    lost: dict[int, float] = {}
    found = []
    for event in events:
        if event["kind"] == "role_lost" and event["role"] == "worker":
            lost[event["id"]] = event["t"]
        elif event["kind"] == "role_started" and event["role"] == "worker" and event["id"] in lost:
            found.append(event["t"] - lost.pop(event["id"]))
    return found


def _usual(values: Sequence[float]) -> list[float]:
    """Return the values without those that are no part of what is measured."""
    if not values:
        return []
    limit = OUTLIER * statistics.median(values)
    return [value for value in values if value <= limit]


def _mean(name: str, values: Iterable[float | None]) -> Value:
    """Return what is known of some values; None stands for one that nobody has measured."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return Value(name, None)
    return Value(name, statistics.fmean(known), statistics.pstdev(known), len(known))


def _or(value: Value, default: float) -> float:
    return default if value.secs is None else value.secs


def _rounded(secs: float) -> float:
    """Return seconds to 4 digits: more would say what no measurement knows."""
    return float(f"{secs:.4g}")


def _stretch(span: Mapping[str, Any]) -> Stretch:
    pid = span["pid"]
    role, first = ("worker", 10_000) if pid >= 10_000 else ("server", 1_000) if pid >= 1_000 else ("chief", 0)
    return Stretch(
        span["name"],
        span["cat"],
        role,
        id=pid - first,
        phase=span["args"]["phase"],
        start=span["ts"] / 1e6,
        secs=span["dur"] / 1e6,
    )
