"""A phase: one stretch of a run under one protocol, and everything a role needs to take part in it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from hybridsync import protocols
from hybridsync.core.errors import InvalidMessage
from hybridsync.core.plan import MOST_UPDATES, PhaseId, most_issued
from hybridsync.core.step_assignment import StepAssignment
from hybridsync.core.units import Range, UnitSet, num_units
from hybridsync.protocols.base import Protocol
from hybridsync.protocols.modes import SyncMode


@dataclass(frozen=True)
class Phase:
    """One stretch of a run under one protocol: everything a role needs to take part in it.

    Args:
      id: fencing token; all calls of the phase carry it.
      spec: protocol as written in the plan (`Stage.spec`).
      members: worker ids in mesh order.
      device_choice: choice of the members' local devices that carry the collective (lock-step in the process runtime).
      end_units: applied units at which the phase ends.
      applied: units applied before the phase, as ranges.
      dropped: units finally dropped before the phase, as ranges.
      sequence: updates applied before the phase.
      source: address of a role that holds the starting state.
      snapshot_id: number of the snapshot of `source` that is the starting state.
      fingerprint: fingerprint of the starting state.
      servers: addresses of the parameter servers.
      reason: reason for the phase: "start", "planned", "policy", "ordered", "join", "death", "resume".
      shares: units that each member takes in one lock-step step, in mesh order; () for one each.
      order: number of the user's order that it carries out; 0 where it is what the plan or a policy wants.
      evaluate_units: the holder of the state keeps a copy at each multiple of so many applied units, until the chief
        asks for it (see `SnapshotSource.take_snapshot`); 0 for no such places.
    """

    id: PhaseId
    spec: str
    members: tuple[int, ...]
    device_choice: int
    end_units: int
    applied: tuple[Range, ...]
    dropped: tuple[Range, ...]
    sequence: int
    source: str
    snapshot_id: int
    fingerprint: str
    servers: tuple[str, ...]
    reason: str
    shares: tuple[int, ...] = ()
    order: int = 0
    evaluate_units: int = 0

    @functools.cached_property
    def protocol(self) -> Protocol:
        """The protocol that `spec` names; parsed once.

        Raises:
          PlanError: `spec` is not a registered protocol.
        """
        return protocols.parse(self.spec)

    @property
    def mode(self) -> SyncMode:
        """Mode in which its members are synchronised."""
        return self.protocol.mode

    @functools.cached_property
    def assignment(self) -> StepAssignment:
        """Assignment of a lock-step step's units to members; computed once, because every report asks for it."""
        return StepAssignment(self.shares or (1,) * len(self.members))

    def check(self, workload: int) -> None:
        """Refuse numbers that no phase of a run with that workload has.

        Raises:
          InvalidMessage: a member is negative or there twice, a number is out of its range, a unit is applied and
            dropped or beyond all that are issued, or more units are applied at the end than the run has.
        """
        if len(set(self.members)) < len(self.members) or min(self.members, default=0) < 0:
            raise InvalidMessage(f"phase {self.id} has the members {self.members[:9]}; name each once, from 0")
        if not (0 <= self.id.number < MOST_UPDATES and 0 <= self.sequence < MOST_UPDATES):
            raise InvalidMessage(
                f"phase {self.id} begins behind update {self.sequence}; both are numbers from 0 to {MOST_UPDATES - 1}"
            )
        if not 0 <= self.order < MOST_UPDATES:
            raise InvalidMessage(
                f"phase {self.id} carries out order {self.order}; orders are counted from 1 to {MOST_UPDATES - 1}, and "
                "0 is none"
            )
        if self.evaluate_units < 0:
            raise InvalidMessage(
                f"phase {self.id} has its state kept every {self.evaluate_units} units; send 1 or more, or 0 for never"
            )
        if not 0 <= self.end_units <= workload:
            raise InvalidMessage(
                f"phase {self.id} ends with {self.end_units} units applied, but this run has {workload}; end it "
                f"with 0 to {workload}"
            )
        settled = (*self.applied, *self.dropped)
        last, limit = max((stop for _, stop in settled), default=0), most_issued(workload)
        if last > limit:
            raise InvalidMessage(
                f"phase {self.id} counts units up to {last}, above the {limit} that a run of {workload} units "
                "issues at most; it is of another run"
            )
        if num_units(settled) > (different := len(UnitSet(settled))):
            raise InvalidMessage(
                f"phase {self.id} has {num_units(settled)} units applied or dropped, of which only {different} "
                "differ; name each unit once"
            )

    def passes_place(self, before: int, after: int) -> bool:
        """Return whether an update from `before` to `after` applied units comes to a place at which to keep the state.

        The phase's end is no such place: its state is captured in any case.
        """
        every = self.evaluate_units
        return every > 0 and after // every > before // every and after < self.end_units

    @property
    def num_places(self) -> int:
        """Units of a whole lock-step step; elsewhere the members."""
        return sum(self.shares) or len(self.members)
