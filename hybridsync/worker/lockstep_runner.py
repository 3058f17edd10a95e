"""Runs the lock-step phases of one worker, in a thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from hybridsync.collectives.thread_sum import Collective
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.plan import Epoch
from hybridsync.core.watching import COMPILE_SECS, UNLIMITED
from hybridsync.interfaces.phase import Phase
from hybridsync.worker.context import ProgramNumerics, WorkerContext
from hybridsync.worker.drive_threads import Beside, Carriers, drive
from hybridsync.worker.lease_queue import LeaseQueue
from hybridsync.worker.lockstep_engine import LockstepEngine
from hybridsync.worker.member import PhaseMember
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
from hybridsync.worker.revocation import Revocation


class LockstepRunner:
    """Runs lock-step phases for one worker.

    Args:
      context: who it is.
      replica: this worker's state (shared by all workers of one process).
      collective_of: the phase -> its members' collective.
      ahead: runs lease renewals beside the training; None asks when there is nothing left.
    """

    def __init__(
        self,
        context: WorkerContext,
        replica: Replica,
        collective_of: Callable[[Phase], Collective],
        ahead: Executor | None,
    ) -> None:
        self._context, self._replica, self._collective_of, self._ahead = context, replica, collective_of, ahead
        self._numerics = ProgramNumerics(context.programs)
        self.stream: LeaseQueue | None = None
        self._revocation: Revocation[Collective] = Revocation()

    def run(self, phase: Phase) -> None:
        """Take part in `phase` until its stream of units ends.

        Raises:
          PhaseRevoked: the phase was revoked, or lost a member.
          RoleLost, WaitTimeout: whoever holds the starting state, or a member, did not answer.
        """
        self._revocation.begin(phase.epoch)
        member = PhaseMember(self._context.worker, phase, self._context.recorder)
        engine = LockstepEngine(member, self._numerics, ahead=self._ahead is not None)
        self.stream = engine.leases
        calls = _Calls(self._context, phase, self._replica, self._join)
        beside = {LeaseUnits: Beside(self._ahead)} if self._ahead is not None else {}
        drive(engine.run(), calls.carriers, beside, member.now)

    def revoke(self, epoch: Epoch, reason: str) -> None:
        """Make the phase under way raise PhaseRevoked, if it is `epoch`; called from another thread."""
        self._revocation.revoke(epoch, reason)

    def _join(self, phase: Phase) -> Collective:
        return self._revocation.attach(self._collective_of(phase))


class _Calls:
    """Carries out the requests of one phase."""

    def __init__(
        self, context: WorkerContext, phase: Phase, replica: Replica, join: Callable[[Phase], Collective]
    ) -> None:
        self._context, self._replica, self._join = context, replica, join
        self._index = phase.members.index(context.worker)
        self._watchdog = context.recorder.watchdog
        self._collective: Collective  # once it is entered

    @property
    def carriers(self) -> Carriers:
        """What carries out each kind of request."""
        return {
            LeaseUnits: self._context.lease,
            EnterReplica: self._enter,
            ComputeUnit: self._compute,
            SendPart: self._context.send,
            AllReduce: self._all_reduce,
            AllGather: self._all_gather,
            UpdateReplica: self._update,
        }

    def _enter(self, request: EnterReplica) -> None:
        phase, num_bytes = request.phase, self._context.programs.state_layout.nbytes
        with self._watchdog.work(f"the state of epoch {phase.epoch}", 2 * transfer_secs(num_bytes)):
            self._replica.enter(phase)
        self._context.recorder.stamps = self._replica.stamps
        self._collective = self._join(phase)
        with self._watchdog.work(f"the mesh of epoch {phase.epoch}", COMPILE_SECS):
            self._collective.enter()

    def _compute(self, request: ComputeUnit) -> Any:
        return self._context.gradient(self._replica.parameters, request.unit)

    def _all_reduce(self, request: AllReduce) -> tuple[Any, float]:
        with self._watchdog.work("a lock-step step", UNLIMITED):  # the chief judges for whom it stands still
            total = self._collective.total(self._index, request.contribution)
            return total, float(total["floats"]["weight"])

    def _all_gather(self, request: AllGather) -> tuple[tuple[str, ...], ...]:
        with self._watchdog.work("the reasons of a lock-step step", UNLIMITED):
            return self._collective.reasons(self._index, request.reasons)

    def _update(self, request: UpdateReplica) -> None:
        self._replica.update(
            *(request.step, request.units, request.total, request.factor),
            slots=request.slots,
            dropped=request.dropped,
        )
