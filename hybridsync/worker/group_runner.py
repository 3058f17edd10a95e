"""Runs the group phases of one worker, in a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridsync.collectives.thread_mean import Mixer
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.plan import Epoch
from hybridsync.core.watching import UNLIMITED
from hybridsync.interfaces.messages import GroupReply
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import GroupPort
from hybridsync.training.averaging import copied, mixed, part_of
from hybridsync.training.state import TrainState
from hybridsync.worker.context import ProgramNumerics, WorkerContext
from hybridsync.worker.drive_threads import Carriers, drive
from hybridsync.worker.group_engine import GroupEngine
from hybridsync.worker.lease_queue import LeaseQueue
from hybridsync.worker.member import PhaseMember
from hybridsync.worker.replica import Replica
from hybridsync.worker.requests import (
    AverageGroup,
    ComputeUnit,
    CopyReplica,
    EnterReplica,
    JoinGroup,
    LeaseUnits,
    SendPart,
    StoreFullSync,
    UpdateOwn,
)
from hybridsync.worker.revocation import Revocation


class GroupRunner:
    """Runs group phases for one worker.

    Args:
      context: who it is.
      groups: generates the groups.
      replica: what this worker holds for others: the phase's starting state, then that of the last full
        synchronisation (shared by all workers of one process). Its own copy goes its own way.
      mixer_of: the phase -> how its groups average.
      logs: whether the updates go to an apply log.
    """

    def __init__(
        self,
        context: WorkerContext,
        groups: GroupPort,
        replica: Replica,
        mixer_of: Callable[[Phase], Mixer],
        *,
        logs: bool = False,
    ) -> None:
        self._context, self._groups, self._replica = context, groups, replica
        self._mixer_of, self._logs = mixer_of, logs
        self._numerics = ProgramNumerics(context.programs)
        self.stream: LeaseQueue | None = None
        self._revocation: Revocation[Mixer] = Revocation()

    def run(self, phase: Phase) -> None:
        """Take part in `phase` until everybody's work is done and all copies are one state.

        Raises:
          PhaseRevoked: the phase was revoked, or lost a member.
          RoleLost, WaitTimeout: whoever holds the starting state, or a member, did not answer.
        """
        self._revocation.begin(phase.epoch)
        member = PhaseMember(self._context.worker, phase, self._context.recorder)
        engine = GroupEngine(member, self._numerics, logs=self._logs)
        self.stream = engine.leases
        calls = _Calls(self._context, self._replica, self._join_group, self._enter_mixer)
        drive(engine.run(), calls.carriers, {}, member.now)

    def revoke(self, epoch: Epoch, reason: str) -> None:
        """Make the phase under way raise PhaseRevoked, if it is `epoch`; called from another thread."""
        self._revocation.revoke(epoch, reason)

    def _enter_mixer(self, phase: Phase) -> Mixer:
        return self._revocation.attach(self._mixer_of(phase))

    def _join_group(self, request: JoinGroup) -> GroupReply:
        self._revocation.check()  # a chief that has not heard of the revocation would answer without members for ever
        return self._groups.meet(request.request)


class _Calls:
    """Carries out the requests of one phase."""

    def __init__(
        self,
        context: WorkerContext,
        replica: Replica,
        join_group: Callable[[JoinGroup], GroupReply],
        enter_mixer: Callable[[Phase], Mixer],
    ) -> None:
        self._context, self._replica = context, replica
        self._join_group, self._enter_mixer = join_group, enter_mixer
        self._watchdog = context.recorder.watchdog
        self._mixer: Mixer  # once the phase is entered

    @property
    def carriers(self) -> Carriers:
        """What carries out each kind of request."""
        return {
            LeaseUnits: self._context.lease,
            EnterReplica: self._enter,
            CopyReplica: lambda request: self._replica.branch(),
            ComputeUnit: self._compute,
            UpdateOwn: self._update,
            JoinGroup: self._join_group,
            SendPart: self._context.send,
            AverageGroup: self._average,
            StoreFullSync: self._store,
        }

    def _enter(self, request: EnterReplica) -> None:
        phase, num_bytes = request.phase, self._context.programs.state_layout.nbytes
        with self._watchdog.work(f"the state of epoch {phase.epoch}", 2 * transfer_secs(num_bytes)):
            self._replica.enter(phase)
        self._context.recorder.stamps = self._replica.stamps
        self._mixer = self._enter_mixer(phase)

    def _compute(self, request: ComputeUnit) -> Any:
        return self._context.gradient(request.parameters, request.unit)

    def _update(self, request: UpdateOwn) -> TrainState:
        state = self._context.programs.update(
            request.state, request.contribution, units=1, factor=request.factor, blend=1.0
        )
        self._replica.note_update()
        return state

    def _average(self, request: AverageGroup) -> TrainState:
        reply = request.reply
        part = part_of(request.state, optimizer=reply.optimizer)
        if len(reply.members) > 1:
            with self._watchdog.work("the average of a group", UNLIMITED):  # the chief judges who is late
                part = self._mixer.mean(reply, self._context.worker, part)
            if reply.optimizer:  # others have the same, which each one's next update donates
                part = part._replace(opt_state=copied(part.opt_state))
        return mixed(request.state, part, reply)

    def _store(self, request: StoreFullSync) -> None:
        self._replica.settle(request.reply, copied(request.state), request.factor)
