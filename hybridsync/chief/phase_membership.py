"""Follows the members of the active phase: who has entered, how far each is, who is back. Pure: time is handed in."""

from __future__ import annotations

from dataclasses import dataclass, field

from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.interfaces.messages import StateVersion
from hybridsync.interfaces.reports import Report


@dataclass(frozen=True, slots=True)
class Doing:
    """The newest report on a worker's training thread (see `Report`), and the phase it came from."""

    what: str = ""
    secs: float = 0.0
    usual_secs: float = 0.0
    phase_id: PhaseId = NO_PHASE


NOTHING = Doing()


@dataclass
class PhaseMembership:
    """Follows the roles of one phase; the next phase begins with a new one.

    Args:
      announced: workers may enter.
      left_out: live workers that a policy leaves out of the phase; they measure themselves meanwhile.
      admitted: worker -> incarnation that entered.
      back: worker -> the state it brought back, None if it holds none.
      positions: worker -> units of its stream that are done.
      doing: worker -> the activity that it last reported, also of a worker that is still in an older phase.
      stamps: (role, id) -> its first and last update, monotonic seconds of the chief's clock; of those that made any.
      warned: (role, id) of those that were notified that the phase is revoked.
      broken: reason why the phase cannot go on; "" while it can.
      gathering: all roles are called back from the broken phase, and the next one is not announced yet.
    """

    announced: bool = False
    left_out: frozenset[int] = frozenset()
    admitted: dict[int, int] = field(default_factory=dict)
    back: dict[int, StateVersion | None] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)
    doing: dict[int, Doing] = field(default_factory=dict)
    stamps: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)
    warned: set[tuple[str, int]] = field(default_factory=set)
    broken: str = ""
    gathering: bool = False

    def record_heartbeat(self, report: Report, stamps: tuple[float, float]) -> None:
        """Take in the heartbeat of a role that is in this phase, with its stamps by the chief's clock."""
        if stamps[1]:
            self.stamps[report.role, report.id] = stamps
        if report.role == "worker":
            self.positions[report.id] = report.completed

    def record_activity(self, report: Report) -> None:
        """Note what a worker does, in whichever phase it is."""
        self.doing[report.id] = Doing(report.doing, report.doing_secs, report.usual_secs, report.phase_id)

    def remove_worker(self, worker: int) -> None:
        """Forget a worker that is gone, and the state that it held.

        One that had come back has done its part: its successor waits for the next phase.
        """
        for known in (self.admitted, self.positions, self.doing):
            known.pop(worker, None)
        if worker in self.back:
            self.back[worker] = None

    def missing(self, live: tuple[int, ...]) -> list[int]:
        """Return the live workers that have entered and not come back."""
        return [worker for worker in live if worker in self.admitted and worker not in self.back]

    def outstanding(self, members: tuple[int, ...], live: tuple[int, ...]) -> list[int]:
        """Return the live workers among the phase's `members` that have not come back, entered or not."""
        inside = set(members)  # a tuple would be searched for each of them
        return [worker for worker in live if worker in inside and worker not in self.back]

    def outside(self, live: tuple[int, ...]) -> list[int]:
        """Return the live workers that have neither entered nor come back."""
        return [worker for worker in live if worker not in self.admitted and worker not in self.back]

    def doing_of(self, workers: list[int]) -> dict[int, Doing]:
        """Return what each of `workers` said last that it does."""
        return {worker: self.doing.get(worker, NOTHING) for worker in workers}

    def is_anybody_at_it_for(self, secs: float) -> bool:
        """Return whether any worker said that it had been at what it does for more than `secs`."""
        return any(each.secs > secs for each in self.doing.values())

    def behind(self, live: tuple[int, ...]) -> list[int]:
        """Return the live workers that have reported the fewest completed units."""
        at = {worker: self.positions.get(worker, 0) for worker in live}
        return [worker for worker, position in at.items() if position == min(at.values())]

    def first_and_last(self) -> tuple[float, float]:
        """Return when the phase's first and last update were applied, as far as known; 0 before them."""
        firsts = [first for first, _ in self.stamps.values() if first]
        lasts = [last for _, last in self.stamps.values() if last]
        return min(firsts, default=0.0), max(lasts, default=0.0)
