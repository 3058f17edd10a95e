"""What each protocol does on one small cluster in virtual time: who computed, pushed, waited and averaged when.

`docs/protocols.md` compares the protocols on it, in figures (`benchmarks/protocol_figure.py`) and in its table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from benchmarks.virtual import quiet
from configs import tally
from hybridsync import protocols
from hybridsync.config import RunConfig
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Report, Span
from hybridsync.lab.simulator.arithmetic import Sizes, Weightless
from hybridsync.lab.simulator.cluster import Cluster, Device, Link, Scenario
from hybridsync.lab.simulator.event_loop import Loop, VirtualClock
from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster
from hybridsync.lab.simulator.simulated_process import Process
from hybridsync.lab.simulator.watch import Units, Watch
from hybridsync.protocols.modes import GROUP
from hybridsync.telemetry.recorder import Recorder
from hybridsync.training.run import Run

NUM_WORKERS = 4
FAST_SECS, SLOW_SECS, TRANSFER_SECS = 0.1, 0.32, 0.02
SIZES = Sizes(gradient=1_000_000, parameters=1_000_000, state=1_000_000)
LINK = Link(latency_secs=1e-3, bytes_per_sec=SIZES.parameters / TRANSFER_SECS)
SCENARIO = Scenario(
    cluster=Cluster(devices=(Device(FAST_SECS),) * 3 + (Device(SLOW_SECS),), worker_link=LINK, server_link=LINK)
)
"""Three workers that are alike and one that is slow; every port passes the parameters in a fifth of a unit."""


class Stretch(NamedTuple):
    """Something of one worker, in seconds of the phase.

    Args:
      kind: "compute", "push", "held", "pull" or "average".
      note: of a computed unit, the staleness of its gradient when it was applied, or "x" where it was dropped.
    """

    worker: int
    kind: str
    begin: float
    end: float
    note: str = ""


@dataclass(frozen=True)
class Update:
    """An update by the server: when, and of how many units."""

    at: float
    num_units: int


@dataclass(frozen=True)
class Timeline:
    """What happened in one phase.

    Args:
      spec: the protocol, as a plan writes it.
      stretches: of all workers.
      updates: of the server; none where workers hold the state.
      averages: of replicas or gradients: when they ended, and whose they were.
    """

    spec: str
    stretches: tuple[Stretch, ...]
    updates: tuple[Update, ...]
    averages: tuple[tuple[float, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Cost:
    """What a protocol comes to on the cluster.

    Args:
      units_per_sec: applied.
      staleness: the most that was seen, in updates; None where every worker has a replica of its own.
      traffic: moved for each applied unit, in sizes of the parameters.
      dropped: share of the computed units.
    """

    units_per_sec: float
    staleness: int | None
    traffic: float
    dropped: float


class _Seen(Watch):
    """Notes what the spans of the workers do not tell: when a push came and was answered, what became of it."""

    def __init__(self) -> None:
        self.spans: dict[int, list[Span]] = defaultdict(list)
        self.arrived_at: dict[int, list[float]] = defaultdict(list)
        self.answers: dict[int, list[tuple[float, Push, str]]] = defaultdict(list)
        self.staleness: dict[int, int] = {}
        self.updates: list[Update] = []

    def reported(self, report: Report) -> None:
        if report.role == "worker":
            self.spans[report.id] += report.spans

    def arrived(self, server: Process, push: Push) -> None:
        self.arrived_at[push.worker].append(self._now)

    def acknowledged(self, server: Process, push: Push, reply: PushReply) -> None:
        if push.units:
            self.answers[push.worker].append((self._now, push, reply.dropped))

    def applied(self, process: Process, phase: Phase, sequence: int, pushes: tuple[Push, ...], units: Units) -> None:
        self.staleness.update((unit, sequence - 1 - push.base) for push in pushes for unit in push.units)
        if pushes:
            self.updates.append(Update(self._now, len(units)))

    @property
    def _now(self) -> float:
        assert self.simulated is not None
        return self.simulated.loop.now


def timeline_of(spec: str, secs: float) -> Timeline:
    """Return the first `secs` seconds of a phase under `spec`."""
    seen = _Seen()
    _simulated(spec, 400, seen, keeps_spans=True)
    start = min(span.start for spans in seen.spans.values() for span in spans)
    stretches = [stretch for worker in sorted(seen.spans) for stretch in _stretches(seen, worker)]
    stretches += list(_averages(seen))
    return Timeline(
        spec,
        tuple(
            stretch._replace(begin=stretch.begin - start, end=stretch.end - start)
            for stretch in stretches
            if stretch.begin < start + secs
        ),
        tuple(Update(update.at - start, update.num_units) for update in seen.updates if update.at < start + secs),
        tuple(
            (end - start, tuple(begins)) for _, end, begins in _joint(seen) if len(begins) > 1 and end < start + secs
        ),
    )


@cache
def cost_of(spec: str) -> Cost:
    """Return what a phase of at least 50 updates costs under `spec`."""
    seen, protocol = _Seen(), protocols.parse(spec)
    workload = max(2_000, 50 * protocol.units_per_update(NUM_WORKERS))
    simulated, seconds = _simulated(spec, workload, seen, keeps_spans=False)
    dropped = simulated.chief.state.ledger.counts().dropped
    return Cost(
        workload / seconds,
        None if protocol.mode is GROUP else max(seen.staleness.values(), default=0),
        simulated.network.num_bytes / SIZES.parameters / workload,
        dropped / (workload + dropped),
    )


def _simulated(spec: str, workload: int, watch: Watch, *, keeps_spans: bool) -> tuple[SimulatedCluster, float]:
    config = quiet(RunConfig(workload=workload, unit_size=1, workers=NUM_WORKERS, plan=spec))
    run = Run(config, tally.task(config), tally.optimizer(config), None)  # neither is looked at
    loop = Loop()
    recorder = Recorder.null(VirtualClock(loop))
    simulated = SimulatedCluster(run, SCENARIO, Weightless(SIZES), recorder, loop, keeps_spans=keeps_spans, watch=watch)
    return simulated, simulated.run().seconds


def _stretches(seen: _Seen, worker: int) -> Iterator[Stretch]:
    """Return what a worker computed and what went between it and the server."""
    arrived, answered = iter(seen.arrived_at[worker]), iter(seen.answers[worker])
    notes: list[str] = []
    for span in (span for span in seen.spans[worker] if span.name in ("push_pull", "push")):
        begin, came, (answer, push, dropped) = span.start, next(arrived), next(answered)
        notes += ["x" if dropped else str(seen.staleness.get(unit, "")) for unit in push.units]
        yield Stretch(worker, "push", begin, came)
        yield Stretch(worker, "held", came, answer)
        if span.name == "push_pull":
            yield Stretch(worker, "pull", answer, begin + span.secs)
    noted = iter(notes)
    for span in seen.spans[worker]:
        if span.name == "compute":
            yield Stretch(worker, "compute", span.start, span.start + span.secs, next(noted, ""))
        elif span.name == "pull":
            yield Stretch(worker, "pull", span.start, span.start + span.secs)


def _averages(seen: _Seen) -> Iterator[Stretch]:
    for begin, end, begins in _joint(seen):
        for worker in begins:
            yield Stretch(worker, "average", begin, end)


def _joint(seen: _Seen) -> Iterator[tuple[float, float, dict[int, float]]]:
    """Return when the averages began and ended, and who began to wait for them when."""
    found: dict[float, dict[int, float]] = defaultdict(dict)
    for worker, spans in sorted(seen.spans.items()):
        for span in spans:
            if span.name in ("average", "mix"):
                found[round(span.start + span.secs, 9)][worker] = span.start
    for end, begins in sorted(found.items()):
        yield max(begins.values()), end, begins
