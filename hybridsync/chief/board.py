"""What the chief knows of its run, under one lock: members, leases, the active phase, and what they reported.

The manager works with the `Board`; roles reach it through `chief.Chief`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hybridsync.chief.attendance import Attendance
from hybridsync.chief.divergence import Divergence
from hybridsync.chief.intake import Intake
from hybridsync.chief.leasing import Leasing
from hybridsync.chief.ledger import Counts, Ledger
from hybridsync.chief.membership import HEARTBEAT_SECS, LEASE_SECS, Member, Membership
from hybridsync.chief.suspects import Suspects
from hybridsync.chief.waiting import Waiting
from hybridsync.clock import Clock
from hybridsync.errors import HybridSyncError, PhaseBroken, RoleLost
from hybridsync.messages import NON_FINITE, WAITING, Capture, Held, Report, RoleEvent, Standing
from hybridsync.plan import NO_EPOCH, Phase
from hybridsync.protocols.base import Path
from hybridsync.telemetry.offsets import ClockOffsets
from hybridsync.units import Range, UnitSet

SERVER_LEASE_SECS = 15.0
"""A server without a sign of life for so long is lost: its loss costs everybody's work since the last commit."""


class Board(Waiting):
    """Keeps who is there, what is handed out, and the phase that is announced.

    The condition guards every attribute; it is notified whenever something changed that somebody may wait for.

    Args:
      ledger: the run's accounting.
      num_workers: slots of the run.
      num_servers: parameter servers of the run.
      schema: `Layout.schema_hash` that every role has to share.
      clock: for leases, deadlines and rates.
      lease_secs: a worker without a sign of life for so long is lost; infinite for threads, which cannot die
        unnoticed.
      restarted: roles may be in the middle of a phase; until it is adopted, or known that there is none, they wait.
    """

    def __init__(
        self,
        ledger: Ledger,
        num_workers: int,
        schema: str,
        clock: Clock,
        lease_secs: float = LEASE_SECS,
        num_servers: int = 1,
        restarted: bool = False,
    ) -> None:
        self._restarted = restarted
        self._standings: dict[tuple[str, int], Standing] = {}
        self._lease_secs, self._server_lease_secs = lease_secs, max(lease_secs, SERVER_LEASE_SECS)
        self.ledger, self.num_workers, self.num_servers = ledger, num_workers, num_servers
        super().__init__(clock)
        self._schema = schema
        self._workers, self._servers = Membership("worker"), Membership("server")
        self._leasing = Leasing(ledger)
        self._divergence, self._suspects = Divergence(), Suspects()
        self._offsets = ClockOffsets()
        self._here = Attendance()
        self._resting: dict[int, Held | None] = {}
        self._announced = self._gathering = self._done = False
        self._judged = clock.monotonic()
        self._told: set[tuple[str, int]] = set()
        self._warned: set[tuple[str, int]] = set()
        self._intake = Intake()
        self._fenced: list[tuple[int, int]] = []
        self._evicted: list[RoleEvent] = []
        self._preempted = False

    def standings(self) -> dict[tuple[str, int], Standing]:
        """What live roles were in the middle of when they registered, by (role, id)."""
        with self._condition:
            live = [("server", server) for server in self._servers.ids()]
            live += [("worker", worker) for worker in self._workers.ids()]
            return {key: self._standings[key] for key in live if key in self._standings}

    def adopt(self, phase: Phase | None, path: Path, broken: str = "") -> None:
        """Go on with a phase that an earlier chief announced, None where there is none; roles wait no longer.

        The ledger says already what the holder of its state does.

        Args:
          phase: the newest that a role is in.
          path: of its protocol.
          broken: why it cannot go on; "" if it can.
        """
        with self._condition:
            self._restarted = False
            if phase is not None:
                self._leasing.begin(phase, path)
                self._announced = True
                for (role, role_id), standing in self.standings().items():
                    member = self._workers.get(role_id)
                    if role == "worker" and member and standing.open and standing.phase.epoch == phase.epoch:
                        self._here.admitted[role_id] = member.incarnation
                        if path is Path.SERVER:
                            self._leasing.adopt(role_id, standing.stream, standing.completed)
                left_out = UnitSet(self.ledger.all_dropped(self.ledger.applied().ranges(), ()))
                if news := left_out.difference(UnitSet(phase.dropped)).ranges():
                    broken = broken or f"units {news} are quarantined, of which the state's holder has not heard"
                if broken:
                    self._break(broken)
            self._condition.notify_all()

    def announce(self, phase: Phase, path: Path) -> None:
        """Make `phase` the one that workers enter; its leases stay closed until `open_leases`."""
        with self._condition:
            self._leasing.begin(phase, path)
            self._here, self._announced, self._gathering = Attendance(), True, False
            self._warned.clear()
            if path is Path.SYNC and (gone := [w for w in phase.members if self._workers.get(w) is None]):
                self._break(f"workers {gone} were lost while it began")
            if path is Path.SERVER and not all(map(self.is_live, phase.servers)):
                self._break("a server was lost while it began")
            self._condition.notify_all()

    def open_leases(self) -> None:
        """Let units of the announced phase go out."""
        with self._condition:
            self._leasing.open()
            self._condition.notify_all()

    def close_leases(self) -> None:
        """Hand out no further unit in this phase; streams end where they are."""
        with self._condition:
            self._leasing.close()
            self._announced = False
            self._condition.notify_all()

    def break_phase(self, reason: str) -> None:
        """Make the active phase one that cannot go on: every role in it is revoked."""
        with self._condition:
            self._break(reason)

    def gather(self) -> str:
        """Call everybody back from the broken phase; returns why it broke.

        Waits no longer raise `PhaseBroken` until the next phase is announced.
        """
        with self._condition:
            self._gathering = True
            self.close_leases()
            return self._here.broken

    def evict(self, worker: int, reason: str) -> None:
        """Treat a live worker as lost; whoever started its process is to end it."""
        with self._condition:
            self._evict(self._workers, worker, reason)

    def restore(self, capture: Capture, *, rolled_back: bool) -> int:
        """Make the ledger say what `capture` does; returns how many units had been counted as applied and are not.

        Args:
          capture: the newest state that someone holds.
          rolled_back: whether units were lost that had been applied for all, which the accounting tells.
        """
        with self._condition:
            lost = self.ledger.restore(capture.applied, capture.dropped)
            self.ledger.rolled_back += lost if rolled_back else 0
            return lost if rolled_back else 0

    def finish(self) -> None:
        """Tell everybody that the run is over."""
        with self._condition:
            self._done = True
            self._condition.notify_all()

    def reclaim(self) -> dict[str, int]:
        """Offer every leased unit of an asynchronous phase to whoever asks, though its holder may still push it.

        A unit is applied once whoever comes first. Returns how many units each holder had.
        """
        with self._condition:
            held = self.ledger.holders()
            for holder in held:
                self.ledger.release(holder)
            self._condition.notify_all()
            return held

    def await_told(self, secs: float) -> bool:
        """Wait until every live role has heard that the run is over; returns whether all have."""
        with self._condition:
            deadline = self._clock.monotonic() + secs
            while not self._everybody() <= self._told:
                if not self._wait(deadline):
                    return False
            return True

    def record(self, capture: Capture) -> None:
        """Bring the ledger up to what the state's holder says; what nobody applied is outstanding again.

        Raises:
          HybridSyncError: the ledger counts units as applied that the state does not hold.
        """
        with self._condition:
            self.ledger.record_applied(capture.applied)
            phase = self._leasing.phase
            # A short phase may end before its mesh has told of drops; where it applied nothing they count all the same.
            fruitless = self._leasing.path is Path.SYNC and phase is not None and capture.applied == phase.applied
            reason = f"{NON_FINITE}: the phase was over before more was told" if fruitless else ""
            dropped = [(unit, reason) for start, stop in capture.dropped for unit in range(start, stop)]
            self._note_dropped(() if fruitless else capture.applied, dropped)
            if extra := self.ledger.applied().difference(UnitSet(capture.applied)):
                raise HybridSyncError(
                    f"the ledger counts {self.ledger.num_applied} units as applied, the state of epoch "
                    f"{capture.held.epoch} holds {capture.held.units}: it lacks {extra.ranges()[:3]}; run the same "
                    "command again to resume from the last checkpoint"
                )

    def release_all(self) -> None:
        """Take every lease of the ended phase back."""
        with self._condition:
            for holder in self.ledger.holders():
                self.ledger.release(holder)

    def watch(self, ready: Callable[[], bool], secs: float) -> bool:
        """Wait up to `secs` for `ready` or a preemption; returns whether `ready`.

        Raises:
          PhaseBroken: the phase cannot go on.
          HybridSyncError: the run cannot go on.
        """
        with self._condition:
            deadline = self._clock.monotonic() + secs
            while not ready() and not self._preempted:
                self._raise_broken()
                if not self._wait(deadline):
                    break
            self._raise_broken()
            return ready()

    def expire(self) -> None:
        """Treat roles whose lease has run out as lost; after its own silence the chief judges nobody."""
        with self._condition:
            silent, self._judged = self._clock.monotonic() - self._judged, self._clock.monotonic()
            if silent > HEARTBEAT_SECS:
                self._workers.refresh(self._clock.monotonic())
                self._servers.refresh(self._clock.monotonic())
            for members, secs in ((self._workers, self._lease_secs), (self._servers, self._server_lease_secs)):
                for member in members.expired(self._clock.monotonic(), secs):
                    self._evict(members, member.hello.id, f"no sign of life for {secs:g} s")

    def take_intake(self) -> Intake:
        """Return and forget what was reported since the last call."""
        with self._condition:
            intake, self._intake = self._intake, Intake()
            return intake

    def take_fenced(self) -> list[tuple[int, int]]:
        """Return and forget the (worker, incarnation) that servers have to refuse from now on."""
        with self._condition:
            fenced, self._fenced = self._fenced, []
            return fenced

    def take_evicted(self) -> list[RoleEvent]:
        """Return and forget the processes that were given up and may still run."""
        with self._condition:
            evicted, self._evicted = self._evicted, []
            return evicted

    def as_broken(self) -> PhaseBroken:
        """Return the error that waits end with while the phase is broken."""
        return PhaseBroken(f"epoch {self._leasing.epoch} cannot go on: {self._here.broken}")

    # Read under the lock of `wait` and `watch`, or for display.

    @property
    def preempted(self) -> bool:
        """Whether the run was asked to stop."""
        return self._preempted

    @property
    def num_applied(self) -> int:
        """Units known to be applied."""
        return self.ledger.num_applied

    def nothing_left(self, phase: Phase) -> bool:
        """Whether every unit of `phase` is leased already."""
        with self._condition:
            return self.ledger.room(phase.end_units) == 0

    def counts(self) -> Counts:
        """The accounting at this moment."""
        with self._condition:
            return self.ledger.counts()

    def behind(self) -> list[int]:
        """Members of a lock-step phase that have reported the fewest completed units."""
        with self._condition:
            return self._here.behind(self._workers.ids())

    def stuck(self, silent_secs: float) -> list[int]:
        """Members for whom the others wait: silent for `silent_secs`; if none is, those not waiting themselves."""
        with self._condition:
            inside = self._here.missing(self._workers.ids())
            silent = self.silent(silent_secs)
            found = [worker for worker in inside if worker in silent]
            return found or [worker for worker in inside if self._here.doing.get(worker) != WAITING]

    def silent(self, secs: float) -> set[int]:
        """Live workers that have not been heard of for `secs`."""
        with self._condition:
            return {member.hello.id for member in self._workers.expired(self._clock.monotonic(), secs)}

    @property
    def broken(self) -> str:
        """Why the active phase cannot go on; "" while it can."""
        return self._here.broken

    @property
    def over(self) -> bool:
        """Whether the run is over."""
        return self._done

    @property
    def gathering(self) -> bool:
        """Whether everybody is called back from a broken phase, and no next one is announced yet."""
        return self._gathering

    def live_workers(self) -> tuple[int, ...]:
        """Ids of live workers, ascending."""
        return self._workers.ids()

    def missing_workers(self) -> list[int]:
        """Slots without a live worker."""
        return [worker for worker in range(self.num_workers) if self._workers.get(worker) is None]

    def missing_drained(self) -> list[int]:
        """Live members of a lock-step phase that have not come back; who has not entered it is missing too."""
        phase = self._leasing.phase
        members = phase.members if phase else ()
        return [worker for worker in self._workers.ids() if worker in members and worker not in self._here.back]

    def missing_back(self) -> list[int]:
        """Live workers that have entered the phase and not come back."""
        return self._here.missing(self._workers.ids())

    def resting(self) -> dict[int, Held]:
        """Workers between two phases that hold a state, with what they hold."""
        return {worker: held for worker, held in self._resting.items() if held is not None}

    def drained(self) -> dict[int, Held | None]:
        """Who has come back from the phase, with what they hold."""
        return dict(self._here.back)

    def is_live(self, address: str) -> bool:
        """Whether a registered role serves there."""
        with self._condition:
            members = [m.get(role_id) for m in (self._workers, self._servers) for role_id in m.ids()]
            return any(member is not None and member.hello.address == address for member in members)

    def address_of(self, role: str, role_id: int) -> str:
        """Where a live role serves its state.

        Raises:
          RoleLost: it is gone.
        """
        member = (self._servers if role == "server" else self._workers).get(role_id)
        if member is None:
            raise RoleLost(f"{role} {role_id} is gone; run the same command again to resume from the last checkpoint")
        return member.hello.address

    def num_live_servers(self) -> int:
        """Registered servers."""
        return len(self._servers.ids())

    def worker_rates(self) -> dict[int, float]:
        """Units a second of each worker; under lock-step everybody's share of the mesh."""
        return self._leasing.rates(self._workers.ids())

    @property
    def first_leased(self) -> float:
        """Monotonic seconds at which the first unit went out; 0 before."""
        return self._leasing.first_leased

    def stamps(self) -> tuple[float, float]:
        """Earliest first and latest last update that a role reported in this phase; 0 before them."""
        with self._condition:
            return self._here.first_and_last()

    def stamps_of(self, role: str, role_id: int, told: Report | Capture) -> tuple[float, float]:
        """The first and the last update that a role tells of, by the chief's clock; 0 before them."""
        with self._condition:
            first, last = told.first_applied, told.last_applied
            return self._offsets.stamp(role, role_id, first), self._offsets.stamp(role, role_id, last)

    # --- inside ---

    def _everybody(self) -> set[tuple[str, int]]:
        servers = {("server", server) for server in self._servers.ids()}
        return servers | {("worker", worker) for worker in self._workers.ids()}

    def _note_dropped(self, applied: Sequence[Range], dropped: Iterable[tuple[int, str]]) -> None:
        """Note final drops, and end the run if nothing else comes of it; `applied` are the units beside them."""
        news = [(unit, reason) for unit, reason in dropped if self.ledger.record_dropped(unit)]
        if diverged := self._divergence.note(applied, news):
            self.fail(diverged)

    def _break(self, reason: str) -> None:
        if self._leasing.epoch == NO_EPOCH or self._done:
            return
        self._here.broken = self._here.broken or reason
        self._leasing.close()
        self._condition.notify_all()

    def _raise_broken(self) -> None:
        self.raise_failure()
        if self._here.broken and not self._gathering:
            raise self.as_broken()

    def _evict(self, members: Membership, role_id: int, reason: str) -> None:
        member = members.get(role_id)
        if member is None:
            return
        event = RoleEvent(members.role, role_id, member.hello.pid, reason, self._clock.wall())
        self._intake.lost.append(event)
        self._evicted.append(event)
        self._lose(members.role, role_id, reason)

    def _lose(self, role: str, role_id: int, reason: str) -> None:
        self._offsets.forget(role, role_id)
        if role == "server":
            if self._servers.leave(role_id) is not None and self._leasing.path is Path.SERVER:
                self._break(f"server {role_id} was lost ({reason})")
        else:
            member = self._workers.leave(role_id)
            if member is not None:
                self._lose_worker(member, reason)
        self._condition.notify_all()

    def _lose_worker(self, member: Member, reason: str) -> None:
        worker, phase = member.hello.id, self._leasing.phase
        in_phase = phase is not None and worker in phase.members and worker not in self._here.back
        self._leasing.lose(worker)
        self._here.lose(worker)
        self._resting.pop(worker, None)
        self._fenced.append((worker, member.incarnation))
        if in_phase and self._leasing.path is Path.SYNC:
            self._break(f"worker {worker} was lost ({reason})")
