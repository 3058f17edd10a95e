"""A worker, put together once for threads and for processes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from hybridsync.core.clock import Clock
from hybridsync.emulation.device import Emulation
from hybridsync.emulation.link_delays import emulated_rings
from hybridsync.emulation.ring_delays import CollectiveSizes, DelayedCommunicator, check_rings, emulates_rings
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import WorkPort
from hybridsync.protocols.modes import GROUP, LOCKSTEP, SERVER
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.run import Run
from hybridsync.worker.context import WorkerContext
from hybridsync.worker.group_runner import group_runner
from hybridsync.worker.link import ServerLink
from hybridsync.worker.lockstep_runner import lockstep_runner
from hybridsync.worker.loop import WorkerLoop
from hybridsync.worker.phase_runner import CommunicatorOf
from hybridsync.worker.prefetch import Prefetch
from hybridsync.worker.replica import Replica
from hybridsync.worker.self_probe import Measuring
from hybridsync.worker.server_runner import ServerRunner
from hybridsync.worker.stats import WorkerRecorder
from hybridsync.worker.unit_tracer import UnitTracer


def worker_recorder(run: Run, worker: int, clock: Clock) -> WorkerRecorder:
    """Return what notes the work of one worker."""
    config = run.config
    return WorkerRecorder(worker, clock, config.telemetry.timeline, config.policy.detects, config.hang)


def unit_tracer(run: Run, name: str) -> UnitTracer | None:
    """Return what traces units of a process, into the folder of that name; None where none are to be traced."""
    units = run.config.telemetry.traced
    return UnitTracer(units, run.workdir / "trace" / name) if units and run.workdir is not None else None


def worker_context(
    run: Run, worker: int, programs: Programs, recorder: WorkerRecorder, chief: WorkPort, *, tracer: UnitTracer | None
) -> WorkerContext:
    """Return how a worker computes units.

    Args:
      run: run that the worker takes part in.
      worker: id of the worker.
      programs: the compiled programs.
      recorder: recorder of this worker.
      chief: the chief, which leases units to the worker.
      tracer: traces units; the workers of one process share it.
    """
    emulation = Emulation(run.config.emulation, run.config.workload)
    prefetch = Prefetch(programs.batch) if getattr(run.task.source, "threads", 0) else None
    return WorkerContext(worker, chief, programs, recorder, emulation, prefetch=prefetch, tracer=tracer)


def worker_loop(
    run: Run,
    context: WorkerContext,
    chief: WorkPort,
    replica: Replica,
    *,
    communicator_of: CommunicatorOf,
    link_of: Callable[[Phase], ServerLink],
    ahead: Executor | None = None,
) -> WorkerLoop:
    """Return the loop of one worker over its phases, with a runner for each mode.

    Args:
      run: run that the worker takes part in.
      context: how the worker computes units.
      chief: the chief, as in the context.
      replica: replica of this worker (shared by all workers of one process).
      communicator_of: the phase -> how its members sum and average.
      link_of: the phase -> the link to its servers.
      ahead: runs lease renewals in the background of the training; None asks when there is nothing left.
    """
    worker, programs, recorder = context.worker, context.programs, context.recorder
    communicator_of = emulated_collectives(run, programs, communicator_of, recorder.clock)
    logs = run.config.telemetry.apply_log
    runners = {
        LOCKSTEP: lockstep_runner(context, replica, communicator_of, ahead, together=not logs),
        SERVER: ServerRunner(context, link_of, ahead),
        GROUP: group_runner(context, chief, replica, communicator_of, logs=logs),
    }
    probe = Measuring(worker, programs, replica, recorder, context.emulation)
    return WorkerLoop(worker, chief, runners, replica=replica, recorder=recorder, clock=recorder.clock, measuring=probe)


def emulated_collectives(run: Run, programs: Programs, communicator_of: CommunicatorOf, clock: Clock) -> CommunicatorOf:
    """Return a worker's collectives behind the links that a run emulates, or as they are where it emulates none.

    Args:
      run: run that the worker takes part in.
      programs: the compiled programs.
      communicator_of: the phase -> how its members sum and average.
      clock: paces the collectives.

    Raises:
      ConfigError: members would be given up as lost on such links.
    """
    emulation = run.config.emulation
    if not emulates_rings(emulation):
        return communicator_of
    sizes = CollectiveSizes(
        programs.contribution_layout.nbytes, programs.parameters_layout.nbytes, programs.state_layout.nbytes
    )
    averages = any(stage.mode.has_group_rounds for stage in run.stages)
    check_rings(emulation, run.config.workers, max(sizes.contribution, sizes.state) if averages else sizes.contribution)
    rings = emulated_rings(emulation)
    return lambda phase: DelayedCommunicator(communicator_of(phase), phase.members, rings, sizes, clock)
