"""Which roles are to start, and on which hosts; for how long workers wait for a host; whose fault an end is."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridsync.cluster.role_assignment import RoleAssignment
from hybridsync.interfaces.messages import Process, RoleEvent
from hybridsync.runtime.agent.host_messages import Key, KillRole
from hybridsync.runtime.agent.role_process import describe_exit
from hybridsync.runtime.supervisor.process_group_service import ProcessGroupService
from hybridsync.runtime.supervisor.run_hosts import RunHosts

if TYPE_CHECKING:  # it imports this module
    from hybridsync.runtime.supervisor.supervisor import SupervisorSpec


class Placement:
    """Holds the roles that are wanted until they run.

    Args:
      assignment: assignment of the roles to hosts.
      hosts: hosts of the run.
      running: the roles that run, as their owner changes them.
      awaited: hosts that never were there, and whose roles wait for them, as their owner changes them.
    """

    def __init__(
        self,
        assignment: RoleAssignment,
        hosts: RunHosts,
        running: Mapping[Key, RunningRole],
        awaited: Collection[int],
    ) -> None:
        self._assignment, self._hosts, self._running, self._awaited = assignment, hosts, running, awaited
        self._wanted: dict[Key, str] = {}  # and why; these have no host yet
        self._starting: dict[Key, tuple[int, str]] = {}

    @property
    def pending(self) -> set[Key]:
        """Roles that are wanted and do not run yet."""
        return {*self._wanted, *self._starting}

    def want(self, key: Key, reason: str) -> None:
        """Have a role started by the next `due`."""
        self._wanted[key] = reason

    def due(self, *, workers: bool) -> Iterator[tuple[Key, int, str]]:
        """Yield the roles that have a host now, each with the host and why it is wanted: they are being started.

        Args:
          workers: whether there is a group for workers to join.
        """
        for key, reason in list(self._wanted.items()):
            host = self._host_of(key)
            if host is not None and (workers or key[0] != "worker"):
                del self._wanted[key]
                self._starting[key] = host, reason
                yield key, host, reason

    def starting(self, role: str) -> list[tuple[Key, int, str]]:
        """Return the roles of a kind that are being started, each with its host and why it is wanted."""
        return [(key, *self._starting[key]) for key in self._starting if key[0] == role]

    def starting_at(self) -> dict[Key, int]:
        """Return the roles that are being started, each with its host."""
        return {key: host for key, (host, _) in self._starting.items()}

    def settle(self, key: Key) -> None:
        """Take note that a role runs, or cannot be started."""
        self._starting.pop(key, None)

    def is_starting_at(self, key: Key, host: int) -> bool:
        """Return whether a role is being started on a host."""
        return key in self._starting and self._starting[key][0] == host

    def host_lost(self, host: int) -> list[Key]:
        """Want again what was being started on a host; returns the roles."""
        lost = []
        for key, (at, reason) in list(self._starting.items()):
            if at == host:
                del self._starting[key]
                self._wanted[key] = reason
                lost.append(key)
        return lost

    def present(self, slots: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of these workers that run, or have a host to start on."""
        known = self._running.keys() | self._starting.keys()
        return tuple(slot for slot in slots if ("worker", slot) in known or self._host_of(("worker", slot)) is not None)

    def missing(self, slots: tuple[int, ...]) -> list[Key]:
        """Return the wanted roles without a host; of workers, those of `slots`."""
        return [
            key
            for key in sorted(self._wanted)
            if self._host_of(key) is None and (key[0] != "worker" or key[1] in slots)
        ]

    def _host_of(self, key: Key) -> int | None:
        slots = self._hosts.slots()
        # What is wanted and has its home there starts at home, and keeps its place there until it does.
        homes = {other: self._assignment.home(*other) for other in self._wanted if other != key}
        places = {other: home for other, home in homes.items() if home in slots}
        places |= {other: host for other, (host, _) in self._starting.items()}
        places |= {other: role.host for other, role in self._running.items()}
        away_secs = {host: secs for host, secs in self._hosts.away_secs().items() if host not in self._awaited}
        return self._assignment.host(*key, slots, away_secs, places)


@dataclass
class RunningRole:
    """Holds what a supervisor knows of a role that runs.

    Attributes:
      role: "chief", "server" or "worker".
      role_id: index of the role within its kind.
      restart_count: number of processes that had this place before.
      pid: process id, on its host.
      host: index of the host on which it runs.
      quarantine: reason why no process takes its place when it has ended; "" if a new one does.
      exit_code: exit code that it reported before it ended, None if it did not: any process may end with a code that
        means nothing, because user code called `exit`.
      error: reason that it reported with its exit code, or for which this process ends it; "" for none.
      stood_secs: for how long it had shown no sign of life when this process ended it for that; 0 for another end.
      is_given_up: whether the chief has had it ended. It may end by itself first, where the order does not reach it.
    """

    role: str
    role_id: int
    restart_count: int
    pid: int
    host: int
    quarantine: str = ""
    exit_code: int | None = None
    error: str = ""
    stood_secs: float = 0.0
    is_given_up: bool = False

    @property
    def process(self) -> Process:
        """Return the process of the run that it is."""
        return self.role, self.role_id, self.restart_count, self.pid

    def started(self, reason: str, wall: float) -> RoleEvent:
        """Return what the chief is told of its start: why, and when by the wall clock."""
        return RoleEvent(self.role, self.role_id, self.pid, reason, wall, restart_count=self.restart_count)

    def lost(self, reason: str, unit: int, wall: float) -> RoleEvent:
        """Return what the chief is told of its end: why, the unit that it computed, and when by the wall clock.

        One that the chief has had ended proves nothing against its unit, whatever it was given up for.
        """
        told, unit = self.quarantine or reason, -1 if self.is_given_up else unit
        is_last = bool(self.quarantine)
        return RoleEvent(
            self.role,
            self.role_id,
            self.pid,
            reason=told,
            wall=wall,
            unit=unit,
            quarantined=is_last,
            restart_count=self.restart_count,
        )

    def kill_order(self) -> KillRole:
        """Return the order that kills it."""
        return KillRole(self.role, self.role_id, self.pid)

    def reason(self, code: int) -> str:
        """Put its end with this exit code into words, with the last of its own."""
        return describe_exit(code) + (f": {self.error}" if self.error else "")

    @property
    def name(self) -> str:
        """Name of the role in messages."""
        return self.role if self.role == "chief" else f"{self.role} {self.role_id}"


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


MAX_FAILURES = 4
"""How often a role fails in a row, by itself, until it is given up."""


class CrashLoop:
    """Tells a role that fails again and again by itself from one that is killed from outside.

    Failures count while they follow each other: a process that lives for longer than the window, its start included,
    begins anew. So a role that needs longer than that to start is never given up. Processes that ended on one unit
    count once: two of them make the unit a suspect, not the role (see `hybridsync.chief.bad_units`).

    >>> loop = CrashLoop(limit=1, window_secs=30.0)
    >>> loop.add("worker 3", lived_secs=40.0), loop.add("worker 3", lived_secs=29.0)
    (False, True)
    >>> loop.add("worker 1", lived_secs=1.0, unit=7), loop.add("worker 1", lived_secs=1.0, unit=7)
    (False, False)

    Args:
      limit: failures of one role that are borne.
      window_secs: the time after which a process counts as a good one.
    """

    def __init__(self, limit: int = MAX_FAILURES - 1, window_secs: float = 30.0) -> None:
        self._limit = limit
        self._window_secs = window_secs
        self._failures: dict[str, list[int]] = {}

    def add(self, name: str, lived_secs: float, unit: int = -1, *, by_itself: bool = True) -> bool:
        """Note the end of a process that lived for so long; returns whether that was one failure too many."""
        if lived_secs > self._window_secs:
            self._failures.pop(name, None)
        if not by_itself:
            return False
        before = self._failures.get(name, [])
        ended_on = {name: units for name, units in self._failures.items() if unit >= 0 and unit in units}
        if ended_on.keys() - {name}:  # it ends any worker that computes it
            for other, units in ended_on.items():
                self._failures[other] = [each for each in units if each != unit]
            return False
        self._failures[name] = before if name in ended_on else [*before, unit]
        return len(self._failures[name]) > self._limit


LONGEST_STEP_SECS = 2.0
"""A longer time between two looks is the looker's own pause: a machine that was suspended stops all its processes."""


class Stillness:
    """Counts for how long what is looked at has not changed, without the time in which nobody looked.

    >>> stillness = Stillness()
    >>> [stillness.look("a", now) for now in (0.0, 1.0, 2.0, 600.0)], stillness.look("b", 601.0)
    ([0.0, 1.0, 2.0, 4.0], 0.0)
    """

    def __init__(self) -> None:
        self._seen: object = None
        self._looked_at = self._secs = 0.0

    def look(self, seen: object, now: float) -> float:
        """Return the seconds for which `seen` has been the same."""
        self._secs = self._secs + min(now - self._looked_at, LONGEST_STEP_SECS) if seen == self._seen else 0.0
        self._seen, self._looked_at = seen, now
        return self._secs
