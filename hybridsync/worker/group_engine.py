"""The engine of a group phase: each worker updates its own copy of the state, and groups average theirs. Pure."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any, NamedTuple

from hybridsync.core.deadlines import MEMBERS_SECS
from hybridsync.core.errors import HybridSyncError, WaitTimeout
from hybridsync.interfaces.messages import NON_FINITE, AppliedUnit, GroupReply, GroupRequest
from hybridsync.interfaces.reports import SEND, WAITING
from hybridsync.protocols.base import AverageReplicas, Compute, JoinRound, Lease, LocalUpdate
from hybridsync.worker.lease_queue import LeaseQueue
from hybridsync.worker.member import Numerics, PhaseMember, run_program
from hybridsync.worker.requests import (
    IO,
    AverageGroup,
    ComputeUnit,
    CopyReplica,
    EnterReplica,
    Join,
    JoinGroup,
    RunBeside,
    SendPart,
    Start,
    StoreFullSync,
    Ticket,
    UpdateOwn,
)


class Gradient(NamedTuple):
    """Gradient handle: its unit, the group round before it, and why it is unfit, "" if it is not."""

    unit: int
    base: int
    contribution: Any
    unfit: str


class GroupEngine:
    """One worker in one group phase.

    Args:
      member: this worker as a member of the phase.
      numerics: computes what needs no request.
      logs: whether the updates go to an apply log.

    Attributes:
      leases: units that the worker was given.
    """

    def __init__(self, member: PhaseMember, numerics: Numerics, *, logs: bool) -> None:
        self._member, self._numerics, self._logs = member, numerics, logs
        # No renewal ahead: the chief takes a worker that asks for units for one that has none to compute.
        self.leases = LeaseQueue(member, ahead=False, say_idle=self._has_none)
        self._factor = member.protocol.lr_factor(1, len(member.phase.members))
        self._number, self._sequence = 0, member.phase.sequence
        self._unit, self._average_secs = 0, 0.0
        self._state: Any = None
        self._applied: list[AppliedUnit] = []
        self._dropped: list[tuple[int, str]] = []
        self._served: Ticket | None = None
        self._is_over = False

    def run(self) -> IO:
        """Take part in the phase until everybody's work is done and all copies are one state.

        Raises:
          PhaseRevoked: the phase was revoked, or lost a member.
          HybridSyncError: the holder of the starting state, or a member, did not answer.
        """
        yield EnterReplica(self._member.phase)
        self._state = yield CopyReplica()
        effects = {
            Lease: self._lease,
            Compute: self._compute,
            LocalUpdate: self._local_update,
            JoinRound: self._join_round,
            AverageReplicas: self._average_replicas,
        }
        try:
            yield from run_program(self._member.program(), effects)
        finally:
            self._is_over = True

    def _lease(self, effect: Lease) -> IO:
        units = yield from self.leases.next(effect.count)
        return units if units or self.leases.called else None

    def _has_none(self) -> IO:
        """Note that this worker waits for the others' units: who hangs at one is to be found out."""
        self._member.recorder.turn_to(WAITING)
        yield from ()

    def _compute(self, effect: Compute) -> IO:
        (self._unit,), numerics, recorder = effect.units, self._numerics, self._member.recorder
        started = recorder.computing(self._unit)
        base, parameters = self._sequence, numerics.parameters(self._state)
        if self._member.protocol.serves_averages:
            self._served = yield Start(RunBeside(self._serve(self._number + 1)))
        contribution = yield ComputeUnit(self._unit, parameters, self.leases.ahead)
        recorder.compute("group", started, self._member.now(), numerics.loss(contribution))
        return Gradient(self._unit, base, contribution, numerics.non_finite(contribution))

    def _serve(self, number: int) -> IO:
        """Average with whoever asks while this worker computes, until it has come to group round `number` itself.

        Nothing else changes the state meanwhile. The worker's own request repeats the units that were reported here,
        unless the chief is known to have heard of them by then.
        """
        recorder = self._member.recorder
        for serves in itertools.count(1):
            request = self._request(number, serves=serves)
            reply: GroupReply
            while not (reply := (yield JoinGroup(request))).members:
                if reply.over or self._is_over:
                    return
            self._applied, self._dropped = [], []
            started = self._member.now()
            if len(reply.members) > 1:
                yield SendPart(self._unit, "state" if reply.optimizer else "parameters")
            self._state, self._sequence = (yield AverageGroup(reply, self._state)), reply.sequence
            recorder.beside("mix", started, self._member.now())

    def _end_serving(self) -> IO:
        """Wait for the end of an average that others asked for, after which the state is this one's again."""
        served, self._served = self._served, None
        if served is not None:
            yield Join(served)

    def _request(self, number: int, *, serves: int = 0, last: bool = False) -> GroupRequest:
        member = self._member
        return GroupRequest(
            member.worker,
            member.incarnation,
            member.phase.id,
            number,
            applied=tuple(self._applied),
            dropped=tuple(self._dropped),
            last=last,
            logs=self._logs,
            average_secs=self._average_secs,
            serves=serves,
        )

    def _local_update(self, effect: LocalUpdate) -> IO:
        gradient: Gradient = effect.mean
        recorder = self._member.recorder
        if gradient.unfit:
            dropped = (gradient.unit, f"{NON_FINITE}: {gradient.unfit}")
            self._dropped.append(dropped)
            recorder.record_outcome((), (dropped,))
        else:
            self._state = yield UpdateOwn(self._state, gradient.unit, gradient.contribution, self._factor)
            self._applied.append(AppliedUnit(gradient.unit, gradient.base))
            recorder.record_outcome((gradient.unit,), ())
        recorder.completed = self.leases.position

    def _join_round(self, effect: JoinRound) -> IO:
        member, recorder = self._member, self._member.recorder
        self._number += 1
        request = self._request(self._number, last=effect.last)
        started = recorder.turn_to(WAITING)
        try:
            reply = yield from self._joined(request, started)
        except HybridSyncError:
            with suppress(HybridSyncError):
                yield from self._end_serving()
            raise
        yield from self._end_serving()
        self._applied, self._dropped = [], []
        recorder.wait("meet", "group", started, member.now())
        return reply

    def _joined(self, request: GroupRequest, started: float) -> IO:
        member, recorder = self._member, self._member.recorder
        reply: GroupReply
        while not (reply := (yield JoinGroup(request))).members:
            recorder.watchdog.progress()
            if self._served is not None and self._served.done():  # if it has failed, its group may never come
                yield from self._end_serving()
            if member.now() - started > MEMBERS_SECS:
                raise WaitTimeout(
                    f"worker {member.worker} waited {MEMBERS_SECS:g} s for its group in phase "
                    f"{member.phase.id}; workers {list(reply.missing)} have not come"
                )
        return reply

    def _average_replicas(self, effect: AverageReplicas) -> IO:
        reply: GroupReply = effect.group
        yield from self._average(reply)
        while reply.again:
            reply = yield from self._join_round(JoinRound())
            yield from self._average(reply)

    def _average(self, reply: GroupReply) -> IO:
        member, recorder = self._member, self._member.recorder
        started = member.now()
        if len(reply.members) > 1 and (yield SendPart(self._unit, "state" if reply.optimizer else "parameters")):
            recorder.wait(SEND, "group", started, member.now())
        started = member.now()
        self._state, self._sequence = (yield AverageGroup(reply, self._state)), reply.sequence
        if reply.is_full_sync:
            yield StoreFullSync(reply, self._state, self._factor)
        self._average_secs = member.now() - started
        recorder.wait("mix", "group", started, started + self._average_secs)
        recorder.turn_to("")
