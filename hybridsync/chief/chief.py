"""The chief as workers, servers and supervisors see it: it takes calls, and answers from its board."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hybridsync.chief.admission import (
    check_event,
    check_group,
    check_heartbeat,
    check_hello,
    check_lease,
    check_report,
    check_rest,
    check_role,
)
from hybridsync.chief.board import Board
from hybridsync.chief.grouping import Grouping
from hybridsync.chief.membership import HEARTBEAT_SECS
from hybridsync.errors import RoleLost, StaleEpoch
from hybridsync.messages import (
    STARTED_FIRST,
    GroupReply,
    GroupRequest,
    Hello,
    LeaseReply,
    LeaseRequest,
    PhaseReply,
    PhaseRequest,
    RoleEvent,
    Welcome,
)
from hybridsync.phase import Phase
from hybridsync.plan import NO_EPOCH, Epoch
from hybridsync.reports import ENTERING, Report, ReportReply

T = TypeVar("T")

POLL_SECS = 1.0
"""How long a call waits at the chief before it answers "ask again"."""


class Chief(Board):
    """Takes roles in, and hands out units and phases: `ChiefPort` and `SupervisorPort`."""

    # --- what workers and servers call (ChiefPort) ---

    def register(self, hello: Hello) -> Welcome:
        """Take a process in (see `ChiefPort.register`)."""
        check_hello(hello, self.num_workers, self.num_servers, self._schema, self.ledger.workload)
        with self._condition:
            members = self._servers if hello.role == "server" else self._workers
            known = members.get(hello.id)
            if known is not None and known.hello.life < hello.life:
                self._lose(hello.role, hello.id, "replaced by a newer process")
            member = members.join(hello, self._clock.monotonic())
            self._standings.pop((hello.role, hello.id), None)
            if hello.role == "worker":
                self._late.discard(hello.id)
            if hello.standing is not None:
                self._standings[hello.role, hello.id] = hello.standing
                if hello.role == "worker" and not self._restarted:  # too late for the phase's adoption
                    self._take_up(hello.id, hello.standing)
            elif known is None or known.hello.life != hello.life:
                self._intake.joined.append(hello)
            self._condition.notify_all()
            return Welcome(member.incarnation, HEARTBEAT_SECS, self._lease_secs)

    def next_phase(self, request: PhaseRequest) -> PhaseReply:
        """Answer with the phase after `request.after` (see `ChiefPort.next_phase`)."""
        check_rest(request)
        secs = min(request.rest_secs, POLL_SECS) or POLL_SECS
        return self._poll(lambda: self.phase_for(request), secs) or PhaseReply(None)

    def phase_for(self, request: PhaseRequest) -> PhaseReply | None:
        """Return what `next_phase` answers, None while there is nothing to say.

        Raises:
          StaleIncarnation, NotRegistered: see `ChiefPort.next_phase`.
          HybridSyncError: the run cannot go on.
        """
        with self._condition:
            self.raise_failure()
            self._workers.beat(request.worker, request.incarnation, self._clock.monotonic())
            if self._done:
                self._tell("worker", request.worker)
                return PhaseReply(None, done=True)
            self._resting[request.worker] = request.held
            phase = self._leasing.phase
            if phase is not None and request.after == phase.epoch and request.worker not in self._here.back:
                self._here.back[request.worker] = request.held
                if self._grouping is not None:
                    self._grouping.hear(request.worker)
                if request.failure and (not phase.mode.is_served or not self._leasing.closed):
                    self._break(f"worker {request.worker} left it: {request.failure}")
                self._condition.notify_all()
            if phase is None or not self._may_enter(request, phase):
                return self._probe(request)
            self._here.admitted[request.worker] = request.incarnation
            self._resting.pop(request.worker, None)
            return PhaseReply(phase)

    def lease(self, request: LeaseRequest) -> LeaseReply:
        """Extend the caller's stream (see `ChiefPort.lease`)."""
        check_lease(request)
        return self._poll(lambda: self.units_for(request)) or LeaseReply((), False)

    def units_for(self, request: LeaseRequest) -> LeaseReply | None:
        """Return what `lease` answers, None while there is nothing to give and the caller waits for it.

        Raises:
          StaleEpoch, StaleIncarnation, NotRegistered: see `ChiefPort.lease`.
          HybridSyncError: the run cannot go on.
        """
        with self._condition:
            self.raise_failure()
            now = self._clock.monotonic()
            self._workers.beat(request.worker, request.incarnation, now)
            applied = self.ledger.num_applied
            reply = None if self._restarted else self._leasing.answer(request, now)
            if self._grouping is not None:
                reply = self._called(self._grouping, request, reply, now)
            if self.ledger.num_applied != applied:
                self._condition.notify_all()
            nothing = reply is None and request.at_once and self._leasing.is_open
            return LeaseReply((), False) if nothing else reply

    def meet(self, request: GroupRequest) -> GroupReply:
        """Answer with the caller's group (see `GroupPort.meet`)."""
        with self._condition:
            reply = self.group_for(request)
            if reply is None:
                secs = min(POLL_SECS, max(0.0, self.meetings_due - self._clock.monotonic()))
                reply = self._poll(lambda: self.group_for(request), secs)
            if reply is not None or self._grouping is None:
                return reply or GroupReply(())
            return self._grouping.waiting(request.worker)

    def group_for(self, request: GroupRequest) -> GroupReply | None:
        """Return what `meet` answers, None while the caller has to wait.

        Raises:
          StaleEpoch, StaleIncarnation, NotRegistered: see `GroupPort.meet`.
          HybridSyncError: the run cannot go on.
        """
        with self._condition:
            self.raise_failure()
            now = self._clock.monotonic()
            self._workers.beat(request.worker, request.incarnation, now)
            phase, limit = self._leasing.expect(request.epoch), self.ledger.workload + self.ledger.num_dropped
            check_group(request, phase, limit)
            if self._here.broken or self._grouping is None:
                raise StaleEpoch(f"epoch {request.epoch} cannot go on: {self._here.broken or 'its groups are lost'}")
            before, applied = self.ledger.num_applied, [(unit, unit + 1) for unit, _ in request.applied]
            self._judge(applied, request.dropped)
            self.ledger.record_applied(applied)
            self._note_dropped(applied, request.dropped)
            if self._grouping.meet(request, now) or self.ledger.num_applied != before:
                self._condition.notify_all()
            return self._grouping.answer(request)

    def report(self, report: Report) -> ReportReply:
        """Take a heartbeat (see `ChiefPort.report`)."""
        received = self._clock.monotonic()
        with self._condition:
            self.take(report)
            self._poll(lambda: self._done or self.has_news(report) or None, report.hold_secs)
            return self.answer(report, received)

    def take(self, report: Report) -> None:
        """Note what a role reports.

        Raises:
          StaleIncarnation, NotRegistered, InvalidMessage: see `ChiefPort.report`.
        """
        check_role(report.role, report.id, self.num_workers, self.num_servers)
        check_heartbeat(report)
        with self._condition:
            members = self._servers if report.role == "server" else self._workers
            now = self._clock.monotonic()
            members.beat(report.id, report.incarnation, now)
            if report.role == "server":
                self._entering.discard(report.id)
                self._entering.update([report.id] if report.doing == ENTERING else [])
            if now - self._judged >= HEARTBEAT_SECS / 2:  # the manager may be in a call to the very role that is silent
                self.expire()
            if report.epoch == self._leasing.epoch:
                check_report(report, self.ledger.workload + self.ledger.num_dropped)
            if report.exchange is not None:
                self._offsets.add(report.role, report.id, report.exchange)
            self._intake.take(report, self._offsets.secs(report.role, report.id))
            if report.role == "worker":
                self._here.hear(report)
            if report.epoch == self._leasing.epoch and not self._here.broken:
                self._here.note(report, self.stamps_of(report.role, report.id, report))
                if report.role == "worker":
                    key = self._leasing.key_of(report.id)
                    self._leasing.note_progress(key, report.completed, self._clock.monotonic())
                    self._observe(report)
                self._judge(report.applied, report.dropped)
                self.ledger.record_applied(report.applied)
                self._note_dropped(report.applied, report.dropped)
                self._condition.notify_all()
            elif report.role == "worker" and self._is_left_out(report.id):
                self._observe(report)

    def _observe(self, report: Report) -> None:
        if found := self._detector.observe(report.id, report.unit_secs):
            self._intake.decisions += found
            self._condition.notify_all()

    def has_news(self, report: Report) -> bool:
        """Whether the role that reported waits to hear that its phase cannot go on; that it is over has time."""
        return report.epoch in self._revoked and (report.role, report.id) not in self._warned

    def answer(self, report: Report, received: float) -> ReportReply:
        """Return what a role is told in return, that reported at `received` (monotonic seconds)."""
        with self._condition:
            if self._done:
                self._tell(report.role, report.id)
            revoked = self._is_revoked(report.epoch)
            if revoked:
                self._warned.add((report.role, report.id))
            return ReportReply(self._leasing.epoch, revoked, self._done, received, self._clock.monotonic())

    # --- what supervisors call (SupervisorPort) ---

    def role_started(self, event: RoleEvent) -> None:
        """Note a started process, which registers by itself: one that takes another's place is news.

        Raises:
          UnknownRole, InvalidMessage: it is none of this run.
        """
        check_event(event, self.num_workers, self.num_servers, self.ledger.workload)
        if event.reason != STARTED_FIRST:
            with self._condition:
                self._intake.restarted.append(event)

    def role_lost(self, event: RoleEvent) -> None:
        """Note a process that ended: its units go to others, or the run cannot go on.

        Raises:
          UnknownRole, InvalidMessage: it is none of this run.
        """
        check_event(event, self.num_workers, self.num_servers, self.ledger.workload)
        with self._condition:
            if self._done:
                return
            found = self._suspects.note(event) if event.role == "worker" else None
            if found is not None and self.ledger.quarantine(found.unit):
                self._intake.quarantined.append(found)
                self._break(f"unit {found.unit} is quarantined")  # the next phase tells who holds the state
                if self._suspects.is_hopeless(self.ledger.num_applied):
                    self.fail(
                        RoleLost(
                            "unit after unit ends the processes that compute it, and none was applied between them; "
                            f"the last was unit {found.unit}: {found.reason}. See their logs, then run the same "
                            "command again: it resumes from the last commit"
                        )
                    )
            members = {"worker": self._workers, "server": self._servers}.get(event.role)
            member = members.get(event.id) if members else None
            self._intake.lost.append(event)  # also of one that only an earlier chief knew, or that was given up
            if member is not None and member.hello.pid == event.pid:
                self._lose(event.role, event.id, event.reason)
            if event.quarantined and event.id not in self._out:
                self._out[event.id] = event.reason
                self._intake.unfit.append(event)
                self._preempted = self._preempted or self.nobody_left is not None  # what is held is saved
            self._condition.notify_all()

    def preempt(self) -> None:
        """Ask the run to save its state and stop."""
        with self._condition:
            self._preempted = True
            self._condition.notify_all()

    # --- inside ---

    def _tell(self, role: str, role_id: int) -> None:
        self._told.add((role, role_id))
        self._condition.notify_all()

    def _may_enter(self, request: PhaseRequest, phase: Phase) -> bool:
        if request.after == phase.epoch or request.worker not in phase.members or self._here.broken:
            return False
        if not phase.mode.is_served:  # also while it drains: those who are in wait for the others
            same = self._here.admitted.get(request.worker, request.incarnation) == request.incarnation
            return same and request.worker not in self._here.back
        return self._announced

    def _probe(self, request: PhaseRequest) -> PhaseReply | None:
        """Return by which unit a worker that is left out measures itself now: the newest one that was applied.

        The others are about there, and a unit that ends the processes that compute it is not among those.
        """
        if request.rest_secs or not self._announced or self._here.broken or not self._is_left_out(request.worker):
            return None
        newest = self.ledger.newest_applied
        return PhaseReply(None, probe=newest) if newest >= 0 else None

    def _is_left_out(self, worker: int) -> bool:
        """Whether a policy has lock-step go on without a live worker; what that measures of itself counts, too."""
        return worker in self._left_out and self._workers.get(worker) is not None

    def _called(
        self, grouping: Grouping, request: LeaseRequest, reply: LeaseReply | None, now: float
    ) -> LeaseReply | None:
        """Return what a worker in a group phase hears that asked for units, which may be that it is called."""
        grouping.hear(request.worker)
        if reply is not None or request.known > request.completed:
            return reply
        if grouping.calls_everybody:
            return LeaseReply((), False, meet=True)
        if grouping.rest(request.worker, now):
            self._condition.notify_all()
        return None

    def _is_revoked(self, epoch: Epoch) -> bool:
        """Whether who is in `epoch` is to leave it: it cannot go on, or is over and nobody may be left to say so."""
        return NO_EPOCH < epoch < self._leasing.epoch or epoch in self._revoked

    def _poll(self, answer: Callable[[], T | None], secs: float | None = None) -> T | None:
        """Ask until there is an answer, or `secs` are over, POLL_SECS where none are given."""
        with self._condition:
            deadline = self._clock.monotonic() + (POLL_SECS if secs is None else secs)
            while (found := answer()) is None and self._wait(deadline):
                pass
            return found
