"""Simulate one run: what `hybridsync simulate` and the benchmarks call.

result = simulate(run, scenario, seed=1)
result.seconds, result.units_per_sec, result.summary.staleness
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from hybridsync import protocols
from hybridsync.config import RunConfig, Straggler
from hybridsync.core.errors import ConfigError, WorkdirError
from hybridsync.core.plan import PhaseId
from hybridsync.lab.simulator.arithmetic import Arithmetic, Sizes, Unreplayable, Weightless
from hybridsync.lab.simulator.cluster import Device, Scenario
from hybridsync.lab.simulator.decision_log import DecisionLog, MirroredApplyLog, MirroredEvents
from hybridsync.lab.simulator.deferred import DeferredArithmetic, check_plain
from hybridsync.lab.simulator.event_loop import Loop, VirtualClock
from hybridsync.lab.simulator.gradients import RealArithmetic, evaluator, sizes_of_programs
from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster
from hybridsync.lab.simulator.study import Gradients
from hybridsync.policies.plan_checks import checked_order
from hybridsync.storage.apply_log import APPLY_LOG, FileApplyLog
from hybridsync.storage.durable import WorkdirLock, make_directory
from hybridsync.telemetry.events import EVENTS_FILE, EventLog
from hybridsync.telemetry.metrics import MetricsLog
from hybridsync.telemetry.progress import NullProgress, ProgressSink
from hybridsync.telemetry.recorder import Recorder
from hybridsync.telemetry.run_figures import FollowedEvents, FollowedMetrics, RunFigures
from hybridsync.telemetry.summary import Summary, write_config
from hybridsync.telemetry.tensorboard import Board
from hybridsync.telemetry.timeline import Timeline, TimelineSink
from hybridsync.training.run import Run
from hybridsync.workdir.opening import PhaseIdsInMemory

STILL_SECS = 1_200.0
"""A simulated run in which nothing was applied for so long never goes on: the chief's longest wait is half of it."""


@dataclass(frozen=True)
class Result:
    """Holds the result of a simulated run.

    Args:
      seed: random seed of every draw, and of the run.
      summary: as a real run leaves it; its seconds are virtual.
      num_bytes: number of bytes moved between the roles.
      fingerprint: fingerprint of the final state; the number of its updates where no gradients are computed.
      events: number of events that were carried out.
    """

    seed: int
    summary: Summary
    num_bytes: int
    fingerprint: str
    events: int

    @property
    def seconds(self) -> float:
        """Virtual seconds from the first unit leased."""
        return self.summary.seconds

    @property
    def units_per_sec(self) -> float:
        """Units applied a virtual second."""
        return self.summary.units.applied / self.seconds

    @property
    def examples_per_sec(self) -> float:
        """Examples applied a virtual second."""
        return self.summary.examples / self.seconds

    @property
    def stall_secs(self) -> float:
        """Seconds that the planned switches cost together."""
        return math.fsum(switch["stall_secs"] or 0.0 for switch in self.summary.switches)


def simulate(
    run: Run,
    scenario: Scenario | None = None,
    *,
    seed: int | None = None,
    gradients: Gradients = "none",
    workdir: Path | None = None,
    events: TextIO | None = None,
    progress: ProgressSink | None = None,
) -> Result:
    """Simulate a run to its end.

    Args:
      run: what to run.
      scenario: the cluster, and the incidents of the run; None is an even cluster of equal workers.
      seed: random seed of the run and of every draw; None takes the configuration's.
      gradients: "real" computes each on the version that its worker would have held, "compiled" as well, but in blocks
        behind the schedule (see `hybridsync.lab.simulator.deferred`), "none" runs time alone.
      workdir: a fresh directory for the files that a real run writes; None takes the run's own, or writes none.
      events: receives every decision as a line of JSON (see `hybridsync.lab.simulator.decision_log`).
      progress: shows how far the run is.

    Raises:
      ConfigError: the scenario names a role that the run does not have, a switch that it cannot make, or leaves no
        worker that could continue; or compiled blocks cannot compute the run.
      WorkdirError: the workdir holds a run already, or cannot be written.
      HybridSyncError: the run could not go on.
    """
    config = run.config if seed is None else dataclasses.replace(run.config, seed=seed)
    run = dataclasses.replace(run, config=config, workdir=workdir or run.workdir)
    run.check()
    scenario = _emulated(scenario or Scenario(), config.emulation.compute_secs)
    scenario.check(config.workers, config.servers)
    for switch in scenario.switches:
        checked_order(switch.spec, config)
    if run.workdir is None:
        return _simulate(run, scenario, gradients, events, progress)
    _make_fresh(run.workdir)
    with WorkdirLock(run.workdir):
        optimizer = run.optimizer.recorded_values(config.unit_size, config.workload)
        write_config(run.workdir, config, run.file, trained={"optimizer": optimizer})
        return _simulate(run, scenario, gradients, events, progress)


def sizes_of(run: Run) -> Sizes:
    """Return the bytes of the task's messages and states, by abstract evaluation: nothing is computed."""
    return sizes_of_programs(run.programs(donate_parameters=False))


def _simulate(
    run: Run, scenario: Scenario, gradients: Gradients, file: TextIO | None, progress: ProgressSink | None
) -> Result:
    config, loop = run.config, Loop()
    arithmetic, evaluator = _arithmetic(run, gradients, scenario)
    recorder = _record(run, VirtualClock(loop), progress or NullProgress())
    phase_ids = _SlowPhaseIds(loop, scenario.cluster.costs.reserve_secs)
    options: dict[str, Any] = {
        "seed": config.seed,
        "phase_ids": phase_ids,
        "evaluator": evaluator,
        "logs_updates": run.workdir is not None and config.telemetry.apply_log,
        "keeps_spans": run.workdir is not None and config.telemetry.timeline,
    }
    if file is not None:
        decision_log = DecisionLog(file, loop)
        recorder = dataclasses.replace(recorder, events=MirroredEvents(recorder.events, decision_log))
        options |= {"watch": decision_log, "logs_updates": True, "told": partial(MirroredApplyLog, decision_log)}
    simulated = SimulatedCluster(run, scenario, arithmetic, recorder, loop, **options)
    recorder.events.write(
        "run_started",
        phase=0,
        reason="start",
        simulated=True,
        runtime="simulated",
        plan=config.plan,
        seed=config.seed,
        gradients=gradients,
    )
    still_secs = max(STILL_SECS, 100 * _slowest_secs(scenario, config, arithmetic.sizes.state))
    loop.at(still_secs, _check_moves, simulated, still_secs, 0)
    try:
        summary = simulated.run()
    except Unreplayable as error:
        raise ConfigError(str(error)) from None
    finally:
        recorder.close()
    if summary.exit == "preempted" and scenario.preempt_secs == math.inf:
        raise KeyboardInterrupt  # the run has met it and stopped, though its scenario asks for no stop
    if run.workdir is not None and gradients != "none":
        _leave(run.workdir, simulated)
    return Result(
        config.seed,
        summary,
        simulated.network.num_bytes,
        arithmetic.fingerprint(simulated.final),
        loop.num_calls,
    )


def _leave(workdir: Path, simulated: SimulatedCluster) -> None:
    """Write down the final state and the updates, as far as they were noted, where a real run has them."""
    from hybridsync.storage.checkpoints import CheckpointStore
    from hybridsync.workdir.resuming import CHECKPOINTS

    saved, final = simulated.workdir.commits[-1], simulated.final
    store = CheckpointStore(workdir / CHECKPOINTS)
    try:
        store.save(final, units=saved.snapshot.held.units, ledger=saved.ledger, run=saved.run)
    finally:
        store.close()
    log = FileApplyLog(workdir / APPLY_LOG)
    for phase_number, entries in itertools.groupby(simulated.log, key=lambda entry: entry.phase):
        for entry in entries:
            log.write(entry)
        if phase_number in simulated.workdir.ends:
            log.record_left(simulated.workdir.ends[phase_number])
    log.flush()


def _arithmetic(run: Run, gradients: Gradients, scenario: Scenario) -> tuple[Arithmetic, Any]:
    """Return what computes, and what evaluates a state."""
    if gradients == "none":
        return Weightless(sizes_of(run)), None
    if gradients == "real":
        return RealArithmetic(run), evaluator(run)
    for switch in scenario.switches:
        check_plain(protocols.parse(switch.spec), run.config.workers)
    return DeferredArithmetic(run), evaluator(run)


def _record(run: Run, clock: VirtualClock, progress: ProgressSink) -> Recorder:
    """Return where the record goes: what a real run writes, except what names a day."""
    if run.workdir is None:
        return Recorder.null(clock, progress)
    events = EventLog(run.workdir, clock)
    spans = Timeline(run.workdir, events.elapsed) if run.config.telemetry.timeline else TimelineSink()
    figures = RunFigures(events.elapsed)
    metrics = FollowedMetrics(MetricsLog(run.workdir, events.elapsed), figures)
    return Recorder(FollowedEvents(events, figures), metrics, spans, progress=progress, board=Board(), figures=figures)


def _make_fresh(workdir: Path) -> None:
    try:
        make_directory(workdir)
    except OSError as error:
        raise WorkdirError(f"cannot create {workdir}: {error.strerror}; name another workdir") from None
    if (workdir / EVENTS_FILE).exists():
        raise WorkdirError(f"{workdir} holds a run already; a simulation needs a fresh workdir: name another")


def _emulated(scenario: Scenario, compute_secs: float) -> Scenario:
    """Return the scenario on devices that are busy for `compute_secs` at least, as emulated accelerators are."""
    cluster = scenario.cluster
    devices = tuple(_floored(device, compute_secs) for device in cluster.devices)
    return dataclasses.replace(scenario, cluster=dataclasses.replace(cluster, devices=devices))


def _floored(device: Device, compute_secs: float) -> Device:
    if device.trace:
        return dataclasses.replace(device, trace=tuple(max(secs, compute_secs) for secs in device.trace))
    return device if device.secs >= compute_secs else Device(compute_secs)


def _slowest_secs(scenario: Scenario, config: RunConfig, num_bytes: int) -> float:
    """Return about how long the slowest device takes for a unit, and the slowest link to carry bytes there and back."""
    slowest = max(max((device.secs, *device.trace)) for device in scenario.cluster.devices)
    slow = [one.slowness for one in (*scenario.slow, *Straggler.parse(config.emulation.stragglers))]
    compute = max((slowest, *(one.compute_secs(slowest) for one in slow)))
    return compute + 2 * max((0.0, *(one.transfer_secs(num_bytes) for one in slow)))


def _check_moves(simulated: SimulatedCluster, still_secs: float, before: int) -> None:
    """Look whether anything was applied since the last time, and look again later.

    Raises:
      ConfigError: nothing was.
    """
    applied = simulated.chief.state.ledger.num_applied
    if applied == before:
        raise ConfigError(
            f"nothing was applied for {still_secs:g} simulated seconds at unit {applied:,} of "
            f"{simulated.run_.config.workload:,}: somebody whom the run waits for never comes back; correct the "
            "scenario"
        )
    simulated.loop.after(still_secs, _check_moves, simulated, still_secs, applied)


class _SlowPhaseIds(PhaseIdsInMemory):
    """Numbers whose reservation takes the time of a durable file."""

    def __init__(self, loop: Loop, secs: float) -> None:
        super().__init__()
        self._loop, self._secs = loop, secs

    def reserve(self, above: int = 0) -> PhaseId:
        self._loop.run_until(self._loop.now + self._secs)
        return super().reserve(above)
