"""Simulates what a controller has around it: the chief's own copy of the state, its commits, and its hosts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hybridsync.chief.ledger import Ledger
from hybridsync.chief.user_commands import OrdersInMemory, OrderStore
from hybridsync.core.errors import CheckpointError, HybridSyncError, StalePhase
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import RoleEvent, Snapshot, StateVersion
from hybridsync.lab.simulator.simulated_process import Process
from hybridsync.lab.simulator.simulated_server import Server
from hybridsync.lab.simulator.simulated_worker import Worker
from hybridsync.phases.reporter import Reporter
from hybridsync.phases.run_context import Commit, Measured
from hybridsync.storage.apply_log_entries import Entry, Left
from hybridsync.workdir.opening import PhaseIdsInMemory

if TYPE_CHECKING:
    from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster


class ChiefKilled(BaseException):
    """Ends a controller as a kill ends its process.

    Args:
      back_secs: seconds until the next chief sends its first message.
    """

    def __init__(self, back_secs: float) -> None:
        super().__init__(f"the chief was killed; another one follows after {back_secs:g} s")
        self.back_secs = back_secs


@dataclass(frozen=True)
class Saved:
    """A commit: a state, and what is stored beside it."""

    snapshot: Snapshot
    state: Any
    ledger: dict[str, Any]
    run: dict[str, Any]


@dataclass
class Workdir:
    """Holds what outlives every process of a run.

    Args:
      phase_ids: hands out phase numbers.
      commits: commits in order.
      log: log of the updates.
      ends: number of a phase -> the workers whose optimizer states became the state's at its end.
      num_saves: number of saves that were tried.
      orders: orders of the run's user.
    """

    phase_ids: PhaseIdsInMemory = field(default_factory=PhaseIdsInMemory)
    commits: list[Saved] = field(default_factory=list)
    log: list[Entry] = field(default_factory=list)
    ends: dict[int, Left] = field(default_factory=dict)
    num_saves: int = 0
    orders: OrderStore = field(default_factory=OrdersInMemory)

    def open(self, workload: int, start: Any, *, alive: bool) -> tuple[Ledger, StateVersion, Any]:
        """Return the ledger, the state and what it is, as `hybridsync.workdir.opening.open_run` does.

        Args:
          workload: units of the run.
          start: the state of a run that has saved none.
          alive: only the chief was lost, so that what was applied after the last commit may still be held.
        """
        if not self.commits:
            self.log.clear()
            self.ends.clear()
            return Ledger(workload), StateVersion(PhaseId(0, 0), 0, 0, ""), start
        saved = self.commits[-1]
        sequence = saved.snapshot.held.sequence
        if not alive:
            self.forget(sequence)
        held = StateVersion(PhaseId(saved.run["phase"], 0), saved.snapshot.held.units, sequence, "")
        return Ledger.from_json(saved.ledger), held, saved.state

    def forget(self, sequence: int) -> None:
        """Cut the log behind the update number `sequence`."""
        while self.log and self.log[-1].sequence > sequence:
            self.log.pop()
        for phase_id in [phase_id for phase_id, end in self.ends.items() if end.sequence > sequence]:
            del self.ends[phase_id]


class KillableReporter(Reporter):
    """A reporter of a process that may be killed, and says nothing then.

    Attributes:
      dead: the error that killed the process; None while it lives.
    """

    dead: ChiefKilled | None = None

    def finish(self, how: Any, error: str | None) -> Any:
        if self.dead is not None:
            raise self.dead
        return super().finish(how, error)


class SimulatedCommittedState:
    """The chief as a holder of the last committed state (see `hybridsync.training.snapshot.CommittedState`).

    Args:
      snapshot, state: snapshot of the state that the run starts from, and that state.
    """

    def __init__(self, snapshot: Snapshot, state: Any) -> None:
        self._kept = self._published = snapshot, state
        self._next_id = snapshot.snapshot_id + 1

    @property
    def units(self) -> int:
        """Units applied in the kept state."""
        return self._kept[0].held.units

    def store(self, snapshot: Snapshot, state: Any) -> None:
        """Keep a state, unless a newer one is kept."""
        if not snapshot.held.is_before(self._kept[0].held):
            self._kept = snapshot, state

    def adopt(self, snapshot: Snapshot, source: str, reader: Any) -> None:
        """Fetch and keep another state, though it is not committed."""
        self.store(snapshot, reader.read(snapshot.snapshot_id))

    def publish(self) -> Snapshot:
        """Return a snapshot of the kept state, readable here."""
        snapshot, state = self._kept
        held = snapshot.held
        offered = Snapshot(
            self._next_id,
            held,
            snapshot.applied,
            dropped=snapshot.dropped,
            num_bytes=snapshot.num_bytes,
            first_applied=0.0,
            last_applied=0.0,
        )
        self._next_id += 1
        self._published = offered, state
        return offered

    def take_snapshot(self, phase_id: PhaseId, final: bool, place: int = 0) -> Snapshot:
        """Refuse: the chief takes part in no phase.

        Raises:
          StalePhase: always.
        """
        raise StalePhase(f"the chief takes no part in phase {phase_id}")

    def await_reached(self) -> None:
        """Do nothing: the chief does not wait for itself."""

    def read(self, snapshot_id: int) -> Any:
        """Return the state offered last.

        Raises:
          StalePhase: a different state was offered last.
        """
        if self._published[0].snapshot_id != snapshot_id:
            raise StalePhase(f"snapshot {snapshot_id} is no longer kept at the chief")
        return self._published[1]


class Disk:
    """Commits in virtual time, one after another (see `hybridsync.phases.checkpointing.Committer`).

    Args:
      simulated: the simulated run, for time and costs.
      committed_source: gets each state that is durable.
      fails: numbers of the saves that fail, counted from 0.
      workdir: workdir to which commits are written.

    Attributes:
      closed: the process that writes has ended; a save in progress has no effect.
    """

    def __init__(
        self,
        simulated: SimulatedCluster,
        committed_source: SimulatedCommittedState,
        fails: tuple[int, ...],
        workdir: Workdir,
    ) -> None:
        self._simulated, self._committed_source, self._fails, self._workdir = (
            simulated,
            committed_source,
            fails,
            workdir,
        )
        self._free_at = 0.0
        self.closed = False
        self.state: Any = None

    @property
    def durable(self) -> bool:
        """Return whether commits outlive the process: they are simulated, not skipped."""
        return True

    def submit(
        self,
        snapshot: Snapshot,
        source: str,
        ledger: dict[str, Any],
        run: dict[str, Any],
        *,
        evaluate: bool,
        after: threading.Event,
    ) -> tuple[Future[Commit], Future[Measured | None]]:
        """Start a commit; returns its end, and the end of the evaluation behind it."""
        committed: Future[Commit] = Future()
        measured: Future[Measured | None] = Future()
        loop = self._simulated.loop
        started, number = loop.now, self._workdir.num_saves
        self._workdir.num_saves += 1
        self._free_at = max(self._free_at, started) + self._simulated.network.cluster.costs.commit_secs

        def fetch() -> None:
            if self.closed:
                return
            try:
                state = self._simulated.holder(source).read(snapshot.snapshot_id)
            except HybridSyncError as error:
                committed.set_exception(error)
                measured.set_result(None)
                return
            self.state = state
            loop.at(self._free_at, end, state)

        def end(state: Any) -> None:
            if self.closed:
                return
            if number in self._fails:
                committed.set_exception(CheckpointError(f"save {number} fails in this scenario"))
            else:
                self._committed_source.store(snapshot, state)
                self._workdir.commits.append(Saved(snapshot, state, ledger, run))
                size = self._simulated.arithmetic.sizes.state
                committed.set_result(Commit(snapshot.held.units, size, loop.now - started))
            figures = self._simulated.evaluate(state, snapshot) if evaluate else None
            measured.set_result(None if figures is None else Measured(figures, 0.0))

        loop.after(self._simulated.transfer_secs, fetch)
        return committed, measured

    def close(self) -> None:
        """Let the pending commits end."""
        if self.closed:
            return
        self._simulated.loop.run_until(self._free_at + self._simulated.transfer_secs)


class Hosts:
    """Starts, ends and replaces the roles' processes: the supervisors of a simulation.

    Attributes:
      newest: the process of each place.
      ended_on: unit -> how many processes ended while they computed it; -1 is none.
    """

    def __init__(self, simulated: SimulatedCluster) -> None:
        self._simulated = simulated
        self._restart_counts: dict[tuple[str, int], int] = {}
        self._unheard: list[RoleEvent] = []
        self._gone: list[Process] = []
        self.ended_on: Counter[int] = Counter()
        self.newest: dict[tuple[str, int], Process] = {}

    def start(self, role: str, role_id: int) -> None:
        """Start the next process of a place."""
        restart_count = self._restart_counts[role, role_id] = self._restart_counts.get((role, role_id), -1) + 1
        kind = Worker if role == "worker" else Server
        process = self.newest[role, role_id] = kind(self._simulated, role_id, restart_count)
        self._simulated.processes[process.address] = process
        process.start()

    def kill(self, role: str, role_id: int, back_secs: float | None = None) -> bool:
        """Kill the newest process of a place; another follows. False where there is none to kill.

        Raises:
          ChiefKilled: it was the chief's; the controller is not to go on.
        """
        if role == "chief":
            if self._simulated.chief.closed:
                return False
            raise self._simulated.end_chief(back_secs)
        process = self.newest.get((role, role_id))
        if process is None or process.dead:
            return False
        self._end(process, "signal SIGKILL", back_secs)
        return True

    def evict(self, event: RoleEvent) -> None:
        """End a process that the chief has given up."""
        process = self.newest.get((event.role, event.id))
        if process is not None and process.pid == event.pid and not process.dead:
            self._end(process, event.reason, None, proves=False)

    def replace_ended(self, process: Process) -> None:
        """Follow a process that has ended by itself with another one, unless the run is over."""
        if self.newest[process.role, process.id] is not process:
            return
        if self._simulated.chief.state.over:
            self._gone.append(process)
        else:
            self._end(process, "exit 70", None)

    def hang(self, worker: int) -> None:
        """Let the newest process of a worker hang; its successor does not."""
        process = self.newest.get(("worker", worker))
        if isinstance(process, Worker):
            process.hang()

    def replace(self, worker: int) -> None:
        """Start a successor although the process lives: it becomes a zombie."""
        self.start("worker", worker)

    def _end(self, process: Process, reason: str, back_secs: float | None, *, proves: bool = True) -> None:
        simulated, costs = self._simulated, self._simulated.network.cluster.costs
        unit = process.unit if isinstance(process, Worker) and proves else -1
        self.ended_on[unit] += 1
        process.kill()
        told = (process.role, process.id, process.pid, reason, simulated.clock.wall(), unit)
        event = RoleEvent(*told, restart_count=process.restart_count)
        simulated.loop.after(costs.notice_secs, self._notice, event)
        back = costs.restart_secs if back_secs is None else back_secs
        simulated.loop.after(back, self._start_again, process)

    def _notice(self, event: RoleEvent) -> None:
        if self._simulated.chief.closed:  # repeated to the next chief
            self._unheard.append(event)
        else:
            self._simulated.chief.service.role_lost(event)

    def report_losses(self) -> None:
        """Tell a new chief whom the last one did not live to hear of; who took the run for over starts again."""
        gone, self._gone = self._gone, []
        for process in gone:
            self._start_again(process)
        unheard, self._unheard = self._unheard, []
        for event in unheard:
            self._simulated.chief.service.role_lost(event)

    def _start_again(self, process: Process) -> None:
        if self.newest[process.role, process.id] is process:
            self.start(process.role, process.id)


class SharedLog:
    """Keeps what a captured holder wrote to the apply log (see `hybridsync.storage.apply_log.ApplyLog`)."""

    def __init__(self, entries: list[Entry], ends: dict[int, Left]) -> None:
        self._entries, self._ends = entries, ends
        self._noted: list[Entry] = []

    def write(self, entry: Entry) -> None:
        self._noted.append(entry)

    def record_left(self, left: Left) -> None:
        self._ends[left.phase] = left

    def detach(self) -> Callable[[], None]:
        return self.flush  # no other role writes meanwhile

    def flush(self) -> None:
        noted, self._noted = self._noted, []
        known = self._entries[-1].sequence if self._entries else -1
        self._entries.extend(entry for entry in noted if entry.sequence > known)

    def clear(self) -> None:
        self._noted.clear()
