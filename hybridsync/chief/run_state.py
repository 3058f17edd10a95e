"""The state of a run at its chief, behind one lock, and the changes that a call or the controller may cause.

Roles reach it through `service.ChiefService`, the controller in turns (`RunControl`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hybridsync.chief.bad_units import Divergence, PoisonUnits, Unfit
from hybridsync.chief.clock_sync import ClockOffsets
from hybridsync.chief.group_rounds import GroupRounds
from hybridsync.chief.leases import Leases
from hybridsync.chief.ledger import Ledger
from hybridsync.chief.membership import LEASE_SECS, Doing, Member, PhaseMembership, RunMembership
from hybridsync.chief.report_buffer import ReportBuffer
from hybridsync.chief.user_commands import Orders
from hybridsync.core.clock import Clock, Waits
from hybridsync.core.errors import HybridSyncError, PhaseBroken
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.core.units import Range, UnitSet
from hybridsync.interfaces.messages import NON_FINITE, Process, RoleEvent, RoleState, Snapshot
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Report
from hybridsync.policies.straggler_detector import Detector, Judged, NullDetector
from hybridsync.telemetry.run_figures import RunFigures


@dataclass(frozen=True, kw_only=True)
class RunStateSpec:
    """What is said of a run at its chief. Its defaults are those of a first chief, whose roles are processes."""

    num_servers: int = 1
    """Parameter servers of the run."""
    min_workers: int = 0
    """The fewest workers that a phase begins with; 0 for all of them."""
    late: Collection[int] = ()
    """Workers that join later: the start does not wait for them to register."""
    lease_secs: float = LEASE_SECS
    """A process without a sign of life for so long is lost; infinite for threads, which cannot die unnoticed."""
    restarted: bool = False
    """Roles may be in the middle of a phase; until it is adopted, or known that there is none, they wait."""
    restarts: bool = False
    """The run is saved and ends at each planned switch."""
    known: int = 0
    """Number of units that an earlier chief knew to be applied, of which the ledger may not have heard."""
    detector: Detector | None = None
    """Judges workers by what they report; None disables the detection of stragglers."""
    unfit: Unfit | None = None
    """Finds workers whose units are not finite; None where no process can be started in their place."""
    orders: Orders | None = None
    """The orders of the run's user; None keeps them in memory."""
    evict: Callable[[RoleEvent], None] = lambda event: None
    """Has the process ended of a role that is given up. It is called at once, under the lock: a thread that is in a
    call to that process waits for an answer."""
    ask_stop: Callable[[], object] = lambda: None
    """Notifies the process that starts chiefs that the run's user has it stopped."""
    leave: Callable[[], object] = lambda: None
    """Notifies the process that starts roles that they are about to be told to leave."""


FIRST_CHIEF = RunStateSpec()


class RunState:
    """Holds everything that the chief knows of its run.

    The condition guards every attribute, and everything that an attribute holds. It is notified whenever something
    changes that a caller may wait for. This class never takes it: `ChiefService` takes it in each of its public
    methods, the controller for its turns (`RunControl.turn`). Every method here is called under it, and none waits.

    Args:
      ledger: the run's accounting.
      num_workers: slots of the run.
      schema: `Layout.schema_hash` that every role has to share.
      clock: clock for leases, deadlines and rates.
      spec: what else is said of the run.

    Attributes:
      members: membership of the run.
      phase_members: membership of the active phase.
      grouping: the group rounds of the active phase; None if it has none.
      revoked: phases that broke. They stay here for good: a stopped process may ask much later.
      fenced: (worker, incarnation) of lost workers that servers have not been notified of yet.
      preempted: the run was asked to stop.
      is_leaving: by other than a callback: its end waits for an evaluation a moment only.
      refusal: mistake of the user's that a role has met, which ends the run; "" for none.
      stop_reason: reason of the callback that stopped the run for good; None where none did.
      on_break: called when a phase breaks, so that threads hear of it at once.
      over: the run is over.
      ended: processes of which a supervisor has said that they have ended.
      informed: (role, id) of those that have heard that it is over.
      figures: figures of the run so far, as the record contains them.
      frozen: digest of each leaf that is not trained, by its path, which a worker has to have as well; None where they
        are not compared, as among threads, which share them.
    """

    def __init__(
        self,
        ledger: Ledger,
        num_workers: int,
        schema: str,
        clock: Clock,
        spec: RunStateSpec = FIRST_CHIEF,
    ) -> None:
        self.clock, self.schema, self.ledger = clock, schema, ledger
        self.condition = clock.condition()
        self.waits = Waits(clock, self.condition)
        self.members = RunMembership(
            num_workers,
            spec.num_servers,
            spec.lease_secs,
            now=clock.monotonic(),
            late=spec.late,
            min_workers=spec.min_workers,
        )
        self.leases = Leases(ledger)
        self.phase_members = PhaseMembership()
        self.grouping: GroupRounds | None = None
        self.reports = ReportBuffer()
        self.suspects, self.unfit, self.divergence = PoisonUnits(), spec.unfit, Divergence()
        self.offsets = ClockOffsets()
        self.detector = spec.detector or NullDetector()
        self.restarted, self.known, self.end_process = spec.restarted, spec.known, spec.evict
        self.preempted = self.is_leaving = self.over = False
        self.refusal = ""
        self.stop_reason: str | None = None
        self.on_break: Callable[[], object] = lambda: None
        self.orders, self.figures = spec.orders or Orders(), RunFigures()
        self.ask_stop, self.leave = spec.ask_stop, spec.leave
        self.revoked: set[PhaseId] = set()
        self.fenced: list[tuple[int, int]] = []
        self.informed: set[tuple[str, int]] = set()
        self.frozen: Mapping[str, str] | None = None
        self.ended: set[Process] = set()

    def preempt(self) -> None:
        """Ask the run to save its state and stop."""
        self.preempted = self.is_leaving = True
        self.condition.notify_all()

    def stop(self, reason: str) -> None:
        """Ask the run to save its state and end for good: as `preempt`, but the same command does not train on.

        Once the whole workload is applied, the run completes, and there is nothing to stop.
        """
        if self.over or self.stop_reason is not None or self.ledger.num_applied >= self.ledger.workload:
            return
        self.stop_reason = reason
        self.reports.stops.append(reason)
        self.preempted = True
        self.condition.notify_all()

    def take_reports(self) -> ReportBuffer:
        """Return and forget what was reported since the last call."""
        self.credit_hosts()
        taken, self.reports = self.reports, ReportBuffer()
        return taken

    def take_fenced(self) -> list[tuple[int, int]]:
        """Return and forget the (worker, incarnation) that servers have to refuse from now on."""
        fenced, self.fenced = self.fenced, []
        return fenced

    def judged(self) -> Judged:
        """Return how the workers are held, by what they have reported of themselves."""
        return Judged(self.detector.flagged, self.detector.units_per_sec, self.detector.threshold)

    # --- the active phase ---

    def adopt(self, phase: Phase | None, broken: str = "") -> None:
        """Go on with a phase that an earlier chief announced, None where there is none; roles wait no longer.

        If it continues, the ledger equals that of its starting state; what came after that, roles report from now on,
        and the holder of its state reports the rest (see `record_snapshot`).

        Args:
          phase: the newest that a role is in.
          broken: reason why it cannot go on; "" if it can.
        """
        self.restarted = False
        self.condition.notify_all()
        if phase is None:
            return
        self.credit_hosts()
        self.leases.begin(phase)
        self.phase_members.announced = True
        self.detector.begin(self.members.workers.ids())
        if not broken:
            self.ledger.restore(phase.applied, phase.dropped)  # before the streams: their units are leased from it
        for (role, role_id), role_state in self.members.role_states().items():
            if role == "worker":
                self.adopt_phase(role_id, role_state)
        quarantined = UnitSet(self.ledger.all_dropped(self.ledger.applied().ranges(), ()))
        if news := quarantined.difference(UnitSet(phase.dropped)).ranges():
            broken = broken or f"units {news} are quarantined, of which the state's holder has not heard"
        if not all(map(self.members.is_live, phase.servers)):
            broken = broken or "a server was lost while the phase was taken up"
        if phase.protocol.awaits_workers and (missing := self.members.missing_workers()):
            broken = broken or f"workers {missing}, who are waited for, were lost before that"
        if broken:
            self.break_phase(broken)

    def begin(self, phase: Phase, left_out: Iterable[int] = ()) -> None:
        """Make `phase` the active one, which workers enter; it breaks at once if it has lost somebody that it needs.

        Args:
          phase: the phase that begins; its leases stay closed until `open_leases`.
          left_out: live workers that a policy leaves out of it; they measure themselves meanwhile.
        """
        gone = [worker for worker in phase.members if self.members.workers.get(worker) is None]
        self.credit_hosts()
        self.leases.begin(phase)
        self.phase_members = PhaseMembership(announced=True, left_out=frozenset(left_out))
        self.grouping = GroupRounds.of(phase)
        self.detector.begin(worker for worker in phase.members if worker not in gone)
        # Last: what breaks here is the active phase, and a new `PhaseMembership` would forget it.
        if gone and phase.mode.breaks_at_loss_of("worker"):
            self.break_phase(f"workers {gone} were lost while it began")
        if not all(map(self.members.is_live, phase.servers)):
            self.break_phase("a server was lost while it began")
        if phase.protocol.awaits_workers:  # for workers that are not here, too
            self.fenced.extend((worker, 0) for worker in self.members.missing_workers())
        self.condition.notify_all()

    def open_leases(self) -> None:
        """Let units of the announced phase go out."""
        self.leases.open()
        self.condition.notify_all()

    def close_leases(self) -> None:
        """Hand out no further unit in this phase; streams end where they are."""
        self.leases.close()
        self.phase_members.announced = False
        self.condition.notify_all()

    def call_together(self) -> None:
        """Call everybody in a group phase to a full synchronisation."""
        assert self.grouping is not None, "groups meet in a group phase"
        self.grouping.synchronise(self.clock.monotonic())
        self.condition.notify_all()

    def is_together(self, worker: int) -> bool:
        """Return whether the full synchronisation that was called for has been, and `worker` has gone on from it."""
        return self.grouping is None or self.grouping.is_synchronised(worker)

    def break_phase(self, reason: str) -> None:
        """Make the active phase one that cannot go on: every role in it is revoked. The first reason stays."""
        phase_id = self.leases.phase_id
        if phase_id == NO_PHASE or self.over:
            return
        self.phase_members.broken = self.phase_members.broken or reason
        self.revoked.add(phase_id)
        self.leases.close()
        self.condition.notify_all()
        self.on_break()

    def gather(self) -> str:
        """Call everybody back from the broken phase; returns why it broke.

        Waits no longer raise `PhaseBroken` until the next phase begins.
        """
        self.phase_members.gathering = True
        self.close_leases()
        return self.phase_members.broken

    def as_broken(self) -> PhaseBroken:
        """Return the error that waits end with while the phase is broken."""
        return PhaseBroken(f"phase {self.leases.phase_id} cannot go on: {self.phase_members.broken}")

    def raise_broken(self) -> None:
        """Raise the error that ends the controller's waits, if there is one.

        Raises:
          PhaseBroken: the phase cannot go on, and the roles are not called back from it yet.
          HybridSyncError: the run cannot go on.
        """
        self.waits.raise_failure()
        if self.phase_members.broken and not self.phase_members.gathering:
            raise self.as_broken()

    def adopt_phase(self, worker: int, role_state: RoleState) -> None:
        """Go on with the phase that a worker is in the middle of, which an earlier chief let it enter."""
        member = self.members.workers.get(worker)
        is_active = role_state.open and role_state.phase.id == self.leases.phase_id
        if member and is_active and not self.phase_members.broken:
            self.phase_members.admitted[worker] = member.incarnation
            if self.leases.mode.is_served:
                self.leases.adopt(worker, role_state.stream, role_state.completed)

    def is_left_out(self, worker: int) -> bool:
        """Return whether a policy has lock-step go on without a live worker; its own measurements count, too."""
        return worker in self.phase_members.left_out and self.members.workers.get(worker) is not None

    def is_over(self, phase: Phase) -> bool:
        """Return whether the active phase has come to its end: in lock-step, whether everybody has come back."""
        back = self.phase_members.back
        return phase.mode.is_over(phase.end_units, self.ledger.num_applied, len(phase.members), len(back))

    def is_drained(self) -> bool:
        """Return whether everybody has come back from the active phase, or it has broken."""
        return bool(self.phase_members.broken) or not self.missing_drained()

    def missing_drained(self) -> list[int]:
        """Return live members of the phase that have not come back; one that has not entered it is missing too."""
        phase, live = self.leases.phase, self.members.workers.ids()
        return self.phase_members.outstanding(phase.members if phase else (), live)

    def missing_back(self) -> list[int]:
        """Return live workers that have entered the phase and not come back."""
        return self.phase_members.missing(self.members.workers.ids())

    def doing(self, secs: float = -1.0) -> dict[int, Doing]:
        """Return the current work of each live member inside the phase; {} if nobody has been at it for over `secs`."""
        inside = self.phase_members
        return inside.doing_of(self.missing_drained()) if inside.is_anybody_at_it_for(secs) else {}

    def stamps_of(self, role: str, role_id: int, told: Report | Snapshot) -> tuple[float, float]:
        """Return the first and the last update that a role tells of, by the chief's clock; 0 before them."""
        first, last = told.first_applied, told.last_applied
        return self.offsets.stamp(role, role_id, first), self.offsets.stamp(role, role_id, last)

    # --- units ---

    def record_units(self, applied: Sequence[Range], dropped: Sequence[tuple[int, str]]) -> None:
        """Note what became of units, as roles report it."""
        self._judge(applied, dropped)  # first: the ledger forgets the holder when it records the unit's end
        self.ledger.record_applied(applied)
        self.record_dropped(applied, dropped)

    def record_dropped(self, applied: Sequence[Range], dropped: Iterable[tuple[int, str]]) -> None:
        """Note final drops, and end the run if nothing else comes of it; `applied` are the units beside them."""
        news = [(unit, reason) for unit, reason in dropped if self.ledger.record_dropped(unit)]
        phase = self.leases.phase
        held = phase.protocol.num_answered_early(len(phase.members)) if phase and news else 0
        if diverged := self.divergence.record(applied, news, held):
            self.waits.fail(diverged)

    def credit_hosts(self) -> None:
        """Note where units were applied so far: before a phase ends, which has the shares, or a worker moves."""
        for worker, count in self.leases.take_credits().items():
            self.reports.applied_by[self.members.host_of(worker), worker] += count

    def record_snapshot(self, snapshot: Snapshot, *, final: bool = True) -> None:
        """Note what became of units, as the holder of the phase's state says it.

        Args:
          snapshot: snapshot of the phase's state.
          final: nothing was applied after it; else more may have been reported meanwhile.

        Raises:
          HybridSyncError: the ledger counts units as applied that the state does not hold.
        """
        self.ledger.record_applied(snapshot.applied)
        self.known = 0
        phase = self.leases.phase
        # A short phase may end before its mesh has reported drops; where it applied nothing they count all the same.
        fruitless = phase is not None and phase.mode.moves_together and snapshot.applied == phase.applied
        reason = f"{NON_FINITE}: the phase was over before more was told" if fruitless else ""
        dropped = [(unit, reason) for start, stop in snapshot.dropped for unit in range(start, stop)]
        self.record_dropped(() if fruitless else snapshot.applied, dropped)
        self.condition.notify_all()
        if final and (extra := self.ledger.applied().difference(UnitSet(snapshot.applied))):
            raise HybridSyncError(
                f"the ledger counts {self.ledger.num_applied} units as applied, the state of phase "
                f"{snapshot.held.phase_id} holds {snapshot.held.units}: it lacks {extra.ranges()[:3]}; run the "
                "same command again to resume from the last checkpoint"
            )

    def restore(self, snapshot: Snapshot, *, rolled_back: bool) -> int:
        """Make the ledger say what `snapshot` does; returns how many units had been counted as applied and are not.

        Args:
          snapshot: the newest state that a role holds.
          rolled_back: whether units were lost that had been applied for all, as the accounting shows.
        """
        lost = max(self.ledger.restore(snapshot.applied, snapshot.dropped), self.known - snapshot.held.units)
        self.known = 0
        self.ledger.rolled_back += lost if rolled_back else 0
        return lost if rolled_back else 0

    def reclaim(self) -> dict[str, int]:
        """Offer every leased unit of an asynchronous phase to all workers, though its holder may still push it.

        A unit is applied once; the first push wins. Returns how many units each holder had.
        """
        held = self.ledger.holders()
        self.leases.trust_all()  # else no worker might be left for the units that wait for another one
        self.ledger.release_all()
        self.condition.notify_all()
        return held

    def worker_rates(self) -> dict[int, float]:
        """Return units a second of each live worker; under lock-step everybody's share of the mesh."""
        return self.leases.units_per_sec(self.members.workers.ids())

    def _judge(self, applied: Sequence[Range], dropped: Sequence[tuple[int, str]]) -> None:
        """Give up workers of which unit after unit is not finite."""
        if self.unfit is None or not (dropped or self.unfit.watches):
            return
        whose = [(worker, why) for unit, why in dropped for worker in self.leases.owners([(unit, unit + 1)])]
        for found in self.unfit.record(self.leases.owners(applied), whose):
            self.leases.doubt(found.worker)  # before the eviction, which releases what the worker has leased
            what = "a new process did it again: " if found.again else "it is started again: "
            self.evict("worker", found.worker, what + found.reason, quarantined=found.again)

    # --- losses ---

    def expire(self) -> None:
        """Treat roles whose lease has run out as lost."""
        for role, role_id in self.members.expire(self.clock.monotonic()):
            why = f"no sign of life for {self.members.lease_secs:g} s (hang.silent_secs)"
            self.evict(role, role_id, why)

    def unheard_of(self, present: Iterable[Process]) -> list[Process]:
        """Return the workers and servers among `present` that have neither registered nor ended, as far as known."""
        return [
            process
            for process in present
            if process[0] in ("worker", "server")
            and process not in self.ended
            and self.members.of(process[0]).get(process[1]) is None
        ]

    def miss(self, event: RoleEvent) -> None:
        """Treat a process as lost that an earlier chief knew, and that has not come to this one."""
        if self.members.of(event.role).get(event.id) is None:
            self.reports.lost.append(event)
            self.end_process(event)

    def silent(self, secs: float) -> list[tuple[str, int]]:
        """Return (role, id) of the live processes that have not been heard of for `secs`."""
        return self.members.silent(self.clock.monotonic(), secs)

    def awaited(self, workers: Iterable[int]) -> list[int]:
        """Return which of the workers that were there are not, and are waited for."""
        now = self.clock.monotonic()
        return [worker for worker in workers if self.members.is_awaited(worker, now)]

    def unheard(self) -> list[int]:
        """Return live workers outside the phase that have not said yet what they hold: they have just registered."""
        outside = self.phase_members.outside(self.members.workers.ids())
        return [worker for worker in outside if worker not in self.members.resting]

    def evict(self, role: str, role_id: int, reason: str, *, quarantined: bool = False) -> None:
        """Treat a live process as lost, and have it ended."""
        member = self.members.of(role).get(role_id)
        if member is None:
            return
        hello, now = member.hello, self.clock.wall()
        event = RoleEvent(
            role,
            role_id,
            hello.pid,
            reason=reason,
            wall=now,
            quarantined=quarantined,
            restart_count=hello.restart_count,
        )
        self.reports.lost.append(event)
        self.end_process(event)
        self.remove_role(role, role_id, reason)

    def remove_role(self, role: str, role_id: int, reason: str) -> None:
        """Remove a process that is gone: its units go to others, or the phase cannot go on."""
        self.offsets.forget(role, role_id)
        member = self.members.leave(role, role_id)
        if member is not None and role == "worker":
            self._lose_worker(member, reason)
        elif member is not None and self.leases.mode.breaks_at_loss_of("server"):
            self.break_phase(f"server {role_id} was lost ({reason})")
        self.condition.notify_all()

    def note_devices(self) -> None:
        """Have the detector judge no worker whose device computes for another one, too."""
        sharers = self.members.sharers()
        if sharers != self.detector.excluded:
            self.detector.exclude(sharers)
            self.reports.sharers = sharers

    def _lose_worker(self, member: Member, reason: str) -> None:
        worker, phase = member.hello.id, self.leases.phase
        in_phase = phase is not None and worker in phase.members and worker not in self.phase_members.back
        self.leases.release_worker(worker)
        self.detector.forget(worker)
        self.note_devices()
        self.phase_members.remove_worker(worker)
        self.fenced.append((worker, member.incarnation))
        if in_phase and self.leases.mode.breaks_at_loss_of("worker"):
            self.break_phase(f"worker {worker} was lost ({reason})")


class RunControl:
    """Gives the controller the run's state in turns, and has it wait for changes of that state between them.

    Args:
      state: the run's state.

    Attributes:
      orders: the orders of the run's user, behind a lock of their own.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self.orders: Orders = state.orders

    @contextmanager
    def turn(self) -> Iterator[RunState]:
        """Hold the run's lock for a turn, and give its state: what is read or changed in one turn belongs together.

        Nothing may wait in a turn, and nothing that changes may be kept beyond it: it is copied.
        """
        with self._state.condition:
            yield self._state

    def wait_until(self, ready: Callable[[RunState], bool], secs: float) -> bool:
        """Wait up to `secs` for `ready`, whatever else happens; returns whether it is.

        Raises:
          HybridSyncError: the run cannot go on.
        """
        with self.turn() as chief:
            return chief.waits.wait_until(lambda: ready(chief), secs)

    def watch(self, ready: Callable[[RunState], bool], secs: float) -> bool:
        """Wait up to `secs` for `ready` or a preemption; returns whether `ready`.

        Raises:
          PhaseBroken: the phase cannot go on.
          HybridSyncError: the run cannot go on.
        """
        with self.turn() as chief:
            deadline = chief.clock.monotonic() + secs
            while not ready(chief) and not chief.preempted:
                chief.raise_broken()
                if not chief.waits.wait(deadline):
                    break
            chief.raise_broken()  # also where `ready` holds: units of a broken phase may be rolled back
            return ready(chief)

    def await_all_informed(self, secs: float) -> bool:
        """Wait until every live role has heard that the run is over; returns whether all have."""
        with self.turn() as chief:
            deadline = chief.clock.monotonic() + secs
            while not chief.informed.issuperset(chief.members.live()):
                if not chief.waits.wait(deadline):
                    return False
            return True

    def wake(self) -> None:
        """Have everybody who waits look again: something ended that the chief is not told of."""
        with self.turn() as chief:
            chief.condition.notify_all()

    def finish(self) -> None:
        """Tell everybody that the run is over."""
        with self.turn() as chief:
            was_over, leave = chief.over, chief.leave
        if not was_over:  # outside the turn: it may have to wait for who reads
            leave()  # first: a role that ends before that is known is taken for lost, and replaced
        with self.turn() as chief:
            chief.over = True
            chief.condition.notify_all()
