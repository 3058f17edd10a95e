"""Runs the lock-step phases of one worker, in a thread."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

import numpy as np

from hybridsync.collectives.backend import Communicator
from hybridsync.core.work_deadlines import COMPILE_SECS, UNLIMITED
from hybridsync.interfaces.phase import Phase
from hybridsync.worker.context import ProgramNumerics, WorkerContext
from hybridsync.worker.drive_threads import Carriers
from hybridsync.worker.lockstep_engine import LockstepEngine
from hybridsync.worker.member import PhaseMember
from hybridsync.worker.phase_runner import CommunicatorOf, PhaseRunner, PhaseWork
from hybridsync.worker.prefetch import Batch
from hybridsync.worker.replica import Replica
from hybridsync.worker.requests import (
    AllGather,
    AllReduce,
    ComputeUnit,
    EnterReplica,
    LeaseUnits,
    SendPart,
    UpdateReplica,
)


def lockstep_runner(
    context: WorkerContext,
    replica: Replica,
    communicator_of: CommunicatorOf,
    ahead: Executor | None,
    *,
    together: bool = True,
) -> PhaseRunner:
    """Return what runs lock-step phases for one worker.

    Args:
      context: context of this worker.
      replica: this worker's state (shared by all workers of one process).
      communicator_of: the phase -> its communicator.
      ahead: runs lease renewals in the background of the training; None asks when there is nothing left.
      together: whether one program may compute the gradients of all members of a process. Its last bits are not always
        those of a worker's own program, with which a run is computed again: not where there is an apply log.
    """

    def begin(member: PhaseMember, runner: PhaseRunner) -> PhaseWork:
        calls = _Calls(context, member.phase, replica, runner, together)
        numerics = ProgramNumerics(context.programs, calls.pack)
        engine = LockstepEngine(member, numerics, ahead=ahead is not None)
        return PhaseWork(engine, calls.carriers, {LeaseUnits: ahead} if ahead is not None else {})

    return PhaseRunner(context, replica, communicator_of, begin)


class _Calls:
    """Carries out the requests of one phase."""

    def __init__(
        self, context: WorkerContext, phase: Phase, replica: Replica, runner: PhaseRunner, together: bool
    ) -> None:
        self._context, self._replica, self._runner = context, replica, runner
        self._index, self._together = phase.members.index(context.worker), together
        self._watchdog = context.recorder.watchdog
        self._summing = self._watchdog.work("a lock-step step", UNLIMITED)  # the chief judges which member it waits for
        self._num_bytes = context.programs.contribution_layout.nbytes
        self._communicator: Communicator  # once it is entered

    @property
    def carriers(self) -> Carriers:
        """Carriers of each kind of request."""
        return {
            LeaseUnits: self._context.lease,
            EnterReplica: self._enter,
            ComputeUnit: self._compute,
            SendPart: self._context.send,
            AllReduce: self._all_reduce,
            AllGather: self._all_gather,
            UpdateReplica: self._update,
        }

    def pack(self, contribution: Any) -> bool:
        """Write a contribution where it is summed; returns whether it was found finite (see `Communicator.pack`)."""
        return self._communicator.pack(contribution)

    def _enter(self, request: EnterReplica) -> None:
        self._communicator = self._runner.enter(request.phase)
        with self._watchdog.work(f"the mesh of phase {request.phase.id}", COMPILE_SECS):
            self._communicator.enter()

    def _compute(self, request: ComputeUnit) -> Any:
        context, replica, communicator = self._context, self._replica, self._communicator
        joint_gradient = communicator.joint_gradient if request.together and self._together else None
        if joint_gradient is None:
            return context.gradient(replica.parameters(context.worker), request)

        def compute(batch: Batch) -> Any:
            context.recorder.joining()
            try:
                found = joint_gradient(self._index, request.unit, batch, replica.joint_parameters)
            finally:
                context.recorder.has_joined(communicator.met_at)
            if found is None:
                parameters = replica.parameters(context.worker)
                found = context.programs.gradient(parameters, request.unit, worker=context.worker, batch=batch)
            return found

        return context.gradient(replica.joint_parameters, request, compute=compute)

    def _all_reduce(self, request: AllReduce) -> tuple[Any, float]:
        if not request.num_units:  # else a gradient on its parameters has shown that the last update has ended
            self._replica.settle()
        with self._summing:
            total = self._communicator.sum(self._index, request.contribution)
            self._context.recorder.moved(self._num_bytes, self._num_bytes)
            return total, float(np.asarray(total["floats"]["weight"]))  # a third of what JAX takes for a float

    def _all_gather(self, request: AllGather) -> tuple[tuple[str, ...], ...]:
        with self._watchdog.work("the reasons of a lock-step step", UNLIMITED):
            return self._communicator.gather(self._index, request.reasons)

    def _update(self, request: UpdateReplica) -> None:
        self._replica.update(
            request.step,
            request.units,
            request.total,
            request.factor,
            slots=request.slots,
            dropped=request.dropped,
        )
