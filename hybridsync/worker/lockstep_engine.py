"""The engine of a lock-step phase: every member holds the state, and all meet at every step. Pure."""

from __future__ import annotations

from hybridsync.core.step_assignment import outcome_of
from hybridsync.interfaces.messages import NON_FINITE
from hybridsync.interfaces.reports import SEND, WAITING
from hybridsync.protocols.base import Average, Compute, Lease, LocalUpdate
from hybridsync.worker.lease_queue import LeaseQueue
from hybridsync.worker.member import Numerics, PhaseMember, run_program
from hybridsync.worker.requests import (
    IO,
    AllGather,
    AllReduce,
    ComputeUnit,
    EnterReplica,
    SendPart,
    Units,
    UpdateReplica,
)


class LockstepEngine:
    """One worker in one lock-step phase.

    Args:
      member: this worker as a member of the phase.
      numerics: computes what needs no request.
      ahead: whether leases are renewed in the background of the computation.

    Attributes:
      leases: the units that its mesh was given.
    """

    def __init__(self, member: PhaseMember, numerics: Numerics, *, ahead: bool) -> None:
        self._member, self._numerics, self._shares = member, numerics, member.phase.assignment
        self._index = member.phase.members.index(member.worker)
        self._places, self._num_places = self._shares.places(self._index), self._shares.num_places
        self.leases = LeaseQueue(member, ahead=ahead)
        self._step = 0
        self._started = 0.0
        self._units: Units = ()  # of the step in progress, of all members
        self._coming: Units = ()  # own units of the step in progress that are still to be computed
        self._unfit: list[str] = []  # of each own unit, what is not finite in it
        self._reasons: tuple[str, ...] = ()  # why units of the step are missing, by their place

    def run(self) -> IO:
        """Take part in the phase until the stream of units ends.

        Raises:
          PhaseRevoked: the phase was revoked, or lost a member.
          HybridSyncError: the holder of the starting state, or a member, did not answer.
        """
        yield EnterReplica(self._member.phase)
        effects = {
            Lease: self._lease,
            Compute: self._compute,
            Average: self._average,
            LocalUpdate: self._local_update,
        }
        yield from run_program(self._member.program(), effects)

    def _lease(self, effect: Lease) -> IO:
        count = self._num_places
        self._units = units = self.leases.next_calmly(count) or (yield from self.leases.next(count))
        self._started = self._member.now()
        return tuple(units[place] for place in self._places if place < len(units)) if units else None

    def _compute(self, effect: Compute) -> IO:
        self._unfit, total, numerics, recorder = [], None, self._numerics, self._member.recorder
        # Not in a phase's first step: a worker's own program is compiled there, for what no other has a part in.
        together = (
            self._step > 0 and self._shares.num_rounds == 1 and len(self._units) == len(self._member.phase.members)
        )
        for index, unit in enumerate(effect.units):
            started, self._coming = recorder.computing(unit), effect.units[index + 1 :]
            contribution = yield ComputeUnit(unit, None, self._ahead, together)
            recorder.compute("sync", started, self._member.now(), numerics.loss(contribution))
            # The check comes before the collective: one NaN entry would spoil the total of all members.
            unfit = numerics.non_finite(contribution)
            self._unfit.append(f"{NON_FINITE}: {unfit}" if unfit else "")
            if not unfit:
                total = contribution if total is None else numerics.sum((total, contribution))
        return numerics.zero if total is None else total

    def _ahead(self) -> int | None:
        """Return the unit that this member computes next, in this step or the next one."""
        return self._coming[0] if self._coming else self.leases.ahead(self._places[0]) if self._places else None

    def _average(self, effect: Average) -> IO:
        member, recorder = self._member, self._member.recorder
        if len(member.phase.members) > 1:
            started = member.now()
            if (yield SendPart(self._units[min(self._index, len(self._units) - 1)], "contribution")):
                recorder.wait(SEND, "sync", started, member.now())
        started = recorder.turn_to(WAITING)
        total, weight = yield AllReduce(effect.gradient, self._unfit.count(""))
        self._reasons = ()
        if weight != len(self._units):  # all members see it alike
            own = (*self._unfit, *[""] * (self._shares.num_rounds - len(self._unfit)))
            self._reasons = self._shares.by_place((yield AllGather(own)))
        recorder.wait("average", "sync", started, recorder.turn_to(""))
        return total

    def _local_update(self, effect: LocalUpdate) -> IO:
        member, recorder = self._member, self._member.recorder
        units, slots, dropped = outcome_of(self._units, self._reasons)
        factor = member.protocol.lr_factor(len(units), len(member.phase.members))
        gone = tuple(unit for unit, _ in dropped)
        yield UpdateReplica(self._step, units, effect.mean, factor, slots=slots, dropped=gone)
        self._step += 1
        if self._index == 0:  # one member reports for the mesh, so that its reports keep the order of the steps
            recorder.record_outcome(units, dropped)
        recorder.completed = self.leases.position
        recorder.step(self._started, member.now(), len(units))
