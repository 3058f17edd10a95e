"""Decides for how long workers wait for a host: until a run begins, and in the middle of it."""

from __future__ import annotations

import enum

from hybridsync.cluster.role_assignment import RoleAssignment
from hybridsync.runtime.agent.host_messages import Key
from hybridsync.runtime.supervisor.placement import Placement
from hybridsync.runtime.supervisor.process_group_service import ProcessGroupService
from hybridsync.runtime.supervisor.supervisor_spec import SupervisorSpec


class Step(enum.Enum):
    """Names the next step about the hosts that are missing."""

    WAIT, BEGIN, GO_ON_WITHOUT, FAIL = range(4)


class Beginning:
    """Waits for the hosts of a run while its workers have not met in their process group.

    A run begins when every host is there; with `min_workers`, some seconds after it has as many. If a host is missing
    for `attach_secs`, others with free slots take its roles; or the run begins without its workers, if it has as many
    as it needs; or it ends. One host begins at once.

    Once its workers have met, the run is in progress. If they are to meet in another group then, and a host is away,
    they wait for `patience_secs` and continue in a group without it. Each host is waited for once in a group: one that
    is lost again and again does not delay the others each time. With fewer than `min_workers` they wait for
    `attach_secs`, and the run ends.

    Args:
      spec: describes the run.
      assignment: assignment of the roles to hosts.
      now: monotonic seconds.

    Attributes:
      absent: hosts that never were there, and are waited for.
      has_begun: whether there is a group for workers to join.
    """

    def __init__(self, spec: SupervisorSpec, assignment: RoleAssignment, now: float) -> None:
        self._spec, self._assignment = spec, assignment
        self.absent = {*range(1, spec.num_hosts)}
        self.has_begun = False
        self._said = ""
        self._joined_at = self._renewed_at = 0.0
        self._lost_at: dict[int, float] = {}  # in this group, for the first time
        self._deadline = now + spec.attach_secs

    def host_joined(self, host: int, now: float) -> None:
        """Take note that a host is there."""
        self.absent.discard(host)
        self._joined_at = now

    def host_lost(self, host: int, now: float) -> None:
        """Take note that a host is gone: the others wait for it."""
        self._lost_at.setdefault(host, now)
        self._deadline = now + self._spec.attach_secs

    def group_renewed(self, now: float) -> None:
        """Take note that the workers are to form another group: the wait for each of them begins again."""
        self._renewed_at = now
        self._lost_at.clear()

    def step(self, now: float, slots: tuple[int, ...], group: ProcessGroupService, placement: Placement) -> Step:
        """Return what to do now.

        Args:
          now: monotonic seconds.
          slots: the workers that are to run.
          group: process group that the workers join.
          placement: placement of the roles.
        """
        if group.was_complete:
            return self._step_under_way(now, slots, group, placement)
        present, fewest = len(placement.present(slots)), min(self._spec.min_workers, len(slots))
        is_settled = now >= self._joined_at + self._spec.settle_secs
        if not self.has_begun and (not self.absent or (is_settled and 0 < fewest <= present)):
            return self._go(Step.BEGIN, "")
        if now < self._deadline:
            return Step.WAIT
        hosts = ", ".join(map(str, sorted(self.absent)))
        self.absent.clear()  # their roles go to others from now on
        self._deadline = now + self._spec.attach_secs
        missing = placement.missing(slots)
        if len(placement.present(slots)) < (fewest or len(slots)) or any(role != "worker" for role, _ in missing):
            return self._fail(missing)
        begins = f"the run begins without host {hosts}: " if hosts else ""
        said = begins and begins + ("the others have workers enough" if missing else "others have slots for all")
        if not self.has_begun:
            return self._go(Step.BEGIN, said)
        if any(slot in group.slots for _, slot in missing):  # the others wait there for workers that do not come
            return self._go(Step.GO_ON_WITHOUT, said)
        self._said = said
        return Step.WAIT

    def _step_under_way(
        self, now: float, slots: tuple[int, ...], group: ProcessGroupService, placement: Placement
    ) -> Step:
        """Return what to do now that the workers have met before, in this group or a former one."""
        if now >= self._deadline:
            self.absent.clear()  # their roles go to others from now on
        missing = [key for key in placement.missing(slots) if key[0] == "worker" and key[1] in group.slots]
        if group.is_complete or not missing:
            return Step.WAIT
        if len(placement.present(slots)) < max(1, min(self._spec.min_workers, len(slots))):
            until = max(self._deadline, self._renewed_at + self._spec.attach_secs)
            return self._fail(missing) if now >= until else Step.WAIT
        if now < max(self._lost_at.values(), default=0.0) + self._spec.patience_secs:
            return Step.WAIT
        return self._go(Step.GO_ON_WITHOUT, f"the run goes on without host {self._homes(missing)}: it is away")

    def take_said(self) -> str:
        """Return what the user is told of the last step that was no wait, once."""
        said, self._said = self._said, ""
        return said

    def _fail(self, missing: list[Key]) -> Step:
        hosts = self._homes(missing)
        self._said = (
            f"error: host {hosts} has not attached to the head at {self._spec.head} within "
            f"{self._spec.attach_secs:g} s; start `hybridsync host --index={hosts.partition(',')[0]}` there, take "
            "fewer --hosts, or begin with fewer workers: --workers=FEWEST..MOST"
        )
        return Step.FAIL

    def _homes(self, keys: list[Key]) -> str:
        return ", ".join(map(str, sorted({self._assignment.home(*key) for key in keys})))

    def _go(self, step: Step, said: str) -> Step:
        self.has_begun, self._said = True, said
        return step
