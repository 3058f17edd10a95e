"""Runs the group phases of one worker, in a thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax

from hybridsync.collectives.backend import Communicator
from hybridsync.core.work_deadlines import UNLIMITED
from hybridsync.interfaces.messages import GroupReply
from hybridsync.interfaces.ports import WorkPort
from hybridsync.training.averaging import averaged, copied, part_of
from hybridsync.training.state import TrainState
from hybridsync.worker.context import ProgramNumerics, WorkerContext
from hybridsync.worker.drive_threads import Carriers, drive
from hybridsync.worker.group_engine import GroupEngine
from hybridsync.worker.member import PhaseMember
from hybridsync.worker.phase_runner import CommunicatorOf, PhaseRunner, PhaseWork
from hybridsync.worker.replica import Replica
from hybridsync.worker.requests import (
    AverageGroup,
    ComputeUnit,
    CopyReplica,
    EnterReplica,
    JoinGroup,
    LeaseUnits,
    RunBeside,
    SendPart,
    StoreFullSync,
    UpdateOwn,
)


def group_runner(
    context: WorkerContext, groups: WorkPort, replica: Replica, communicator_of: CommunicatorOf, *, logs: bool = False
) -> PhaseRunner:
    """Return what runs group phases for one worker.

    Args:
      context: context of this worker.
      groups: the chief, which generates the groups.
      replica: state that this worker holds for others: the phase's starting state, then that of the last full
        synchronisation (shared by all workers of one process). Its own copy diverges from it.
      communicator_of: the phase -> its communicator.
      logs: whether the updates go to an apply log.
    """
    numerics = ProgramNumerics(context.programs)

    def begin(member: PhaseMember, runner: PhaseRunner) -> PhaseWork:
        engine = GroupEngine(member, numerics, logs=logs)
        carriers = _Calls(context, groups, replica, runner).carriers
        serving = ThreadPoolExecutor(1, "serve")  # starts its thread where a protocol uses it

        return PhaseWork(
            engine,
            {**carriers, RunBeside: lambda part: drive(part.io, carriers, {}, member.now)},
            {RunBeside: serving},
            partial(serving.shutdown, wait=False),  # what was begun ends by itself once the phase is over, or revoked
        )

    return PhaseRunner(context, replica, communicator_of, begin)


class _Calls:
    """Carries out the requests of one phase."""

    def __init__(self, context: WorkerContext, groups: WorkPort, replica: Replica, runner: PhaseRunner) -> None:
        self._context, self._groups, self._replica, self._runner = context, groups, replica, runner
        self._watchdog = context.recorder.watchdog
        self._communicator: Communicator  # once the phase is entered

    @property
    def carriers(self) -> Carriers:
        """Carriers of each kind of request."""
        return {
            LeaseUnits: self._context.lease,
            EnterReplica: self._enter,
            CopyReplica: lambda request: self._replica.branch(self._context.worker),
            ComputeUnit: self._compute,
            UpdateOwn: self._update,
            JoinGroup: self._join_group,
            SendPart: self._context.send,
            AverageGroup: self._average,
            StoreFullSync: self._store,
        }

    def _enter(self, request: EnterReplica) -> None:
        self._communicator = self._runner.enter(request.phase)

    def _join_group(self, request: JoinGroup) -> GroupReply:
        self._runner.check()  # a chief that has not heard of the revocation would answer without members for ever
        return self._groups.join_group(request.request)

    def _compute(self, request: ComputeUnit) -> Any:
        return self._context.gradient(request.parameters, request)

    def _update(self, request: UpdateOwn) -> TrainState:
        state = self._context.programs.update(
            request.state, request.contribution, units=1, factor=request.factor, blend=1.0
        )
        self._replica.stamp_update()
        return state

    def _average(self, request: AverageGroup) -> TrainState:
        reply = request.reply
        part = part_of(self._context.programs.moving(request.state), optimizer=reply.optimizer)
        if len(reply.members) > 1:
            num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(part))
            with self._watchdog.work("the average of a group", UNLIMITED):  # the chief judges lateness
                part = self._communicator.group_mean(reply, self._context.worker, part)
            self._context.recorder.moved(num_bytes, num_bytes)
            if reply.optimizer:  # others have the same, which each one's next update donates
                part = part._replace(opt_state=copied(part.opt_state))
        at = self._context.programs.placement  # the counters are new
        return at.at_worker(averaged(request.state, part, reply), self._context.worker)

    def _store(self, request: StoreFullSync) -> None:
        self._replica.store_full_sync(request.reply, copied(request.state), request.factor)
