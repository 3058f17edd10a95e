"""Holds what a run's controller and its stages share: the newest state, the current phase, who can be reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hybridsync.chief.run_state import RunControl
from hybridsync.config import RunConfig
from hybridsync.core.clock import Clock
from hybridsync.core.errors import PhaseBroken, RoleLost, StalePhase, WaitTimeout
from hybridsync.core.plan import PhaseId
from hybridsync.core.units import Range
from hybridsync.core.work_deadlines import Watching
from hybridsync.interfaces.messages import Snapshot
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import ReaderPort
from hybridsync.telemetry.switch_costs import StageTimer

if TYPE_CHECKING:  # they import this module
    from hybridsync.phases.checkpointing import SaveSchedule
    from hybridsync.phases.housekeeping import ProgressWatchdog
    from hybridsync.phases.reporter import Reporter

TICK_SECS = 0.05
"""How long the controller waits before it calls its tick again."""


@dataclass
class ControllerState:
    """Holds the newest state, the current phase and why it is left; used by the controller's thread alone.

    Args:
      snapshot: the newest captured state.
      source: address of the role that keeps it; empty if no role does.
      reason: reason for the next phase, for its announcement.
      start_phase: number of the phase that the run begins above.
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
      restarts: whether the run ends here because it is to start again for the plan's next stage.
    """

    snapshot: Snapshot
    source: str
    reason: str
    start_phase: int = 0
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
    restarts: bool = False

    @property
    def current_phase(self) -> Phase:
        """The phase under way, where there must be one."""
        assert self.phase is not None, "no phase has been entered yet"
        return self.phase


@dataclass(frozen=True)
class Start:
    """Describes the beginning of a run: a captured state, who holds it, and why; and the detours from its plan."""

    snapshot: Snapshot
    source: str
    reason: str
    phase_number: int
    committed: bool
    detours: tuple[Range, ...] = ()


@dataclass(frozen=True)
class Commit:
    """A finished commit.

    Args:
      units: units applied in the state.
      bytes: bytes on disk; 0 for a run without a workdir.
      secs: seconds from the request to the durable end.
    """

    units: int
    bytes: int
    secs: float


class Measured(NamedTuple):
    """A finished evaluation: what the task measured of a state, and the seconds that it took, without the commit."""

    figures: dict[str, Any]
    secs: float


class CommittedSource(Protocol):
    """Keeps the last committed state in the chief's memory."""

    @property
    def units(self) -> int:
        """Units applied in it."""
        ...

    def publish(self) -> Snapshot:
        """Return a snapshot of it, readable at the chief."""
        ...

    def adopt(self, snapshot: Snapshot, source: str, reader: ReaderPort) -> None:
        """Fetch and keep another state instead, though it is not committed."""
        ...


GONE = ""
"""The address of a snapshot that no role keeps any more."""

UNREACHED = (RoleLost, StalePhase, WaitTimeout)
"""The errors of a call on a role that is gone, or is in a later phase."""


class Reach:
    """Turns what a call on a role ends with, when the role is gone, into a broken phase."""

    def __init__(self, control: RunControl, doing: str) -> None:
        self._control, self._doing = control, doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UNREACHED):
            with self._control.turn() as chief:
                if error is chief.waits.failure:
                    return
                chief.break_phase(f"{self._doing}: {error}")
            raise PhaseBroken(f"{self._doing}: {error}") from error


@dataclass(frozen=True)
class RunContext:
    """What every stage of a run works with; used by the controller's thread alone."""

    config: RunConfig
    control: RunControl
    """The chief: leases, members and announcements."""
    state: ControllerState
    reporter: Reporter
    """Writes the record."""
    saving: SaveSchedule
    """The commit in progress, the evaluations behind it, and when the next ones are due."""
    pace: ProgressWatchdog
    """Knows whether the phase makes progress."""
    timer: StageTimer
    """Measures the stages of a switch."""
    clock: Clock
    tick: Callable[[], None]
    """Does what is always due, and may raise `PhaseBroken`: whoever waits calls it again and again."""
    watchdog: Watching
    """The watchdog of the process."""
