"""Holds what a run's controller and its stages share: the newest state, the current phase, and why it is left."""

from __future__ import annotations

from dataclasses import dataclass

from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Snapshot
from hybridsync.interfaces.phase import Phase


@dataclass
class ControllerState:
    """Holds the newest state, the current phase and why it is left; used by the controller's thread alone.

    Args:
      snapshot: the newest captured state.
      source: address of the role that keeps it; empty if no role does.
      reason: reason for the next phase, for its announcement.
      phase: the current phase, or the last one; None before the first.
      phase_id: the phase that was reserved last; None before the first.
      broken_by: event that broke the last phase, until the next one is entered.
      unit_secs: mean seconds of one unit in the phase that is being left.
      num_broken: phases in a row that broke before they applied a unit.
      evaluates: whether the captured state is to be evaluated.
      captured: time of the last update in a state that was captured live, by the chief's clock, until its commit is
        submitted: it may have been kept at a place for a while. 0 for a state of this moment.
      is_ending: whether no phase follows, so that the captured state is the run's last.
      lost_at_stop: applied units that were rolled back after the run was asked to stop.
      lost_why: why they were.
    """

    snapshot: Snapshot
    source: str
    reason: str
    phase: Phase | None = None
    phase_id: PhaseId | None = None
    broken_by: str = ""
    unit_secs: float = 0.0
    num_broken: int = 0
    evaluates: bool = False
    captured: float = 0.0
    is_ending: bool = False
    lost_at_stop: int = 0
    lost_why: str = ""

    @property
    def current_phase(self) -> Phase:
        """The phase under way, where there must be one."""
        assert self.phase is not None, "no phase has been entered yet"
        return self.phase
