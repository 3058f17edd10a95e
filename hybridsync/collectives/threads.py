"""Collectives among threads of one process: the last to arrive computes the result for all, in the members' order."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from hybridsync.collectives.backend import CommunicatorPhase, JointGradient
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.deadlines import MEMBERS_SECS
from hybridsync.core.errors import PhaseRevoked, WaitTimeout
from hybridsync.devices.placement import SHARED_DEVICE, Placement
from hybridsync.interfaces.messages import GroupReply
from hybridsync.training.averaging import AveragedPart, mean
from hybridsync.training.compiled_programs import Programs

DEADLINE_SECS = MEMBERS_SECS
"""How long a thread waits for the slowest member."""


class Rendezvous:
    """Lets threads meet again and again; the last to arrive combines what all have brought.

    The condition guards the slots and the generation; it is notified when a generation completes or breaks.

    Args:
      members: worker ids in the order of their indices, named when one is missing.
      deadline_secs: longest wait for the slowest member, in seconds.

    Attributes:
      met_at: monotonic seconds at which the last one came to what the caller has exchanged last.
    """

    def __init__(self, members: tuple[int, ...], deadline_secs: float = DEADLINE_SECS) -> None:
        self._members, self._deadline_secs = members, deadline_secs
        self._condition = threading.Condition()
        self._slots: list[Any] = [None] * len(members)
        self._arrived = 0
        self._generation = 0
        self._result: Any = None
        self._broken = ""
        self.met_at = 0.0

    def exchange(self, index: int, item: Any, combine: Callable[[tuple], Any]) -> Any:
        """Put `item` into the member's slot; the last one combines them all, and everybody returns the result.

        Raises:
          PhaseRevoked: the rendezvous was broken off.
          WaitTimeout: a member did not come in time.
        """
        with self._condition:
            if self._broken:
                raise PhaseRevoked(self._broken)
            generation = self._generation
            self._slots[index] = item
            self._arrived += 1
            if self._arrived == len(self._members):
                self.met_at = SYSTEM_CLOCK.monotonic()
                self._result = combine(tuple(self._slots))
                self._slots = [None] * len(self._members)
                self._arrived = 0
                self._generation += 1
                self._condition.notify_all()
                return self._result
            arrived = self._condition.wait_for(
                lambda: self._generation != generation or self._broken, self._deadline_secs
            )
            if self._broken:
                raise PhaseRevoked(self._broken)
            if not arrived:
                missing = [m for m, slot in zip(self._members, self._slots, strict=True) if slot is None]
                raise WaitTimeout(
                    f"workers {missing} did not deliver their gradients within {self._deadline_secs:g} s; the others "
                    "of the step have"
                )
            return self._result

    def break_off(self, reason: str) -> None:
        """Make every waiting and later call raise PhaseRevoked."""
        with self._condition:
            self._broken = reason
            self._condition.notify_all()


class ThreadCommunicator:
    """The members of one phase as threads of one process (see `Communicator`).

    The lock guards the groups in progress.

    Args:
      members: worker ids in the order of the sum.
      sum_up: ordered sum of a tuple of contributions.
      deadline_secs: longest wait for the slowest member, in seconds.
      placement: where each member computes: a group's mean is computed where its first member does.
    """

    joint_gradient: JointGradient | None = None  # each runs its own program

    def __init__(
        self,
        members: tuple[int, ...],
        sum_up: Callable[[tuple], Any],
        deadline_secs: float = DEADLINE_SECS,
        placement: Placement = SHARED_DEVICE,
    ) -> None:
        self._placement, self._mean = placement, placement.placed(mean)
        self._is_alone, self._sum_up, self._deadline_secs = len(members) == 1, sum_up, deadline_secs
        self._everybody = Rendezvous(members, deadline_secs)
        self._lock = threading.Lock()
        self._groups: dict[int, Rendezvous] = {}
        self._broken = ""
        self._met = threading.local()

    @property
    def met_at(self) -> float:
        """Return when all had come to this thread's last sum or mean (see `Communicator.met_at`)."""
        return getattr(self._met, "at", 0.0)

    def enter(self) -> None:
        """Do nothing: threads of one process need no introduction."""

    def pack(self, contribution: Any) -> bool:
        """Do nothing: threads sum what lies where the programs have left it."""
        return False

    def sum(self, index: int, contribution: Any) -> Any:
        """Deliver a contribution (see `Communicator.sum`)."""
        if self._is_alone:
            self._check()
            return contribution
        return self.exchange(index, contribution, self._sum_up)

    def exchange(self, index: int, item: Any, combine: Callable[[tuple], Any]) -> Any:
        """Meet all members (see `Rendezvous.exchange`)."""
        found = self._everybody.exchange(index, item, combine)
        self._met.at = self._everybody.met_at
        return found

    def gather(self, index: int, reasons: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """Tell why contributions are missing (see `Communicator.gather`)."""
        if self._is_alone:
            self._check()
            return (reasons,)
        return self._everybody.exchange(index, reasons, tuple)

    def group_mean(self, reply: GroupReply, worker: int, part: AveragedPart) -> AveragedPart:
        """Bring a part (see `Communicator.group_mean`)."""
        with self._lock:
            self._check()
            group = self._groups.setdefault(reply.sequence, Rendezvous(reply.members, self._deadline_secs))
        average: AveragedPart = group.exchange(
            reply.members.index(worker), part, lambda parts: self._mean(self._at(reply.members[0], parts))
        )
        average = self._placement.at_worker(average, worker)
        self._met.at = group.met_at
        with self._lock:
            self._groups.pop(reply.sequence, None)
        return average

    def break_off(self, reason: str) -> None:
        """End every sum and every group mean (see `Communicator.break_off`)."""
        with self._lock:
            self._broken = self._broken or reason
            groups = [*self._groups.values()]
        for rendezvous in (self._everybody, *groups):
            rendezvous.break_off(reason)

    def _at(self, worker: int, parts: tuple) -> tuple:
        return tuple(self._placement.at_worker(part, worker) for part in parts)

    def _check(self) -> None:
        if self._broken:
            raise PhaseRevoked(self._broken)


class ThreadCollectives:
    """Makes a communicator that all threads of a phase share (see `Collectives`).

    Args:
      programs: the run's compiled programs.
    """

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def prepare(self, *, sums: bool, groups: bool) -> None:
        """Do nothing: threads sum with the run's own programs."""

    def rest(self) -> None:
        """Do nothing: a sum keeps no memory."""

    def communicator(self, phase: CommunicatorPhase) -> ThreadCommunicator:
        """Return a fresh communicator of the phase's members."""
        sum_up = functools.partial(self._sum, phase.members)
        return ThreadCommunicator(phase.members, sum_up, placement=self._programs.placement)

    def _sum(self, members: tuple[int, ...], contributions: tuple) -> Any:
        """Return the ordered sum of contributions, computed where the first member computes."""
        at = self._programs.placement
        return self._programs.total(tuple(at.at_worker(each, members[0]) for each in contributions))
