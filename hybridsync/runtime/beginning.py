"""Decides when a run on several hosts begins, and with which of them."""

from __future__ import annotations

import enum

from hybridsync.cluster.role_assignment import RoleAssignment
from hybridsync.runtime.placement import Placement
from hybridsync.runtime.supervisor_spec import SupervisorSpec


class Step(enum.Enum):
    """What is to be done before the first step of the training."""

    WAIT, BEGIN, GO_ON_WITHOUT, FAIL = range(4)


class Beginning:
    """Waits for the hosts of a run until its workers have met once.

    A run begins when every host is there; with `min_workers`, some seconds after it has as many. Where a host is
    missing for `attach_secs`, others with free slots take its roles; or the run begins without its workers, if it has
    as many as it needs; or it ends. One host begins at once.

    Args:
      spec: of the run.
      assignment: which host runs a role.
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
        self._joined_at, self._deadline = 0.0, now + spec.attach_secs

    def host_joined(self, host: int, now: float) -> None:
        """Take note that a host is there."""
        self.absent.discard(host)
        self._joined_at = now

    def host_lost(self, now: float) -> None:
        """Take note that a host is gone: the others wait for it anew."""
        self._deadline = now + self._spec.attach_secs

    def step(self, now: float, slots: tuple[int, ...], group: tuple[int, ...], placement: Placement) -> Step:
        """Return what to do now; asked while the workers have not met.

        Args:
          now: monotonic seconds.
          slots: the workers that are to run.
          group: those that have a place in what they join.
          placement: of the roles.
        """
        present, fewest = len(placement.present(slots)), self._spec.min_workers
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
            lacking = sorted({self._assignment.home(*key) for key in missing})
            self._said = (
                f"error: host {', '.join(map(str, lacking))} has not attached to the head at {self._spec.head} within "
                f"{self._spec.attach_secs:g} s; start `hybridsync host --index={lacking[0]}` there, take fewer "
                "--hosts, or begin with fewer workers: --workers=FEWEST..MOST"
            )
            return Step.FAIL
        begins = f"the run begins without host {hosts}: " if hosts else ""
        said = begins and begins + ("the others have workers enough" if missing else "others have slots for all")
        if not self.has_begun:
            return self._go(Step.BEGIN, said)
        if any(slot in group for _, slot in missing):  # the others wait there for workers that do not come
            return self._go(Step.GO_ON_WITHOUT, said)
        self._said = said
        return Step.WAIT

    def take_said(self) -> str:
        """Return what the user is told of the last step that was no wait, once."""
        said, self._said = self._said, ""
        return said

    def _go(self, step: Step, said: str) -> Step:
        self.has_begun, self._said = True, said
        return step
