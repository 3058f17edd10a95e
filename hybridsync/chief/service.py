"""The chief as workers, servers and supervisors see it: it takes their calls and answers from the run's state."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from hybridsync.chief.bad_units import ended_by_itself
from hybridsync.chief.group_rounds import GroupRounds
from hybridsync.chief.membership import HEARTBEAT_SECS
from hybridsync.chief.message_checks import (
    check_event,
    check_frozen,
    check_group,
    check_heartbeat,
    check_hello,
    check_lease,
    check_report,
    check_rest,
    check_role,
)
from hybridsync.chief.run_state import RunState
from hybridsync.chief.user_commands import CommandService
from hybridsync.core.errors import RoleLost, StalePhase
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.interfaces.commands import StatusReply, StopReply, StopRequest, SwitchReply, SwitchRequest
from hybridsync.interfaces.messages import (
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
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import ENTERING, Report, ReportReply

T = TypeVar("T")

POLL_SECS = 1.0
"""How long a call waits at the chief before it answers "ask again"."""


class ChiefService:
    """Serves roles, supervisors and the run's user: `ChiefPort`.

    Every public method takes the run's lock. A private one is called under it, but for `_poll`.

    A call that waits (`next_phase`, `lease`, `join_group`, `report`) has a counterpart that answers at once
    (`phase_for`, `units_for`, `group_for`, `record_report` with `answer`): the simulator, whose actors may not block,
    calls those.

    Args:
      state: the run's state.
    """

    def __init__(self, state: RunState) -> None:
        self._state, self._condition, self._clock = state, state.condition, state.clock
        self._commands = CommandService(state)

    # --- what workers and servers call (ChiefPort) ---

    def register(self, hello: Hello) -> Welcome:
        """Take a process in (see `ChiefPort.register`)."""
        state = self._state
        members = state.members
        check_hello(hello, members.num_workers, members.num_servers, state.schema, state.ledger.workload)
        if hello.role == "worker" and state.frozen is not None:
            check_frozen(hello.id, hello.frozen, state.frozen)
        with self._condition:
            known = members.of(hello.role).get(hello.id)
            if known is not None and known.hello.restart_count < hello.restart_count:
                # Before it joins: what is lost is the older process, not the one that registers.
                state.remove_role(hello.role, hello.id, "replaced by a newer process")
            state.credit_hosts()  # before it joins: it may come from another host
            member = members.join(hello, self._clock.monotonic())
            state.note_devices()
            if hello.role_state is not None:
                if hello.role == "worker" and not state.restarted:  # too late for the phase's adoption
                    state.adopt_phase(hello.id, hello.role_state)
            elif known is None or known.hello.restart_count != hello.restart_count:
                state.reports.joined.append(hello)
            self._condition.notify_all()
            return Welcome(member.incarnation, HEARTBEAT_SECS, members.lease_secs)

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
            state, worker = self._state, request.worker
            state.waits.raise_failure()
            state.members.workers.beat(worker, request.incarnation, self._clock.monotonic())
            if state.over:
                self._tell("worker", worker)
                return PhaseReply(None, done=True)
            state.members.resting[worker] = request.held
            phase, inside = state.leases.phase, state.phase_members
            if phase is not None and request.after == phase.id and worker not in inside.back:
                inside.back[worker] = request.held
                if state.grouping is not None:
                    state.grouping.end_average(worker)
                if request.failure and (not phase.mode.is_served or not state.leases.closed):
                    state.break_phase(f"worker {worker} left it: {request.failure}")
                self._condition.notify_all()
            # After the lines above: a worker that comes back with a failure may not enter the phase that it breaks.
            if phase is None or not self._may_enter(request, phase):
                return self._probe(request)
            inside.admitted[worker] = request.incarnation
            state.members.resting.pop(worker, None)
            return PhaseReply(phase)

    def lease(self, request: LeaseRequest) -> LeaseReply:
        """Extend the caller's stream (see `ChiefPort.lease`)."""
        check_lease(request)
        return self._poll(lambda: self.units_for(request), POLL_SECS) or LeaseReply((), False)

    def units_for(self, request: LeaseRequest) -> LeaseReply | None:
        """Return what `lease` answers, None while there is nothing to give and the caller waits for it.

        Raises:
          StalePhase, StaleIncarnation, NotRegistered: see `ChiefPort.lease`.
          HybridSyncError: the run cannot go on.
        """
        with self._condition:
            state = self._state
            ledger, leases = state.ledger, state.leases
            state.waits.raise_failure()
            now = self._clock.monotonic()
            state.members.workers.beat(request.worker, request.incarnation, now)
            applied = ledger.num_applied
            reply = None if state.restarted else leases.answer(request, now)
            if state.grouping is not None:
                reply = self._called(state.grouping, request, reply, now)
            if ledger.num_applied != applied:
                self._condition.notify_all()
            nothing = reply is None and request.at_once and leases.is_open
            return LeaseReply((), False) if nothing else reply

    def join_group(self, request: GroupRequest) -> GroupReply:
        """Answer with the caller's group (see `WorkPort.join_group`)."""
        with self._condition:
            reply = self.group_for(request)
            if reply is None:  # asked first, because the worker's coming may change when it is to ask again
                secs = min(POLL_SECS, max(0.0, self.group_due - self._clock.monotonic()))
                reply = self._poll(lambda: self.group_for(request), secs)
            grouping = self._state.grouping
            if reply is not None or grouping is None:
                return reply or GroupReply(())
            return grouping.waiting(request.worker)

    def group_for(self, request: GroupRequest) -> GroupReply | None:
        """Return what `join_group` answers, None while the caller has to wait.

        Raises:
          StalePhase, StaleIncarnation, NotRegistered: see `WorkPort.join_group`.
          HybridSyncError: the run cannot go on.
        """
        with self._condition:
            state, ledger = self._state, self._state.ledger
            state.waits.raise_failure()
            now = self._clock.monotonic()
            state.members.workers.beat(request.worker, request.incarnation, now)
            phase, limit = state.leases.expect(request.phase_id), ledger.workload + ledger.num_dropped
            check_group(request, phase, limit)
            broken, grouping = state.phase_members.broken, state.grouping
            if broken or grouping is None:
                raise StalePhase(f"phase {request.phase_id} cannot go on: {broken or 'its groups are lost'}")
            before = ledger.num_applied
            state.record_units([(unit, unit + 1) for unit, _ in request.applied], request.dropped)
            if grouping.join_group(request, now) or ledger.num_applied != before:
                self._condition.notify_all()
            return grouping.answer(request)

    @property
    def group_due(self) -> float:
        """Time at which a worker that waits for its group has to ask again, monotonic seconds; infinite for never."""
        with self._condition:
            grouping = self._state.grouping
            return grouping.due if grouping else math.inf

    def report(self, report: Report) -> ReportReply:
        """Take a heartbeat (see `ChiefPort.report`)."""
        received = self._clock.monotonic()
        with self._condition:
            self.record_report(report)
            self._poll(lambda: self._state.over or self.has_news(report) or None, report.hold_secs)
            return self.answer(report, received)

    def record_report(self, report: Report) -> None:
        """Note what a role reports.

        Raises:
          StaleIncarnation, NotRegistered, InvalidMessage: see `ChiefPort.report`.
        """
        state, members = self._state, self._state.members
        check_role(report.role, report.id, members.num_workers, members.num_servers)
        check_heartbeat(report)
        with self._condition:
            now = self._clock.monotonic()
            members.of(report.role).beat(report.id, report.incarnation, now)
            if report.role == "server":
                members.entering.discard(report.id)
                members.entering.update([report.id] if report.doing == ENTERING else [])
            if members.is_judging_due(now):  # the controller may be in a call to the very role that is silent
                state.expire()
            if report.phase_id == state.leases.phase_id:  # before anything of the report is kept
                check_report(report, state.ledger.workload + state.ledger.num_dropped)
            if report.exchange is not None:  # first: the offset serves the stamps and spans below
                state.offsets.add(report.role, report.id, report.exchange)
            state.reports.add(report, state.offsets.secs(report.role, report.id))
            if report.role == "worker":
                state.phase_members.record_activity(report)
            # What a report from a broken phase contains may be lost: the newest state that is found decides what
            # counts.
            if report.phase_id == state.leases.phase_id and not state.phase_members.broken:
                self._take_progress(report)
            elif report.role == "worker" and state.is_left_out(report.id):
                self._observe(report)

    def has_news(self, report: Report) -> bool:
        """Return whether the role that reported waits to hear that its phase cannot go on.

        That the run is over can wait for its next report.
        """
        with self._condition:
            state = self._state
            return report.phase_id in state.revoked and (report.role, report.id) not in state.phase_members.warned

    def answer(self, report: Report, received: float) -> ReportReply:
        """Return what a role is told in return, that reported at `received` (monotonic seconds)."""
        with self._condition:
            state = self._state
            if state.over:
                self._tell(report.role, report.id)
            revoked = self._is_revoked(report.phase_id)
            if revoked:
                state.phase_members.warned.add((report.role, report.id))
            return ReportReply(state.leases.phase_id, revoked, state.over, received, self._clock.monotonic())

    # --- what supervisors call (ChiefPort) ---

    def role_started(self, event: RoleEvent) -> None:
        """Note a started process, which registers by itself: one that takes another's place is news.

        Raises:
          UnknownRole, InvalidMessage: the run has no such role.
        """
        self._check(event)
        with self._condition:
            if event.role == "worker":
                self._state.members.worker_started(event.id)
            if event.reason != STARTED_FIRST:
                self._state.reports.restarted.append(event)

    def role_lost(self, event: RoleEvent) -> None:
        """Note a process that ended: its units go to others, or the run cannot go on.

        Raises:
          UnknownRole, InvalidMessage: the run has no such role.
        """
        self._check(event)
        with self._condition:
            state, members = self._state, self._state.members
            if state.over:
                return
            state.ended.add(event.process)
            if event.role == "worker":
                # First: a quarantine is the reason that the phase is to break for, not the loss.
                self._note_suspect(event)
            state.reports.lost.append(event)  # also of one that only an earlier chief knew, or that was given up
            member = members.of(event.role).get(event.id) if event.role in ("worker", "server") else None
            if member is not None and member.hello.process == event.process:
                if event.role == "worker" and ended_by_itself(event) and len(members.workers.ids()) > 1:
                    # Before `remove_role` releases its units. The same worker would end on the same unit, and others
                    # cannot tell whether the unit or the worker is at fault until they have tried.
                    state.leases.doubt(event.id)
                state.remove_role(event.role, event.id, event.reason)
            if event.role == "worker" and members.workers.get(event.id) is None:
                members.worker_ended(event.id, self._clock.monotonic())
            if event.quarantined and event.id not in members.quarantined:
                members.quarantined[event.id] = event.reason
                state.reports.unfit.append(event)
                if members.all_quarantined() is not None:
                    state.preempt()  # what is held is saved
            if event.is_refusal:
                state.refusal = state.refusal or f"{event.role} {event.id} refuses to go on: {event.reason}"
            self._condition.notify_all()

    def preempt(self) -> None:
        """Ask the run to save its state and stop."""
        with self._condition:
            self._state.preempt()

    # --- what the run's user calls (CommandPort) ---

    def status(self) -> StatusReply:
        """Return where the run stands (see `CommandPort.status`)."""
        return self._commands.status()

    def switch(self, request: SwitchRequest) -> SwitchReply:
        """Order another protocol (see `CommandPort.switch`)."""
        return self._commands.switch(request)

    def stop(self, request: StopRequest) -> StopReply:
        """Have the run save and stop (see `CommandPort.stop`)."""
        return self._commands.stop(request)

    # --- inside ---

    def _check(self, event: RoleEvent) -> None:
        members = self._state.members
        check_event(event, members.num_workers, members.num_servers, self._state.ledger.workload)

    def _tell(self, role: str, role_id: int) -> None:
        self._state.informed.add((role, role_id))
        self._condition.notify_all()

    def _may_enter(self, request: PhaseRequest, phase: Phase) -> bool:
        inside, worker = self._state.phase_members, request.worker
        if request.after == phase.id or worker not in phase.members or inside.broken:
            return False
        if not phase.mode.is_served:  # also while it drains: those who are in wait for the others
            same = inside.admitted.get(worker, request.incarnation) == request.incarnation
            return same and worker not in inside.back
        return inside.announced

    def _probe(self, request: PhaseRequest) -> PhaseReply | None:
        """Return by which unit a worker that is left out measures itself now: the newest one that was applied.

        The others are about there, and a unit that ends the processes that compute it is not among those.
        """
        state, inside = self._state, self._state.phase_members
        if request.rest_secs or not inside.announced or inside.broken or not state.is_left_out(request.worker):
            return None
        newest = state.ledger.newest_applied
        return PhaseReply(None, probe=newest) if newest >= 0 else None

    def _called(
        self, grouping: GroupRounds, request: LeaseRequest, reply: LeaseReply | None, now: float
    ) -> LeaseReply | None:
        """Return what a worker in a group phase hears that asked for units, which may be that it is called."""
        grouping.end_average(request.worker)
        if reply is not None and reply.ranges and grouping.calls_everybody:
            return replace(reply, join_group=True)
        if reply is not None or request.known > request.completed:
            return reply
        if grouping.calls_everybody:
            return LeaseReply((), False, join_group=True)
        if grouping.excuse_worker(request.worker, now):
            self._condition.notify_all()
        return None

    def _take_progress(self, report: Report) -> None:
        """Note how far a role of the active phase has come, and what became of its units."""
        state = self._state
        state.phase_members.record_heartbeat(report, state.stamps_of(report.role, report.id, report))
        if report.role == "worker":
            key = state.leases.key_of(report.id)
            state.leases.record_progress(key, report.completed, self._clock.monotonic())
            self._observe(report)
        state.record_units(report.applied, report.dropped)
        self._condition.notify_all()

    def _observe(self, report: Report) -> None:
        """Judge a worker by the seconds of its units."""
        if found := self._state.detector.observe(report.id, report.unit_secs, self._clock.monotonic()):
            self._state.reports.decisions += found
            self._condition.notify_all()

    def _note_suspect(self, event: RoleEvent) -> None:
        """Quarantine the unit that a worker ended on, if it was one too many."""
        state = self._state
        found = state.suspects.record(event)
        if found is None or not state.ledger.quarantine(found.unit):
            return
        state.reports.quarantined.append(found)
        state.break_phase(f"unit {found.unit} is quarantined")  # the next phase names the holders of the state
        if state.suspects.is_hopeless(state.ledger.num_applied):
            state.waits.fail(
                RoleLost(
                    "unit after unit ends the processes that compute it, and none was applied between them; "
                    f"the last was unit {found.unit}: {found.reason}. See their logs, then run the same "
                    "command again: it resumes from the last commit"
                )
            )

    def _is_revoked(self, phase_id: PhaseId) -> bool:
        """Return whether a role in `phase_id` is to leave it.

        The phase is broken, or it has ended, and possibly no role is left to notify the caller.
        """
        return NO_PHASE < phase_id < self._state.leases.phase_id or phase_id in self._state.revoked

    def _poll(self, answer: Callable[[], T | None], secs: float) -> T | None:
        with self._condition:
            return self._state.waits.poll(answer, secs)
