"""Follows the members of a run, and of its active phase: who is alive, who has entered, who is back. Pure.

No clock is read here: times are handed in.

A role is alive while its last sign of life is younger than the lease. A newer process under the same number fences the
older one: its incarnation is refused from then on. The incarnation is the restart count of the process, which its
supervisor counts, so that a restarted chief continues with the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hybridsync.config.run_config import HangConfig
from hybridsync.core.deadlines import LATE_SECS
from hybridsync.core.errors import NotRegistered, RoleLost, StaleIncarnation
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.interfaces.messages import Hello, RoleState, StateVersion
from hybridsync.interfaces.reports import Report

HEARTBEAT_SECS = 1.0
LEASE_SECS = HangConfig.silent_secs


@dataclass(slots=True)
class Member:
    """A registered role process; `last_beat` moves on with every sign of life."""

    hello: Hello
    incarnation: int
    last_beat: float


class Membership:
    """The registered processes of one kind of role, by id."""

    def __init__(self, role: str) -> None:
        self.role = role
        self._members: dict[int, Member] = {}
        self._incarnations: dict[int, int] = {}

    def join(self, hello: Hello, now: float) -> Member:
        """Register a process; it replaces any earlier one under the same id. A repeat changes nothing.

        Raises:
          StaleIncarnation: a later process has this place, or this one has left it.
        """
        incarnation = hello.restart_count + 1
        newest = self._incarnations.get(hello.id, 0)
        if incarnation < newest or (incarnation == newest and hello.id not in self._members):
            raise self._stale(hello.id, incarnation)
        self._incarnations[hello.id] = incarnation
        self._members[hello.id] = Member(hello, incarnation, now)
        return self._members[hello.id]

    def leave(self, role_id: int) -> Member | None:
        """Remove a process; its incarnation is refused from now on."""
        return self._members.pop(role_id, None)

    def beat(self, role_id: int, incarnation: int, now: float) -> Member:
        """Note a sign of life.

        Raises:
          StaleIncarnation: the process has left or was replaced.
          NotRegistered: neither it nor a later one has registered: an earlier chief may have let it in.
        """
        if role_id not in self._incarnations or incarnation > self._incarnations[role_id]:
            raise NotRegistered(f"{self.role} {role_id} has not registered with this chief; register and call again")
        member = self._members.get(role_id)
        if member is None or member.incarnation != incarnation:
            raise self._stale(role_id, incarnation)
        member.last_beat = now
        return member

    def _stale(self, role_id: int, incarnation: int) -> StaleIncarnation:
        newest = self._incarnations[role_id]
        why = f"incarnation {newest} has taken its place" if newest != incarnation else "its lease has expired"
        return StaleIncarnation(
            f"{self.role} {role_id} speaks as incarnation {incarnation}, but {why}; this process ends"
        )

    def expired(self, now: float, lease_secs: float) -> tuple[Member, ...]:
        """Return the members without a sign of life for `lease_secs`."""
        return tuple(m for m in self._members.values() if now - m.last_beat > lease_secs)

    def refresh(self, now: float) -> None:
        """Count everybody as just heard of."""
        for member in self._members.values():
            member.last_beat = now

    def get(self, role_id: int) -> Member | None:
        """Return the live process under that id."""
        return self._members.get(role_id)

    def ids(self) -> tuple[int, ...]:
        """Return the ids of live processes, ascending."""
        return tuple(sorted(self._members))


VACANT_SECS = 20.0
"""How long a worker's place may have no process before nobody waits for it: its host is away, and no other has room."""


class RunMembership:
    """Follows the processes of all roles.

    Args:
      num_workers: slots of the run.
      num_servers: parameter servers of the run.
      lease_secs: a process without a sign of life for so long is lost; infinite for threads, which cannot die
        unnoticed.
      now: monotonic seconds.
      late: workers that join later: the start does not wait for them to register.

    Attributes:
      workers, servers: live processes.
      quarantined: worker -> why its place stays empty from now on.
      resting: worker between two phases -> the state it holds, None if it holds none.
      entering: servers that last reported that they fetch the state of a phase.
    """

    def __init__(
        self,
        num_workers: int,
        num_servers: int,
        lease_secs: float,
        now: float,
        late: Iterable[int] = (),
        min_workers: int = 0,
    ) -> None:
        self.num_workers, self.num_servers, self.lease_secs = num_workers, num_servers, lease_secs
        self._min_workers = min_workers
        self.workers, self.servers = Membership("worker"), Membership("server")
        self.quarantined: dict[int, str] = {}
        self.resting: dict[int, StateVersion | None] = {}
        self.entering: set[int] = set()
        self._late = set(late)
        self._vacant_since: dict[int, float] = {}
        self._worker_hosts: dict[int, str] = {}
        self._role_states: dict[tuple[str, int], RoleState] = {}
        self._judged = now

    def of(self, role: str) -> Membership:
        """Return the processes of "worker" or "server"."""
        return self.servers if role == "server" else self.workers

    def join(self, hello: Hello, now: float) -> Member:
        """Register a process (see `Membership.join`), with where it stands in a phase if it is in one.

        Raises:
          StaleIncarnation: a later process has this place, or this one has left it.
        """
        member = self.of(hello.role).join(hello, now)
        self._role_states.pop((hello.role, hello.id), None)
        if hello.role_state is not None:
            self._role_states[hello.role, hello.id] = hello.role_state
        if hello.role == "worker":
            self._late.discard(hello.id)
            self._vacant_since.pop(hello.id, None)
            self._worker_hosts[hello.id] = hello.host
        return member

    def host_of(self, worker: int) -> str:
        """Return the host where a worker runs, or ran last; "" of one that has never been here."""
        return self._worker_hosts.get(worker, "")

    def sharers(self) -> frozenset[int]:
        """Return the live workers that compute on a device of another one."""
        by_device: dict[tuple[str, str], set[int]] = {}
        for worker in self.workers.ids():
            member = self.workers.get(worker)
            assert member is not None
            for device in member.hello.devices:
                by_device.setdefault((member.hello.host, device), set()).add(worker)
        return frozenset().union(*(workers for workers in by_device.values() if len(workers) > 1))

    def leave(self, role: str, role_id: int) -> Member | None:
        """Remove a process, with what it held; its incarnation is refused from now on."""
        if role == "server":
            self.entering.discard(role_id)
        else:
            self.resting.pop(role_id, None)
        return self.of(role).leave(role_id)

    # --- liveness ---

    def is_judging_due(self, now: float) -> bool:
        """Return whether leases were last looked at half a heartbeat ago."""
        return now - self._judged >= HEARTBEAT_SECS / 2

    def expire(self, now: float) -> list[tuple[str, int]]:
        """Return (role, id) of the processes whose lease has run out.

        When leases have not been looked at for long, the chief was silent itself: every lease begins anew.
        """
        silent, self._judged = now - self._judged, now
        if silent > LATE_SECS:
            self.workers.refresh(now)
            self.servers.refresh(now)
        return self.silent(now, self.lease_secs)

    def silent(self, now: float, secs: float) -> list[tuple[str, int]]:
        """Return (role, id) of the processes that have not been heard of for `secs`."""
        return [
            (members.role, member.hello.id)
            for members in (self.workers, self.servers)
            for member in members.expired(now, secs)
        ]

    def held_states(self) -> dict[int, StateVersion]:
        """Return workers between two phases that hold a state, with what they hold."""
        return {worker: held for worker, held in self.resting.items() if held is not None}

    def live(self) -> list[tuple[str, int]]:
        """Return (role, id) of every live process: servers first, ascending."""
        servers = [("server", server) for server in self.servers.ids()]
        return servers + [("worker", worker) for worker in self.workers.ids()]

    def role_states(self) -> dict[tuple[str, int], RoleState]:
        """Return what live processes were in the middle of when they registered, by (role, id)."""
        return {key: self._role_states[key] for key in self.live() if key in self._role_states}

    def is_live(self, address: str) -> bool:
        """Return whether a live process serves there."""
        members = [self.of(role).get(role_id) for role, role_id in self.live()]
        return any(member is not None and member.hello.address == address for member in members)

    def address_of(self, role: str, role_id: int) -> str:
        """Return where a live process serves its state.

        Raises:
          RoleLost: the process is gone.
        """
        member = self.of(role).get(role_id)
        if member is None:
            raise RoleLost(f"{role} {role_id} is gone; run the same command again to resume from the last checkpoint")
        return member.hello.address

    # --- places without a process ---

    def worker_started(self, worker: int) -> None:
        """Take note that a process was started that has not registered yet."""
        self._vacant_since.pop(worker, None)

    def worker_ended(self, worker: int, now: float) -> None:
        """Take note that a worker's process has ended; another one may be started in its place."""
        self._vacant_since.setdefault(worker, now)

    def is_awaited(self, worker: int, now: float) -> bool:
        """Return whether a worker that was there is waited for, in the middle of a run."""
        vacant_secs = now - self._vacant_since.get(worker, now)
        return self.workers.get(worker) is None and worker not in self.quarantined and vacant_secs < VACANT_SECS

    def missing_workers(self) -> list[int]:
        """Return the places without a live worker."""
        return [worker for worker in range(self.num_workers) if self.workers.get(worker) is None]

    def num_expected(self) -> int:
        """Return how many workers there are to be, but for those that come later."""
        return self.num_workers - len(self._late | self.quarantined.keys())

    def num_awaited(self) -> int:
        """Return how many workers the run waits for before it begins."""
        return min(self.num_expected(), self._min_workers or self.num_workers)

    def num_needed(self) -> int:
        """Return with how many workers a phase begins: one, or the fewest that the run is to have."""
        return max(1, min(self._min_workers, self.num_workers - len(self.quarantined)))

    def process_groups(self, workers: Iterable[int]) -> set[str]:
        """Return the process groups that these workers have joined; a worker that is gone has none."""
        members = map(self.workers.get, workers)
        return {member.hello.process_group for member in members if member is not None}

    def all_quarantined(self) -> RoleLost | None:
        """Return the error that ends the run when every worker is quarantined."""
        if len(self.quarantined) < self.num_workers:
            return None
        told = "; ".join(f"worker {worker}: {reason}" for worker, reason in sorted(self.quarantined.items()))
        return RoleLost(
            f"no worker is left, every one is quarantined ({told}); correct that, then run the same command again: it "
            "resumes from what was saved"
        )


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

    def units_reached(self) -> int:
        """Return the units that workers hold who have come back; -1 where none has."""
        return max((held.units for held in self.back.values() if held is not None), default=-1)

    def behind(self, live: tuple[int, ...]) -> list[int]:
        """Return the live workers that have reported the fewest completed units."""
        at = {worker: self.positions.get(worker, 0) for worker in live}
        return [worker for worker, position in at.items() if position == min(at.values())]

    def first_and_last(self) -> tuple[float, float]:
        """Return when the phase's first and last update were applied, as far as known; 0 before them."""
        firsts = [first for first, _ in self.stamps.values() if first]
        lasts = [last for _, last in self.stamps.values() if last]
        return min(firsts, default=0.0), max(lasts, default=0.0)
