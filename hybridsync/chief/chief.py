"""The chief as workers, servers and supervisors see it: members, leases, the announced phase, and what they report."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from hybridsync.chief.divergence import Divergence
from hybridsync.chief.leasing import Leasing
from hybridsync.chief.ledger import Counts, Ledger
from hybridsync.chief.membership import HEARTBEAT_SECS, LEASE_SECS, Membership
from hybridsync.clock import Clock
from hybridsync.errors import HybridSyncError, RoleLost, SchemaMismatch, WaitTimeout
from hybridsync.messages import (
    Capture,
    Held,
    Hello,
    LeaseReply,
    LeaseRequest,
    PhaseReply,
    PhaseRequest,
    Report,
    ReportReply,
    RoleEvent,
    Span,
    Welcome,
)
from hybridsync.plan import Phase
from hybridsync.protocols.base import Path

POLL_SECS = 1.0
"""How long a call waits at the chief before it answers "ask again"."""


@dataclass
class Intake:
    """What roles reported since the manager last looked."""

    loss_sum: float = 0.0
    num_losses: int = 0
    staleness: list[int] = field(default_factory=list)
    compile_secs: float = 0.0
    spans: list[tuple[str, int, tuple[Span, ...]]] = field(default_factory=list)
    joined: list[Hello] = field(default_factory=list)
    lost: list[RoleEvent] = field(default_factory=list)


class Chief:
    """Hands out units and phases, and keeps who is there.

    The condition guards every attribute; it is notified whenever something changed that somebody may wait for.

    Args:
      ledger: the run's accounting.
      num_workers: slots of the run.
      schema: `Layout.schema_hash` that every role has to share.
      clock: for leases, deadlines and rates.
      lease_secs: a worker without a sign of life for so long is lost; infinite for threads, which cannot die
        unnoticed.
    """

    def __init__(
        self, ledger: Ledger, num_workers: int, schema: str, clock: Clock, lease_secs: float = LEASE_SECS
    ) -> None:
        self._lease_secs = lease_secs
        self.ledger, self.num_workers = ledger, num_workers
        self._schema, self._clock = schema, clock
        self._condition = threading.Condition()
        self._workers, self._servers = Membership("worker"), Membership("server")
        self._leasing = Leasing(ledger)
        self._divergence = Divergence()
        self._admitted: dict[int, int] = {}
        self._announced = self._done = False
        self._drained: dict[int, Held | None] = {}
        self._positions: dict[int, int] = {}
        self._judged = clock.monotonic()
        self._told: set[tuple[str, int]] = set()
        self._stamps: dict[tuple[str, int], tuple[float, float]] = {}
        self._intake = Intake()
        self._fenced: list[tuple[int, int]] = []
        self._failure: HybridSyncError | None = None
        self._preempted = False
        self._meshes_lost = 0
        self._mesh_formed: set[int] = set()

    # --- what workers and servers call (ChiefPort) ---

    def register(self, hello: Hello) -> Welcome:
        """Take a process in (see `ChiefPort.register`)."""
        with self._condition:
            if hello.schema != self._schema:
                raise SchemaMismatch(
                    f"{hello.role} {hello.id} was built for the state schema {hello.schema}, the chief for "
                    f"{self._schema}; start every role with the same configuration and version"
                )
            members = self._servers if hello.role == "server" else self._workers
            if hello.role == "worker" and members.get(hello.id) is not None:
                self._lose(hello.id, "replaced by a newer process")
            member = members.join(hello, self._clock.monotonic())
            if hello.role == "worker" and member.incarnation == 1:
                self._mesh_formed.add(hello.id)
            self._intake.joined.append(hello)
            self._condition.notify_all()
            return Welcome(member.incarnation, HEARTBEAT_SECS, self._lease_secs)

    def next_phase(self, request: PhaseRequest) -> PhaseReply:
        """Answer with the phase after `request.after` (see `ChiefPort.next_phase`)."""
        with self._condition:
            deadline = self._clock.monotonic() + POLL_SECS
            while True:
                self.raise_failure()
                self._workers.beat(request.worker, request.incarnation, self._clock.monotonic())
                if self._done:
                    self._tell("worker", request.worker)
                    return PhaseReply(None, done=True)
                phase = self._leasing.phase
                if phase is not None and request.after == phase.epoch and request.worker not in self._drained:
                    self._drained[request.worker] = request.held
                    self._condition.notify_all()
                if phase is not None and self._may_enter(request, phase):
                    self._admitted[request.worker] = request.incarnation
                    if self._leasing.path is Path.SYNC:
                        self._mesh_formed.add(request.worker)
                    return PhaseReply(phase)
                if not self._wait(deadline):
                    return PhaseReply(None)

    def lease(self, request: LeaseRequest) -> LeaseReply:
        """Extend the caller's stream (see `ChiefPort.lease`)."""
        with self._condition:
            deadline = self._clock.monotonic() + POLL_SECS
            while True:
                self.raise_failure()
                now = self._clock.monotonic()
                self._workers.beat(request.worker, request.incarnation, now)
                applied = self.ledger.num_applied
                reply = self._leasing.answer(request, now)
                if self.ledger.num_applied != applied:
                    self._condition.notify_all()
                if reply is not None:
                    return reply
                if not self._wait(deadline):
                    return LeaseReply((), False)

    def report(self, report: Report) -> ReportReply:
        """Take a heartbeat (see `ChiefPort.report`)."""
        with self._condition:
            members = self._servers if report.role == "server" else self._workers
            members.beat(report.id, report.incarnation, self._clock.monotonic())
            epoch = self._leasing.epoch
            intake = self._intake
            intake.loss_sum += report.loss_sum
            intake.num_losses += report.num_losses
            intake.staleness.extend(report.staleness)
            intake.compile_secs += report.compile_secs
            if report.spans:
                intake.spans.append((report.role, report.id, report.spans))
            if report.epoch == epoch:
                self._stamps[report.role, report.id] = (report.first_applied, report.last_applied)
                if report.role == "server":
                    self.ledger.record_applied(report.applied)
                    for unit, _ in report.dropped:
                        self.ledger.record_dropped(unit)
                    if diverged := self._divergence.note(report.applied, report.dropped):
                        self.fail(diverged)
                else:
                    self._positions[report.id] = report.completed
                    key = self._leasing.key_of(report.id)
                    self._leasing.note_progress(key, report.completed, self._clock.monotonic())
                self._condition.notify_all()
            if self._done:
                self._tell(report.role, report.id)
            return ReportReply(epoch, revoked=report.epoch != epoch, done=self._done)

    # --- what supervisors call (SupervisorPort) ---

    def role_started(self, event: RoleEvent) -> None:
        """Note a started process; it registers by itself."""

    def role_lost(self, event: RoleEvent) -> None:
        """Note a process that ended: its units go to others, or the run cannot go on."""
        with self._condition:
            if self._done:
                return
            member = self._workers.get(event.id) if event.role == "worker" else None
            if event.role == "worker" and member is None and self._leasing.phase is None:
                self.fail(  # the others wait for that very process in the world's first mesh, for minutes
                    RoleLost(
                        f"worker {event.id} was lost ({event.reason}) before the run began; run the same command again"
                    )
                )
            if event.role == "worker" and (member is None or member.hello.pid != event.pid):
                return
            self._intake.lost.append(event)
            if event.role == "worker":
                self._lose(event.id, event.reason)
            self._condition.notify_all()

    def preempt(self) -> None:
        """Ask the run to save its state and stop."""
        with self._condition:
            self._preempted = True
            self._condition.notify_all()

    # --- what the manager calls ---

    def announce(self, phase: Phase, path: Path) -> None:
        """Make `phase` the one that workers enter; its leases stay closed until `open_leases`."""
        with self._condition:
            self._leasing.begin(phase, path)
            self._announced = True
            self._admitted, self._drained, self._stamps, self._positions = {}, {}, {}, {}
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
        """Bring the ledger up to what the state's holder says; what nobody applied is outstanding again."""
        with self._condition:
            self.ledger.record_applied(capture.applied)
            for start, stop in capture.dropped:
                for unit in range(start, stop):
                    self.ledger.record_dropped(unit)

    def release_all(self) -> None:
        """Take every lease of the ended phase back."""
        with self._condition:
            for holder in self.ledger.holders():
                self.ledger.release(holder)

    def wait(self, ready: Callable[[], bool], deadline_secs: float, missing: Callable[[], str]) -> None:
        """Wait until `ready`, looked at under the lock.

        Raises:
          WaitTimeout: not in time; `missing` says who is.
          HybridSyncError: the run cannot go on.
        """
        with self._condition:
            deadline = self._clock.monotonic() + deadline_secs
            while not ready():
                self.raise_failure()
                if not self._wait(deadline):
                    raise WaitTimeout(f"after {deadline_secs:g} s: {missing()}")

    def watch(self, ready: Callable[[], bool], secs: float) -> bool:
        """Wait up to `secs` for `ready` or a preemption; returns whether `ready`.

        Raises:
          HybridSyncError: the run cannot go on.
        """
        with self._condition:
            deadline = self._clock.monotonic() + secs
            while not ready() and not self._preempted and self._failure is None:
                if not self._wait(deadline):
                    break
            self.raise_failure()
            return ready()

    def expire(self) -> None:
        """Treat workers whose lease has run out as lost; after its own silence the chief judges nobody."""
        with self._condition:
            silent, self._judged = self._clock.monotonic() - self._judged, self._clock.monotonic()
            if silent > HEARTBEAT_SECS:
                self._workers.refresh(self._clock.monotonic())
            for member in self._workers.expired(self._clock.monotonic(), self._lease_secs):
                reason = f"no sign of life for {self._lease_secs:g} s"
                event = RoleEvent("worker", member.hello.id, member.hello.pid, reason, self._clock.wall())
                self._intake.lost.append(event)
                self._lose(member.hello.id, reason)

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

    def fail(self, error: HybridSyncError) -> None:
        """End the run with `error`."""
        with self._condition:
            self._failure = self._failure or error
            self._condition.notify_all()

    def raise_failure(self) -> None:
        """Raise what ended the run, if anything did."""
        if self._failure is not None:
            raise self._failure

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
            at = {worker: self._positions.get(worker, 0) for worker in self._workers.ids()}
            return [worker for worker, position in at.items() if position == min(at.values())]

    @property
    def lane(self) -> int:
        """How many times a mesh lost a member so far: the number of the next usable mesh."""
        return self._meshes_lost

    def missing_workers(self) -> list[int]:
        """Slots without a live worker."""
        return [worker for worker in range(self.num_workers) if self._workers.get(worker) is None]

    def missing_drained(self) -> list[int]:
        """Live workers that have not yet come back from a lock-step phase; who has not entered it is missing too."""
        return [worker for worker in self._workers.ids() if worker not in self._drained]

    def drained(self) -> dict[int, Held | None]:
        """Who has come back from the phase, with what they hold."""
        return dict(self._drained)

    def address_of(self, role: str, role_id: int) -> str:
        """Where a live role serves its state."""
        member = (self._servers if role == "server" else self._workers).get(role_id)
        if member is None:
            raise RoleLost(f"{role} {role_id} is gone; run the same command again to resume from the last checkpoint")
        return member.hello.address

    def num_servers(self) -> int:
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
            firsts = [first for first, _ in self._stamps.values() if first]
            lasts = [last for _, last in self._stamps.values() if last]
            return min(firsts, default=0.0), max(lasts, default=0.0)

    # --- inside ---

    def _tell(self, role: str, role_id: int) -> None:
        self._told.add((role, role_id))
        self._condition.notify_all()

    def _everybody(self) -> set[tuple[str, int]]:
        servers = {("server", server) for server in self._servers.ids()}
        return servers | {("worker", worker) for worker in self._workers.ids()}

    def _wait(self, deadline: float) -> bool:
        remaining = deadline - self._clock.monotonic()
        return remaining > 0 and (self._condition.wait(remaining) or True)

    def _may_enter(self, request: PhaseRequest, phase: Phase) -> bool:
        if request.after == phase.epoch or request.worker not in phase.members:
            return False
        if self._leasing.path is Path.SYNC:  # also while it drains: those who are in wait for the others
            same = self._admitted.get(request.worker, request.incarnation) == request.incarnation
            return same and request.worker not in self._drained
        return self._announced

    def _lose(self, worker: int, reason: str) -> None:
        member = self._workers.leave(worker)
        if member is None:
            return
        self._leasing.lose(worker)
        self._admitted.pop(worker, None)
        self._fenced.append((worker, member.incarnation))
        if worker in self._mesh_formed:
            self._mesh_formed.clear()
            self._meshes_lost += 1
        in_phase = self._leasing.phase is not None and worker not in self._drained
        if in_phase and self._leasing.path is Path.SYNC and not self._done:
            self._failure = self._failure or RoleLost(
                f"worker {worker} was lost ({reason}) in a lock-step phase, which cannot go on without it; run the "
                "same command again to resume from the last checkpoint"
            )
        self._condition.notify_all()
