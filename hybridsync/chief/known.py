"""What the chief knows of its run, as the manager, the roles' calls and the display read it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hybridsync.chief.attendance import Attendance, Doing
from hybridsync.chief.divergence import Divergence
from hybridsync.chief.grouping import Grouping
from hybridsync.chief.intake import Intake
from hybridsync.chief.leasing import Leasing
from hybridsync.chief.ledger import Counts, Ledger
from hybridsync.chief.membership import LEASE_SECS, Membership
from hybridsync.chief.suspects import Suspects
from hybridsync.chief.unfit import Unfit
from hybridsync.chief.waiting import Waiting
from hybridsync.clock import Clock
from hybridsync.errors import RoleLost
from hybridsync.messages import Capture, Held, RoleEvent, Standing
from hybridsync.phase import Phase
from hybridsync.plan import Epoch
from hybridsync.policies.stragglers import Detector, NullDetector
from hybridsync.reports import WAITING, Report
from hybridsync.telemetry.offsets import ClockOffsets

SERVER_LEASE_SECS = 15.0
"""A server without a sign of life for so long is lost: its loss costs everybody's work since the last commit."""


@dataclass(frozen=True)
class Judged:
    """How workers are held.

    Args:
      flagged: stragglers, ascending.
      rates: worker -> units a second, as measured last.
      threshold: below which one was slow in the last round; None before it.
    """

    flagged: tuple[int, ...]
    rates: dict[int, float]
    threshold: float | None


class Known(Waiting):
    """Who is there, what is handed out, and the phase that is announced.

    The condition guards every attribute; it is notified whenever something changed that somebody may wait for. What
    is not locked here is read under the lock of a wait, or for display.

    Args:
      ledger: the run's accounting.
      num_workers: slots of the run.
      num_servers: parameter servers of the run.
      schema: `Layout.schema_hash` that every role has to share.
      clock: for leases, deadlines and rates.
      lease_secs: a worker without a sign of life for so long is lost; infinite for threads, which cannot die
        unnoticed.
      restarted: roles may be in the middle of a phase; until it is adopted, or known that there is none, they wait.
      known: how many units an earlier chief knew to be applied, of which the ledger may not have heard.
      evict: has the process ended of a role that is given up; called at once, under the lock: whoever is in a call to
        that process is to get an answer.
      late: workers that come only later: nobody waits for their first words.
      detector: judges workers by what they report; None judges nobody.
      unfit: finds workers whose units are not finite; None where no process can be started in their place.
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
        known: int = 0,
        evict: Callable[[RoleEvent], None] = lambda event: None,
        late: Iterable[int] = (),
        detector: Detector | None = None,
        unfit: Unfit | None = None,
    ) -> None:
        self._unfit = unfit
        self._out: dict[int, str] = {}
        self._detector = detector or NullDetector()
        self._restarted = restarted
        self._known, self._end_process = known, evict
        self._late = set(late)
        self._standings: dict[tuple[str, int], Standing] = {}
        self._lease_secs, self._server_lease_secs = lease_secs, max(lease_secs, SERVER_LEASE_SECS)
        self.ledger, self.num_workers, self.num_servers = ledger, num_workers, num_servers
        super().__init__(clock)
        self._schema = schema
        self._workers, self._servers = Membership("worker"), Membership("server")
        self._leasing = Leasing(ledger)
        self._grouping: Grouping | None = None
        self._divergence, self._suspects = Divergence(), Suspects()
        self._offsets = ClockOffsets()
        self._here = Attendance()
        self._resting: dict[int, Held | None] = {}
        self._entering: set[int] = set()
        self._announced = self._gathering = self._done = False
        self._judged = clock.monotonic()
        self._told: set[tuple[str, int]] = set()
        self._warned: set[tuple[str, int]] = set()
        self._revoked: set[Epoch] = set()
        self._intake = Intake()
        self._fenced: list[tuple[int, int]] = []
        self._preempted = False
        self._left_out: frozenset[int] = frozenset()

    def standings(self) -> dict[tuple[str, int], Standing]:
        """What live roles were in the middle of when they registered, by (role, id)."""
        with self._condition:
            live = [("server", server) for server in self._servers.ids()]
            live += [("worker", worker) for worker in self._workers.ids()]
            return {key: self._standings[key] for key in live if key in self._standings}

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
            doing, epoch = self._here.doing, self._leasing.epoch
            waiting = {worker for worker in doing if (doing[worker].what, doing[worker].epoch) == (WAITING, epoch)}
            return found or [worker for worker in inside if worker not in waiting]

    def doing(self) -> dict[int, Doing]:
        """Current work of each live member that is still inside the phase."""
        with self._condition:
            return {worker: self._here.doing.get(worker, Doing()) for worker in self.missing_drained()}

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

    def stragglers(self) -> tuple[int, ...]:
        """Workers that are held to be stragglers, ascending."""
        with self._condition:
            return self._detector.flagged

    def judged(self) -> Judged:
        """How the workers are held, by what they have reported of themselves."""
        with self._condition:
            detector = self._detector
            return Judged(detector.flagged, detector.rates, detector.threshold)

    def live_workers(self) -> tuple[int, ...]:
        """Ids of live workers, ascending."""
        return self._workers.ids()

    def num_awaited(self) -> int:
        """Workers that the run waits for before it begins."""
        return self.num_workers - len(self._late | self._out.keys())

    @property
    def quarantined(self) -> dict[int, str]:
        """Workers that take no part in this life of the run any more, and why."""
        return dict(self._out)

    @property
    def nobody_left(self) -> RoleLost | None:
        """Error that ends the run when every worker is quarantined."""
        if len(self._out) < self.num_workers:
            return None
        told = "; ".join(f"worker {worker}: {reason}" for worker, reason in sorted(self._out.items()))
        return RoleLost(
            f"no worker is left, every one is quarantined ({told}); correct that, then run the same command again: it "
            "resumes from what was saved"
        )

    def missing_workers(self) -> list[int]:
        """Slots without a live worker."""
        return [worker for worker in range(self.num_workers) if self._workers.get(worker) is None]

    def missing_drained(self) -> list[int]:
        """Live members of the phase that have not come back; who has not entered it is missing too."""
        phase = self._leasing.phase
        members = phase.members if phase else ()
        return [worker for worker in self._workers.ids() if worker in members and worker not in self._here.back]

    def is_together(self, worker: int) -> bool:
        """Whether the full synchronisation that was called for has been, and `worker` has gone on from it."""
        with self._condition:
            return self._grouping is None or self._grouping.is_synchronised(worker)

    @property
    def meetings_due(self) -> float:
        """When a worker that waits for its group has to ask again, monotonic seconds; infinite for never."""
        return self._grouping.due if self._grouping else math.inf

    def waited_for(self) -> dict[int, float]:
        """Workers of a group phase for whom others wait, each with since how many seconds."""
        with self._condition:
            return self._grouping.waited_for(self._clock.monotonic()) if self._grouping else {}

    def missing_back(self) -> list[int]:
        """Live workers that have entered the phase and not come back."""
        return self._here.missing(self._workers.ids())

    def unheard(self) -> list[int]:
        """Live workers outside the phase that have not said yet what they hold: they have just registered."""
        known = (self._resting, self._here.admitted, self._here.back)
        return [worker for worker in self._workers.ids() if not any(worker in each for each in known)]

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

    def entering(self) -> tuple[int, ...]:
        """Servers that said last that they fetch the state of a phase, ascending."""
        with self._condition:
            return tuple(sorted(self._entering))

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
