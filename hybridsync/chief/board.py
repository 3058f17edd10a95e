"""What the chief knows of its run, under one lock: members, leases, the active phase, and what they reported.

The manager works with the `Board`; roles reach it through `chief.Chief`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hybridsync.chief.attendance import Attendance
from hybridsync.chief.grouping import Grouping
from hybridsync.chief.intake import Intake
from hybridsync.chief.known import Known
from hybridsync.chief.membership import HEARTBEAT_SECS, Member, Membership
from hybridsync.errors import HybridSyncError, PhaseBroken
from hybridsync.messages import NON_FINITE, Capture, RoleEvent, Standing
from hybridsync.phase import Phase
from hybridsync.plan import NO_EPOCH
from hybridsync.units import Range, UnitSet


class Board(Known):
    """Keeps who is there, what is handed out, and the phase that is announced: what the manager does with it."""

    def adopt(self, phase: Phase | None, broken: str = "") -> None:
        """Go on with a phase that an earlier chief announced, None where there is none; roles wait no longer.

        Where it goes on, the ledger says what its starting state does; what came after that, roles report from now
        on, and the holder of its state tells the rest (see `record`).

        Args:
          phase: the newest that a role is in.
          broken: why it cannot go on; "" if it can.
        """
        with self._condition:
            self._restarted = False
            if phase is not None:
                self._leasing.begin(phase)
                self._announced = True
                self._detector.begin(self._workers.ids())
                if not broken:
                    self.ledger.restore(phase.applied, phase.dropped)
                for (role, role_id), standing in self.standings().items():
                    if role == "worker":
                        self._take_up(role_id, standing)
                left_out = UnitSet(self.ledger.all_dropped(self.ledger.applied().ranges(), ()))
                if news := left_out.difference(UnitSet(phase.dropped)).ranges():
                    broken = broken or f"units {news} are quarantined, of which the state's holder has not heard"
                if not all(map(self.is_live, phase.servers)):
                    broken = broken or "a server was lost while the phase was taken up"
                if phase.protocol.awaits_workers and self.missing_workers():
                    broken = broken or f"workers {self.missing_workers()}, who are waited for, were lost before that"
                if broken:
                    self._break(broken)
            self._condition.notify_all()

    def announce(self, phase: Phase, left_out: Iterable[int] = ()) -> None:
        """Make `phase` the one that workers enter; its leases stay closed until `open_leases`.

        Args:
          phase: that begins.
          left_out: live workers that a policy leaves out of it; they measure themselves meanwhile.
        """
        with self._condition:
            self._leasing.begin(phase)
            self._left_out = frozenset(left_out)
            self._here, self._announced, self._gathering = Attendance(), True, False
            self._grouping = Grouping.of(phase)
            self._warned.clear()
            self._detector.begin(worker for worker in phase.members if self._workers.get(worker) is not None)
            if phase.mode.breaks_at_loss_of("worker") and (
                gone := [w for w in phase.members if self._workers.get(w) is None]
            ):
                self._break(f"workers {gone} were lost while it began")
            if not all(map(self.is_live, phase.servers)):
                self._break("a server was lost while it began")
            if phase.protocol.awaits_workers:  # for whoever is not here, too
                self._fenced.extend((worker, 0) for worker in self.missing_workers())
            self._condition.notify_all()

    def call_together(self) -> None:
        """Call everybody in a group phase to a full synchronisation."""
        with self._condition:
            assert self._grouping is not None, "groups meet in a group phase"
            self._grouping.synchronise(self._clock.monotonic())
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

    def miss(self, event: RoleEvent) -> None:
        """Treat a process as lost that an earlier chief knew, and that has not come to this one."""
        with self._condition:
            members = self._servers if event.role == "server" else self._workers
            if members.get(event.id) is None:
                self._intake.lost.append(event)
                self._end_process(event)

    def restore(self, capture: Capture, *, rolled_back: bool) -> int:
        """Make the ledger say what `capture` does; returns how many units had been counted as applied and are not.

        Args:
          capture: the newest state that someone holds.
          rolled_back: whether units were lost that had been applied for all, which the accounting tells.
        """
        with self._condition:
            lost = max(self.ledger.restore(capture.applied, capture.dropped), self._known - capture.held.units)
            self._known = 0
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

    def record(self, capture: Capture, *, final: bool = True) -> None:
        """Bring the ledger up to what the state's holder says.

        Args:
          capture: of the phase's state.
          final: nothing was applied after it; else more may have been reported meanwhile.

        Raises:
          HybridSyncError: the ledger counts units as applied that the state does not hold.
        """
        with self._condition:
            self.ledger.record_applied(capture.applied)
            self._known = 0
            phase = self._leasing.phase
            # A short phase may end before its mesh has told of drops; where it applied nothing they count all the same.
            fruitless = phase is not None and phase.mode.moves_together and capture.applied == phase.applied
            reason = f"{NON_FINITE}: the phase was over before more was told" if fruitless else ""
            dropped = [(unit, reason) for start, stop in capture.dropped for unit in range(start, stop)]
            self._note_dropped(() if fruitless else capture.applied, dropped)
            self._condition.notify_all()
            if final and (extra := self.ledger.applied().difference(UnitSet(capture.applied))):
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
        """Treat roles whose lease has run out as lost; when it has not judged for long, the chief was silent itself.

        Then it judges nobody: every lease begins anew.
        """
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

    def as_broken(self) -> PhaseBroken:
        """Return the error that waits end with while the phase is broken."""
        return PhaseBroken(f"epoch {self._leasing.epoch} cannot go on: {self._here.broken}")

    # --- inside ---

    def _take_up(self, worker: int, standing: Standing) -> None:
        """Go on with what a worker is in the middle of, which an earlier chief let it enter."""
        member = self._workers.get(worker)
        if member and standing.open and standing.phase.epoch == self._leasing.epoch and not self._here.broken:
            self._here.admitted[worker] = member.incarnation
            if self._leasing.mode.is_served:
                self._leasing.adopt(worker, standing.stream, standing.completed)

    def _everybody(self) -> set[tuple[str, int]]:
        servers = {("server", server) for server in self._servers.ids()}
        return servers | {("worker", worker) for worker in self._workers.ids()}

    def _note_dropped(self, applied: Sequence[Range], dropped: Iterable[tuple[int, str]]) -> None:
        """Note final drops, and end the run if nothing else comes of it; `applied` are the units beside them."""
        news = [(unit, reason) for unit, reason in dropped if self.ledger.record_dropped(unit)]
        phase = self._leasing.phase
        held = phase.protocol.num_answered_early(len(phase.members)) if phase and news else 0
        if diverged := self._divergence.note(applied, news, held):
            self.fail(diverged)

    def _break(self, reason: str) -> None:
        if self._leasing.epoch == NO_EPOCH or self._done:
            return
        self._here.broken = self._here.broken or reason
        self._revoked.add(self._leasing.epoch)  # for good: who is stopped now may hear of it much later
        self._leasing.close()
        self._condition.notify_all()

    def _raise_broken(self) -> None:
        self.raise_failure()
        if self._here.broken and not self._gathering:
            raise self.as_broken()

    def _judge(self, applied: Sequence[Range], dropped: Sequence[tuple[int, str]]) -> None:
        """Give up workers of which unit after unit is not finite; to be called before the units have their end."""
        if self._unfit is None or not (dropped or self._unfit.watches):
            return
        whose = [(worker, why) for unit, why in dropped for worker in self._leasing.owners([(unit, unit + 1)])]
        for found in self._unfit.note(self._leasing.owners(applied), whose):
            self._leasing.doubt(found.worker)
            what = "a new process did it again: " if found.again else "it is started again: "
            self._evict(self._workers, found.worker, what + found.reason, quarantined=found.again)

    def _evict(self, members: Membership, role_id: int, reason: str, *, quarantined: bool = False) -> None:
        member = members.get(role_id)
        if member is None:
            return
        event = RoleEvent(members.role, role_id, member.hello.pid, reason, self._clock.wall(), quarantined=quarantined)
        self._intake.lost.append(event)
        self._end_process(event)
        self._lose(members.role, role_id, reason)

    def _lose(self, role: str, role_id: int, reason: str) -> None:
        self._offsets.forget(role, role_id)
        if role == "server":
            self._entering.discard(role_id)
            if self._servers.leave(role_id) is not None and self._leasing.mode.breaks_at_loss_of("server"):
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
        self._detector.forget(worker)
        self._here.lose(worker)
        self._resting.pop(worker, None)
        self._fenced.append((worker, member.incarnation))
        if in_phase and self._leasing.mode.breaks_at_loss_of("worker"):
            self._break(f"worker {worker} was lost ({reason})")
