"""The engine of a phase in which each worker makes local updates, and pushes what they changed. Pure."""

from __future__ import annotations

from contextlib import suppress

from hybridsync.core.errors import HybridSyncError, PhaseRevoked
from hybridsync.interfaces.messages import PushReply
from hybridsync.interfaces.reports import WAITING
from hybridsync.protocols.base import (
    Await,
    Begin,
    Combine,
    Compute,
    Difference,
    Lease,
    Pull,
    PushPull,
    Step,
    Version,
)
from hybridsync.training.local_updates import Gradient, Local, Stepper
from hybridsync.worker.lease_queue import LeaseQueue
from hybridsync.worker.member import Effects, Numerics, PhaseMember, run_program
from hybridsync.worker.requests import IO, CallServer, ComputeUnit
from hybridsync.worker.server_calls import ServerCalls, version_of
from hybridsync.worker.transfers import Transfers, Units


def own_steps(stepper: Stepper) -> Effects:
    """Return what carries out a worker's own steps, which wait for nobody; a replay takes them like this, too."""
    return {Step: stepper.step, Difference: stepper.difference, Combine: stepper.combine}


class _Void(Exception):
    """A push came to nothing, or is bound to: the steps since then are void, and the program begins anew."""


class LocalEngine:
    """One worker in one phase with local updates; transfers that were begun go on beside the computation.

    A gradient that is not finite reaches no program: its unit is dropped at once, and a fresh one takes its place.

    Args:
      member: this worker as a member of the phase.
      numerics: computes what needs no request.
      ahead: whether leases are renewed in the background of the computation.

    Attributes:
      leases: units that the worker was given.
    """

    def __init__(self, member: PhaseMember, numerics: Numerics, *, ahead: bool) -> None:
        self._member, self._numerics = member, numerics
        self._calls = ServerCalls(member)
        self._transfers = Transfers(member, self._calls)
        say_idle = self._tell_idle if member.protocol.awaits_workers else None
        self.leases = LeaseQueue(member, ahead=ahead, takes_fewer=True, say_idle=say_idle)
        self._unit = -1  # the one that is computed
        self._in_hand: list[int] = []
        self._again: list[int] = []
        self._was_idle = False
        self._stepper: Stepper  # once the optimizer state is here

    def run(self) -> IO:
        """Take part in the phase until there are no more units, and upload the optimizer state.

        Raises:
          PhaseRevoked: the phase has ended for all members.
          HybridSyncError: error of another request.
        """
        _, opt_state = yield CallServer("download_opt_state", self._calls.caller())
        num_workers = len(self._member.phase.members)
        self._stepper = stepper = Stepper(self._numerics, self._member.protocol, num_workers, opt_state)
        effects = {
            Lease: self._lease,
            Pull: self._pull,
            Compute: self._compute,
            PushPull: self._push_pull,
            Begin: self._begin,
            Await: self._await,
            **own_steps(stepper),
        }
        try:
            while (yield from self._ended_in_void(effects)):
                pass
        except HybridSyncError:  # killed, it must not ask for anything; failed or revoked, it still may
            yield from self._leave()
            raise
        yield from self._leave()

    def _ended_in_void(self, effects: Effects) -> IO:
        """Run the program; returns whether it has to begin anew."""
        try:
            yield from run_program(self._member.program(), effects)
        except _Void:
            yield from self._hear_abandoned()
            self._stepper.rewind()
            self._calls.restart_count += 1
            self._again, self._in_hand, self._was_idle = self._in_hand + self._again, [], False
            return True
        return False

    def _leave(self) -> IO:
        """Upload the optimizer state, as it was at the last push that was applied."""
        yield from self._hear_abandoned()
        stepper = self._stepper
        if stepper.last_applied_unit >= 0:
            with suppress(HybridSyncError):  # the phase ends without it
                yield CallServer(
                    "upload_opt_state", self._calls.push_of((stepper.last_applied_unit,), 0), stepper.applied_opt_state
                )

    def _hear_abandoned(self) -> IO:
        """Learn what becomes of transfers that the program does not await any more."""
        for units, reply in (yield from self._transfers.abandoned()):
            self._settle(reply.settled or units)
            self._stepper.pushed(units, reply)

    # --- units ---

    def _lease(self, effect: Lease) -> IO:
        units, self._again = tuple(self._again[: effect.count]), self._again[effect.count :]
        units = units or (yield from self._next(effect.count))
        self._in_hand += units
        return units or None

    def _next(self, count: int) -> IO:
        """Return the next leased units; a worker that was idle until then begins anew with them."""
        units: Units = yield from self.leases.next(count)
        if units and self._was_idle:  # its parameters are as old as its idleness
            self._again += units
            raise _Void
        return units

    def _tell_idle(self) -> IO:
        self._member.recorder.turn_to(WAITING)
        yield from self._transfers.end()  # a push after it would end the idleness
        self._member.recorder.turn_to("")
        yield from self._calls.idle()
        self._was_idle = True

    def _compute(self, effect: Compute) -> IO:
        (unit,), parameters, recorder = effect.units, effect.parameters, self._member.recorder
        while unit is not None:
            started, self._unit = recorder.computing(unit), unit
            contribution = yield ComputeUnit(unit, parameters.parameters, self._ahead)
            recorder.compute("server", started, self._member.now(), self._numerics.loss(contribution))
            gradient = Gradient((unit,), parameters.sequence, contribution)
            if not self._numerics.non_finite(contribution):
                return gradient
            yield from self._drop(gradient)
            unit = yield from self._another(parameters)
        return Gradient((), parameters.sequence, None)

    def _ahead(self) -> int | None:
        """Return the unit that is computed next, of those in hand or of those that are leased."""
        later = self._in_hand[self._in_hand.index(self._unit) + 1 :] or self._again
        return later[0] if later else self.leases.ahead()

    def _drop(self, gradient: Gradient) -> IO:
        yield from self._transfers.end()  # a link has room for one call
        yield from self._calls.held(self._calls.push_pull(gradient))
        self._settle(gradient.units)

    def _another(self, parameters: Local | Version) -> IO:
        """Return a unit in place of a dropped one; None where others wait for those that were stepped through."""
        stepped = isinstance(parameters, Local) and parameters.units
        units: Units = self.leases.next_units(1) if stepped else (yield from self._next(1))
        self._in_hand += units
        if not units and not stepped:
            raise PhaseRevoked(f"phase {self._member.phase.id} has no more units")
        return units[0] if units else None

    def _settle(self, units: Units) -> None:
        """Note that a push, in which the units were, is decided."""
        for unit in units:
            self._in_hand.remove(unit)
        self._member.recorder.completed = self.leases.position - len(self._in_hand) - len(self._again)

    # --- transfers ---

    def _pull(self, effect: Pull) -> IO:
        started = self._member.now()
        reply, parameters = yield from self._transfers.make(effect)
        self._member.recorder.wait("pull", "server", started, self._member.now())
        return version_of(reply, parameters)

    def _push_pull(self, effect: PushPull) -> IO:
        recorder = self._member.recorder
        started = recorder.turn_to(WAITING)
        reply, parameters = yield from self._transfers.make(effect)
        recorder.wait("push_pull", "server", started, recorder.turn_to(""))
        self._pushed(effect.gradient.units, reply)
        return version_of(reply, parameters)

    def _begin(self, effect: Begin) -> IO:
        yield from self._transfers.begin(effect.effect)
        return effect.effect

    def _await(self, effect: Await) -> IO:
        recorder = self._member.recorder
        started = recorder.turn_to(WAITING)
        (reply, parameters), units = yield from self._transfers.landed(effect.pending)
        recorder.wait("await", "server", started, recorder.turn_to(""))
        self._pushed(units, reply)
        return version_of(reply, parameters)

    def _pushed(self, units: Units, reply: PushReply) -> None:
        if units:
            self._settle(reply.settled or units)
            if not self._stepper.pushed(units, reply):
                raise _Void
