"""The switch manager: takes a run from phase to phase as the switch machine says, and commits behind."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from hybridsync.chief.chief import Chief
from hybridsync.clock import Clock
from hybridsync.config import to_json
from hybridsync.errors import CheckpointError, HybridSyncError, Preempted, RoleLost, StaleEpoch, WaitTimeout
from hybridsync.messages import Capture
from hybridsync.plan import Epoch, Phase
from hybridsync.ports import HolderPort, ServerPort
from hybridsync.protocols.base import Path
from hybridsync.run import Run
from hybridsync.switching import machine
from hybridsync.switching.commits import Commit, Committer, result_of
from hybridsync.switching.machine import Command, Step
from hybridsync.switching.reporter import Reporter, StageTimes
from hybridsync.telemetry.summary import Summary

TICK_SECS = 0.05
START_DEADLINE_SECS = 600.0
"""For every role to register: imports and compilation of all of them on few cores."""
SAY_SECS = 20.0
"""How long the wait for roles goes without a word."""
DRAIN_DEADLINE_SECS = 60.0
STUCK_SECS = 60.0
"""The shortest time without a completed lock-step step that ends the run."""
RETRY_SECS = 1.0
"""Between two tries to make a state durable."""
LANES = 16


class Epochs(Protocol):
    """Hands out epoch numbers, each once ever."""

    def reserve(self, above: int = 0) -> Epoch: ...


@dataclass(frozen=True)
class Start:
    """Where a run begins: a captured state, who holds it, and why."""

    capture: Capture
    source: str
    reason: str
    epoch: int
    committed: bool


class Manager:
    """Runs one run from its starting state to its end, in the calling thread.

    Args:
      run: what to run.
      chief: members, leases, announcements.
      start: the state to start from.
      servers: id -> server, called when it is needed.
      holder_at: address -> role that can capture the state.
      epochs: reserves epoch numbers.
      committer: commits and evaluates behind the training.
      reporter: writes the record.
      lanes: how many communicators one member order can have before another order is used.
      clock: for stage times and deadlines.
    """

    def __init__(
        self,
        run: Run,
        chief: Chief,
        start: Start,
        *,
        servers: Callable[[], Mapping[str, ServerPort]],
        holder_at: Callable[[str], HolderPort],
        epochs: Epochs,
        committer: Committer,
        reporter: Reporter,
        clock: Clock,
        lanes: int = LANES,
    ) -> None:
        self._run, self._chief, self._start = run, chief, start
        self._servers, self._holder_at, self._epochs = servers, holder_at, epochs
        self._committer, self._reporter, self._clock, self._lanes = committer, reporter, clock, lanes
        self._ends = run.plan.ends(run.config.workload)
        self._capture, self._source = start.capture, start.source
        self._ledger_json: dict[str, Any] = {}
        self._phase: Phase | None = None
        self._before: Phase | None = None
        self._epoch: Epoch | None = None
        self._path = Path.SYNC
        self._times = StageTimes()
        self._unit_secs = 0.0
        self._commit: Future[Commit] | None = None
        self._evaluations: deque[tuple[int, Future]] = deque()
        self._next_save = 0.0
        self._save_secs = 0.0
        self._training = threading.Event()  # clear while a switch's next phase has not applied its first unit
        self._training.set()
        self._progress = self._moved = (clock.monotonic(), 0)
        self._next_evaluation = run.config.telemetry.evaluate_units or None
        self._evaluate = False
        self._ending = False

    def run(self) -> Summary:
        """Run to the end of the workload or to a preemption; returns the summary that was written.

        Raises:
          HybridSyncError: the run could not go on; the summary says "failed", as for any other exception.
        """
        try:
            return self._story()
        except HybridSyncError as error:
            self._chief.fail(error)
            self._reporter.finish("failed", str(error))
            raise
        except BaseException as error:  # a hook's own error, or the user's interrupt: nobody may train on
            failure = HybridSyncError(f"the run was broken off by {type(error).__name__}: {error}")
            self._chief.fail(failure)
            self._reporter.finish("failed", str(failure))
            raise
        finally:
            self._training.set()
            self._chief.finish()
            self._committer.close()

    def _story(self) -> Summary:
        try:
            self._train()
        except Preempted:
            if self._commit is not None:
                self._reporter.committed(self._await_commit())
        while self._evaluations:
            self._collect_evaluation()
        completed = self._chief.num_applied >= self._run.config.workload
        return self._reporter.finish("completed" if completed else "preempted", None)

    def _train(self) -> None:
        self._await_roles()
        if not self._start.committed:
            self._commit_now()
            self._reporter.committed(self._await_commit())
        if self._capture.held.units >= self._run.config.workload:  # the earlier life had no time for its summary
            self._evaluate = True
            self._commit_now()
            self._reporter.committed(self._await_commit())
            return
        state, commands = machine.start(self._start.epoch)
        queue = deque(commands)
        while queue or state.step is not Step.DONE:
            event = self._execute(queue.popleft()) if queue else self._watch()
            if event is not None:
                state, commands = machine.advance(state, event)
                self._ending = state.step is Step.DONE
                queue.extend(commands)

    # --- commands ---

    def _execute(self, command: Command) -> machine.Event | None:
        return {
            Command.STOP_LEASES: self._drain,
            Command.CAPTURE: self._capture_final,
            Command.CAPTURE_LIVE: self._capture_live,
            Command.COMMIT: self._commit_now,
            Command.AWAIT_COMMIT: self._committed,
            Command.RESERVE: self._reserve,
            Command.ANNOUNCE: self._announce,
            Command.RESUME_LEASES: self._chief.open_leases,
            Command.FINISH: self._chief.finish,
        }[command]()

    def _watch(self) -> machine.Event:
        """Let the phase run until something is due."""
        assert self._phase is not None
        while True:
            over = self._chief.watch(self._is_over, TICK_SECS)
            self._tick()
            if self._commit is not None and self._commit.done():
                return self._committed()
            if over or self._chief.preempted:
                self._unit_secs = self._measure_unit()
                last = self._chief.preempted or self._phase.end_units >= self._run.config.workload
                return machine.Begin(last=last)
            self._check_progress()
            if self._commit is None and self._save_is_due():
                return machine.Checkpoint()

    def _drain(self) -> machine.Event:
        started = self._clock.monotonic()
        self._chief.close_leases()
        if self._path is Path.SYNC:
            self._chief.wait(
                lambda: not self._chief.missing_drained(),
                max(DRAIN_DEADLINE_SECS, 10 * self._unit_secs),
                lambda: f"workers {self._chief.missing_drained()} have not finished their last lock-step step",
            )
        self._times = StageTimes()
        self._note_stage("drain", started)
        return machine.Drained()

    def _capture_final(self) -> machine.Event:
        started = self._clock.monotonic()
        capture = self._take(final=True)
        self._chief.record(capture)
        self._chief.release_all()
        self._check_members(capture)
        self._reporter.tick()
        self._reporter.ended(capture)
        self._evaluate = not self._chief.preempted
        self._training.clear()
        self._note_stage("capture", started)
        return machine.Captured()

    def _capture_live(self) -> None:
        self._evaluate = self._evaluation_is_due()
        if self._evaluate:
            every = self._run.config.telemetry.evaluate_units
            self._next_evaluation = (self._chief.num_applied // every + 1) * every
        self._take(final=False)

    def _take(self, *, final: bool) -> Capture:
        assert self._phase is not None
        role, role_id = ("server", 0) if self._path is Path.SERVER else ("worker", self._phase.members[0])
        self._source = self._chief.address_of(role, role_id)
        self._capture = self._holder_at(self._source).capture(self._phase.epoch, final)
        return self._capture

    def _commit_now(self) -> None:
        capture = self._capture
        ledger = self._chief.ledger.to_json(capture.applied, capture.dropped)
        self._commit, evaluation = self._committer.submit(
            capture,
            self._source,
            ledger,
            self._record_of(capture),
            evaluate=self._evaluate,
            after=self._training,
        )
        if self._evaluate:
            self._evaluations.append((capture.held.units, evaluation))

    def _committed(self) -> machine.Event:
        try:
            commit = self._await_commit()
        except (CheckpointError, RoleLost, StaleEpoch, WaitTimeout) as error:
            if self._ending:  # nothing goes on that could be saved later
                raise
            self._commit = None
            self._reporter.not_durable(self._capture.held.units, str(error))
            self._chief.watch(lambda: False, RETRY_SECS)
            return machine.CommitFailed()
        self._reporter.committed(commit)
        return machine.Committed()

    def _await_commit(self) -> Commit:
        assert self._commit is not None
        self._training.set()
        commit = result_of(self._commit, f"the checkpoint of epoch {self._capture.held.epoch}")
        self._commit = None
        self._save_secs = commit.secs
        self._next_save = self._clock.monotonic() + self._run.config.checkpoint.secs
        return commit

    def _reserve(self) -> machine.Event:
        started = self._clock.monotonic()
        self._epoch = self._epochs.reserve(above=self._start.epoch)
        self._note_stage("reserve", started)
        return machine.Reserved(self._epoch.number)

    def _announce(self) -> machine.Event:
        assert self._epoch is not None
        started = self._clock.monotonic()
        units = self._capture.held.units
        index = next(i for i, end in enumerate(self._ends) if end > units)
        protocol = self._run.stages[index]
        self._await_roles()
        order, lane = divmod(self._chief.lane, self._lanes)
        members = tuple((w + order) % self._run.config.workers for w in range(self._run.config.workers))
        phase = Phase(
            epoch=self._epoch,
            spec=self._run.plan.stages[index].spec,
            members=members,
            lane=lane,
            end_units=self._ends[index],
            applied=self._capture.applied,
            dropped=self._capture.dropped,
            sequence=self._capture.held.sequence,
            source=self._source,
            capture_id=self._capture.capture_id,
            fingerprint=self._capture.held.fingerprint,
            servers=tuple(self._servers()) if protocol.path is Path.SERVER else (),
            reason="planned" if self._phase is not None else self._start.reason,
        )
        self._before, self._phase, self._path = self._phase, phase, protocol.path
        if protocol.path is Path.SERVER:
            for server in self._servers().values():
                server.enter(phase)
        self._chief.announce(phase, protocol.path)
        self._reporter.entered(phase, units)
        self._note_stage("enter", started)
        if self._before is not None:
            self._reporter.switching(self._before, phase, self._capture, self._times, self._unit_secs)
        return machine.Entered()

    # --- what a phase needs while it runs ---

    def _tick(self) -> None:
        self._chief.expire()
        self._reclaim_tail()
        if self._chief.stamps()[0]:
            self._training.set()
        for worker, incarnation in self._chief.take_fenced():
            if self._path is Path.SERVER and self._phase is not None:
                for server in self._servers().values():
                    server.fence(self._phase.epoch, worker, incarnation)
        self._reporter.tick()
        while self._evaluations and self._evaluations[0][1].done():
            self._collect_evaluation()

    def _reclaim_tail(self) -> None:
        """Give the last units of an asynchronous phase to others when nothing was applied for drain_secs."""
        now, applied = self._clock.monotonic(), self._chief.num_applied
        if applied != self._progress[1] or self._phase is None or self._path is not Path.SERVER:
            self._progress = now, applied
        elif now - self._progress[0] > self._run.config.drain_secs and self._chief.nothing_left(self._phase):
            self._progress = now, applied
            held = self._chief.reclaim()
            if held:
                self._reporter.note(f"the last units of epoch {self._phase.epoch} are given to others too: {held}")

    def _check_progress(self) -> None:
        """Raise WaitTimeout when a lock-step phase stands still, and name who is behind."""
        now, applied = self._clock.monotonic(), self._chief.num_applied
        if self._path is not Path.SYNC or applied != self._moved[1]:
            self._moved = now, applied
            return
        limit = max(STUCK_SECS, 10 * self._measure_unit()) if self._chief.stamps()[0] else START_DEADLINE_SECS
        if now - self._moved[0] > limit:
            raise WaitTimeout(
                f"no lock-step step was completed for {limit:g} s; workers {self._chief.behind()} are behind: "
                "run the same command again to resume from the last checkpoint"
            )

    def _is_over(self) -> bool:
        assert self._phase is not None
        if self._path is Path.SYNC:
            return len(self._chief.drained()) == len(self._phase.members)
        return self._chief.num_applied >= self._phase.end_units

    def _save_is_due(self) -> bool:
        """Whether a periodic save is due, and the phase does not end before it would be committed."""
        assert self._phase is not None
        save = self._committer.durable and self._clock.monotonic() >= self._next_save
        if not save and not self._evaluation_is_due():
            return False
        if self._reporter.switch_pending or not self._chief.stamps()[0]:
            return False
        rate = sum(self._chief.worker_rates().values())
        left = (self._phase.end_units - self._chief.num_applied) / rate if rate else 0.0
        return left > 2 * self._save_secs + 0.5

    def _evaluation_is_due(self) -> bool:
        return self._next_evaluation is not None and self._chief.num_applied >= self._next_evaluation

    def _collect_evaluation(self) -> None:
        units, evaluation = self._evaluations.popleft()
        self._reporter.evaluated(units, result_of(evaluation, f"the evaluation at unit {units}"))

    def _measure_unit(self) -> float:
        """Return the mean seconds of one worker's unit in this phase's last second."""
        rate = sum(self._chief.worker_rates().values())
        assert self._phase is not None
        return len(self._phase.members) / rate if rate else 0.0

    def _check_members(self, capture: Capture) -> None:
        """Compare what the members of a lock-step phase hold: they must be equal, bit for bit."""
        for worker, held in self._chief.drained().items():
            if held is not None and held.fingerprint != capture.held.fingerprint:
                raise HybridSyncError(
                    f"worker {worker} ended epoch {capture.held.epoch} with fingerprint {held.fingerprint}, "
                    f"{self._source} with {capture.held.fingerprint}; lock-step replicas must be equal: run the same "
                    "command again to resume from the last checkpoint"
                )

    def _await_roles(self) -> None:
        """Wait until every role takes part; the record goes on meanwhile.

        Raises:
          Preempted: the run was asked to stop; what it has is captured and on its way to the disk.
          WaitTimeout: a role did not come.
        """
        now = self._clock.monotonic()
        deadline, say_at = now + START_DEADLINE_SECS, now + SAY_SECS
        while not self._chief.watch(self._all_here, TICK_SECS):
            now = self._clock.monotonic()
            missing = (
                f"workers {self._chief.missing_workers()} have not registered; "
                f"{self._chief.num_servers()} of {self._run.config.servers} servers have"
            )
            if self._chief.preempted:
                raise Preempted(f"asked to stop while {missing}; run the same command again")
            if now >= deadline:
                raise WaitTimeout(f"after {START_DEADLINE_SECS:g} s: {missing}")
            if now >= say_at:
                self._reporter.note(f"waiting: {missing}")
                say_at = deadline
            self._tick()
        self._reporter.tick()

    def _all_here(self) -> bool:
        return not self._chief.missing_workers() and self._chief.num_servers() >= self._run.config.servers

    def _record_of(self, capture: Capture) -> dict[str, Any]:
        """What a checkpoint stores beside state and ledger."""
        return {
            "config": to_json(self._run.config),
            "source": self._run.describe_source(),
            "epoch": self._epoch.number if self._epoch else self._start.epoch,
            "sequence": capture.held.sequence,
            "fingerprint": capture.held.fingerprint,
            "seconds": self._reporter.seconds(),
        }

    def _note_stage(self, stage: str, started: float) -> None:
        ended = self._clock.monotonic()
        self._times.secs[stage] = ended - started
        self._reporter.span(stage, started, ended)
