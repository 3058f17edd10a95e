"""Gives the controller its view of the chief: it changes the run's state, reads it, and waits for it here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from hybridsync.chief.ledger import Counts, Ledger
from hybridsync.chief.membership import Doing
from hybridsync.chief.orders import Orders
from hybridsync.chief.report_buffer import ReportBuffer
from hybridsync.chief.run_state import RunState
from hybridsync.core.errors import HybridSyncError, PhaseBroken, printable
from hybridsync.core.units import UnitSet
from hybridsync.interfaces.messages import MOST_REASON_CHARS, Snapshot, StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Report
from hybridsync.policies.straggler_detector import Judged


class RunControl:
    """Controls a run for its controller: announces and ends phases, brings the ledger up to states, reads, and waits.

    Every method takes the run's lock.

    Args:
      state: the run's state.

    Attributes:
      ledger: the run's accounting. It takes no lock: the controller calls no method of it that changes anything.
      orders: the orders of the run's user, behind a lock of their own.
    """

    def __init__(self, state: RunState) -> None:
        self._state, self._condition = state, state.condition
        self.ledger: Ledger = state.ledger
        self.orders: Orders = state.orders

    @contextmanager
    def turn(self) -> Iterator[RunState]:
        """Hold the run's lock for a turn: what is read in it belongs together.

        Nothing may wait in a turn, and nothing that changes may be kept beyond it: it is copied.
        """
        with self._condition:
            yield self._state

    # --- phases ---

    def adopt(self, phase: Phase | None, broken: str = "") -> None:
        """Go on with a phase that an earlier chief announced, None where there is none; roles wait no longer.

        If it continues, the ledger equals that of its starting state; what came after that, roles report from now on,
        and the holder of its state reports the rest (see `record`).

        Args:
          phase: the newest that a role is in.
          broken: reason why it cannot go on; "" if it can.
        """
        with self._condition:
            self._state.adopt(phase, broken)
            self._condition.notify_all()

    def announce(self, phase: Phase, left_out: Iterable[int] = ()) -> None:
        """Make `phase` the one that workers enter; its leases stay closed until `open_leases`.

        Args:
          phase: the phase that begins.
          left_out: live workers that a policy leaves out of it; they measure themselves meanwhile.
        """
        with self._condition:
            self._state.begin(phase, frozenset(left_out))
            self._condition.notify_all()

    def call_together(self) -> None:
        """Call everybody in a group phase to a full synchronisation."""
        with self._condition:
            grouping = self._state.grouping
            assert grouping is not None, "groups meet in a group phase"
            grouping.synchronise(self._state.clock.monotonic())
            self._condition.notify_all()

    def open_leases(self) -> None:
        """Let units of the announced phase go out."""
        with self._condition:
            self._state.leases.open()
            self._condition.notify_all()

    def close_leases(self) -> None:
        """Hand out no further unit in this phase; streams end where they are."""
        with self._condition:
            self._state.leases.close()
            self._state.phase_members.announced = False
            self._condition.notify_all()

    def break_phase(self, reason: str) -> None:
        """Make the active phase one that cannot go on: every role in it is revoked."""
        with self._condition:
            self._state.break_phase(reason)

    def gather(self) -> str:
        """Call everybody back from the broken phase; returns why it broke.

        Waits no longer raise `PhaseBroken` until the next phase is announced.
        """
        with self._condition:
            self._state.phase_members.gathering = True
            self.close_leases()
            return self._state.phase_members.broken

    @property
    def broken(self) -> str:
        """Reason for which the active phase cannot go on; "" while it can."""
        with self._condition:
            return self._state.phase_members.broken

    def as_broken(self) -> PhaseBroken:
        """Return the error that waits end with while the phase is broken."""
        with self._condition:
            return self._state.as_broken()

    @property
    def gathering(self) -> bool:
        """Return whether everybody is called back from a broken phase, and no next one is announced yet."""
        with self._condition:
            return self._state.phase_members.gathering

    # --- the run ---

    def finish(self) -> None:
        """Tell everybody that the run is over."""
        if not self.over:  # without the lock: it may have to wait for who reads
            self._state.leave()  # first: a role that ends before that is known is taken for lost, and replaced
        with self._condition:
            self._state.over = True
            self._condition.notify_all()

    @property
    def over(self) -> bool:
        """Return whether the run is over."""
        with self._condition:
            return self._state.over

    @property
    def preempted(self) -> bool:
        """Return whether the run was asked to stop."""
        with self._condition:
            return self._state.preempted

    def preempt(self) -> None:
        """Ask the run to save its state and stop."""
        with self._condition:
            self._state.preempt()

    @property
    def is_leaving(self) -> bool:
        """Return whether somebody other than a callback has asked for the stop, who may end the process soon."""
        with self._condition:
            return self._state.is_leaving

    @property
    def refusal(self) -> str:
        """The mistake of the user's that a role has met, which ends the run; "" for none."""
        with self._condition:
            return self._state.refusal

    @property
    def stop_reason(self) -> str | None:
        """Reason of the callback that stopped the run for good; None where none did."""
        with self._condition:
            return self._state.stop_reason

    def stop(self, reason: str) -> None:
        """Ask the run to save its state and end for good: as `preempt`, but the same command does not train on.

        Args:
          reason: any object; its text is for the record.
        """
        text = printable(str(reason))[:MOST_REASON_CHARS]
        with self._condition:
            state = self._state
            if state.over or state.stop_reason is not None:
                return
            state.stop_reason = text
            state.reports.stops.append(text)
            state.preempted = True
            self._condition.notify_all()

    def fail(self, error: HybridSyncError) -> None:
        """End the run with `error`."""
        with self._condition:
            self._state.waits.fail(error)

    @property
    def failure(self) -> HybridSyncError | None:
        """The error that ended the run, if one did."""
        with self._condition:
            return self._state.waits.failure

    # --- waits ---

    def wait_until(self, ready: Callable[[], bool], secs: float) -> bool:
        """Wait up to `secs` for `ready`, whatever else happens; returns whether it is.

        Raises:
          HybridSyncError: the run cannot go on.
        """
        with self._condition:
            return self._state.waits.wait_until(ready, secs)

    def watch(self, ready: Callable[[], bool], secs: float) -> bool:
        """Wait up to `secs` for `ready` or a preemption; returns whether `ready`.

        Raises:
          PhaseBroken: the phase cannot go on.
          HybridSyncError: the run cannot go on.
        """
        with self._condition:
            state, deadline = self._state, self._state.clock.monotonic() + secs
            while not ready() and not state.preempted:
                state.raise_broken()
                if not state.waits.wait(deadline):
                    break
            state.raise_broken()  # also where `ready` holds: units of a broken phase may be rolled back
            return ready()

    def await_all_informed(self, secs: float) -> bool:
        """Wait until every live role has heard that the run is over; returns whether all have."""
        with self._condition:
            state, deadline = self._state, self._state.clock.monotonic() + secs
            while not state.informed.issuperset(state.members.live()):
                if not state.waits.wait(deadline):
                    return False
            return True

    def wake(self) -> None:
        """Have everybody who waits look again: something ended that the chief is not told of."""
        with self._condition:
            self._condition.notify_all()

    # --- units ---

    def restore(self, snapshot: Snapshot, *, rolled_back: bool) -> int:
        """Make the ledger say what `snapshot` does; returns how many units had been counted as applied and are not.

        Args:
          snapshot: the newest state that a role holds.
          rolled_back: whether units were lost that had been applied for all, as the accounting shows.
        """
        with self._condition:
            return self._state.restore(snapshot, rolled_back=rolled_back)

    def record(self, snapshot: Snapshot, *, final: bool = True) -> None:
        """Bring the ledger up to what the state's holder says.

        Args:
          snapshot: snapshot of the phase's state.
          final: nothing was applied after it; else more may have been reported meanwhile.

        Raises:
          HybridSyncError: the ledger counts units as applied that the state does not hold.
        """
        with self._condition:
            self._state.record_snapshot(snapshot)
            self._condition.notify_all()
            if final and (extra := self.ledger.applied().difference(UnitSet(snapshot.applied))):
                raise HybridSyncError(
                    f"the ledger counts {self.ledger.num_applied} units as applied, the state of phase "
                    f"{snapshot.held.phase_id} holds {snapshot.held.units}: it lacks {extra.ranges()[:3]}; run the "
                    "same command again to resume from the last checkpoint"
                )

    def release_all(self) -> None:
        """Take every lease of the ended phase back."""
        with self._condition:
            for holder in self.ledger.holders():
                self.ledger.release(holder)

    def reclaim(self) -> dict[str, int]:
        """Offer every leased unit of an asynchronous phase to all workers, though its holder may still push it.

        A unit is applied once; the first push wins. Returns how many units each holder had.
        """
        with self._condition:
            held = self.ledger.holders()
            self._state.leases.trust_all()  # else no worker might be left for the units that wait for another one
            self.release_all()
            self._condition.notify_all()
            return held

    @property
    def num_applied(self) -> int:
        """Units known to be applied."""
        with self._condition:
            return self.ledger.num_applied

    def all_leased(self, phase: Phase) -> bool:
        """Return whether every unit of `phase` is leased already."""
        with self._condition:
            return self.ledger.room(phase.end_units) == 0

    def counts(self) -> Counts:
        """Return the accounting at this moment."""
        with self._condition:
            return self.ledger.counts()

    @property
    def first_leased(self) -> float:
        """Monotonic seconds at which the first unit went out; 0 before."""
        with self._condition:
            return self._state.leases.first_leased

    def worker_rates(self) -> dict[int, float]:
        """Return units a second of each worker; under lock-step everybody's share of the mesh."""
        with self._condition:
            return self._state.leases.units_per_sec(self._state.members.workers.ids())

    # --- members of the phase ---

    def missing_drained(self) -> list[int]:
        """Return live members of the phase that have not come back; one that has not entered it is missing too."""
        with self._condition:
            phase, live = self._state.leases.phase, self._state.members.workers.ids()
            return self._state.phase_members.outstanding(phase.members if phase else (), live)

    def missing_back(self) -> list[int]:
        """Return live workers that have entered the phase and not come back."""
        with self._condition:
            return self._state.phase_members.missing(self._state.members.workers.ids())

    def drained(self) -> dict[int, StateVersion | None]:
        """Return who has come back from the phase, with what they hold."""
        with self._condition:
            return dict(self._state.phase_members.back)

    def behind(self) -> list[int]:
        """Return members of a lock-step phase that have reported the fewest completed units."""
        with self._condition:
            return self._state.phase_members.behind(self._state.members.workers.ids())

    def doing(self, secs: float = -1.0) -> dict[int, Doing]:
        """Return the current work of each live member inside the phase; {} if nobody has been at it for over `secs`."""
        with self._condition:
            inside = self._state.phase_members
            return inside.doing_of(self.missing_drained()) if inside.is_anybody_at_it_for(secs) else {}

    def is_together(self, worker: int) -> bool:
        """Return whether the full synchronisation that was called for has been, and `worker` has gone on from it."""
        with self._condition:
            return self._state.grouping is None or self._state.grouping.is_synchronised(worker)

    # --- reports ---

    def take_reports(self) -> ReportBuffer:
        """Return and forget what was reported since the last call."""
        with self._condition:
            self._state.credit_hosts()
            taken, self._state.reports = self._state.reports, ReportBuffer()
            return taken

    def take_fenced(self) -> list[tuple[int, int]]:
        """Return and forget the (worker, incarnation) that servers have to refuse from now on."""
        with self._condition:
            fenced, self._state.fenced = self._state.fenced, []
            return fenced

    def stragglers(self) -> tuple[int, ...]:
        """Return workers that are held to be stragglers, ascending."""
        with self._condition:
            return self._state.detector.flagged

    def judged(self) -> Judged:
        """Return how the workers are held, by what they have reported of themselves."""
        with self._condition:
            detector = self._state.detector
            return Judged(detector.flagged, detector.units_per_sec, detector.threshold)

    def stamps(self) -> tuple[float, float]:
        """Return the earliest first and latest last update that a role reported in this phase; 0 before them."""
        with self._condition:
            return self._state.phase_members.first_and_last()

    def stamps_of(self, role: str, role_id: int, told: Report | Snapshot) -> tuple[float, float]:
        """Return the first and the last update that a role tells of, by the chief's clock; 0 before them."""
        with self._condition:
            return self._state.stamps_of(role, role_id, told)
