"""Saves and evaluates behind the training: when that is due, what is under way, and the threads that do it."""

from __future__ import annotations

import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from absl import logging

from hybridsync.chief.run_state import RunControl
from hybridsync.config import to_json
from hybridsync.core.clock import Clock
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.errors import CheckpointError, HybridSyncError
from hybridsync.core.futures import result_within
from hybridsync.core.units import Range, UnitSet
from hybridsync.core.work_deadlines import SLACK_SECS, UNLIMITED, UNWATCHED, Watching
from hybridsync.interfaces.commands import Evaluation
from hybridsync.interfaces.messages import EvaluationRequest, Snapshot
from hybridsync.interfaces.phase import Phase
from hybridsync.phases import state_machine
from hybridsync.phases.reporter import Reporter
from hybridsync.phases.run_context import TICK_SECS, UNREACHED, Commit, Measured, RunContext
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.evaluation import Evaluator
from hybridsync.training.run import Run
from hybridsync.training.snapshot import CommittedState, ReaderAt, fetch
from hybridsync.training.state import TrainState

if TYPE_CHECKING:  # loads Orbax, which a simulation does without
    from hybridsync.storage.checkpoints.store import CheckpointStore

COMMIT_DEADLINE_SECS = 600.0
"""For everything in a commit but its bytes: the wait for others to go first, and a slow disk."""
YIELD_SECS = 30.0


def commit_secs(num_bytes: int) -> float:
    """Return the deadline of the commit of a state: it is fetched, then written, either as slowly as a transfer."""
    return COMMIT_DEADLINE_SECS + 2 * (transfer_secs(num_bytes) - transfer_secs(0))


class Commits(Protocol):
    """Commits and evaluates snapshots (`Committer`, or one in virtual time)."""

    @property
    def durable(self) -> bool:
        """Return whether commits outlive the process."""
        ...

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
        """Start a commit; returns its end, and the end of the evaluation behind it (see `Committer.submit`)."""
        ...

    def close(self) -> None:
        """Wait for the pending commits."""
        ...


class _Answer:
    """Puts an error of the block into a future, for the caller that waits there: no error ends the thread itself."""

    def __init__(self, future: Future) -> None:
        self._future = future

    def __enter__(self) -> Future:
        return self._future

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self._future.set_exception(error)
        return True


class _Queue:
    """Does one job after another in a thread of its own, which does not keep a process alive as an executor's would."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future, Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, job: Callable[[], Any]) -> Future:
        future: Future = Future()
        self._jobs.put((future, job))
        return future

    def close(self) -> None:
        self._jobs.put(None)

    def _work(self) -> None:
        while (next_job := self._jobs.get()) is not None:
            future, job = next_job
            with _Answer(future):
                future.set_result(job())


class Committer:
    """Commits captures in one background thread and evaluates them in another, in the order in which they come.

    No save waits for the user's code: an evaluation may take, or hang, as long as it likes.

    Args:
      store: storage of the checkpoints; None for a run without a workdir.
      layout: layout of the training state.
      reader_at: returns a reader of the role at an address that holds a snapshot.
      evaluator: evaluates a state.
      clock: clock for `Commit.secs` and `Measured.secs`.
      committed: has the memory of states, and keeps each that is durable.
      watchdog: watchdog of the process.
      elsewhere: has a worker measure a snapshot that the role at an address keeps; None where this process does it.
    """

    def __init__(
        self,
        store: CheckpointStore | None,
        layout: Layout,
        reader_at: ReaderAt,
        evaluator: Evaluator,
        clock: Clock,
        committed: CommittedState,
        watchdog: Watching = UNWATCHED,
        elsewhere: Callable[[EvaluationRequest], Evaluation] | None = None,
    ) -> None:
        self._elsewhere = elsewhere
        self._watchdog, self._commit_secs = watchdog, COMMIT_DEADLINE_SECS + 2 * transfer_secs(layout.nbytes)
        self._store, self._layout, self._reader_at = store, layout, reader_at
        self._evaluator, self._clock, self._committed = evaluator, clock, committed
        self._queue, self._evaluating = _Queue("commit"), _Queue("evaluate")
        self._commits: dict[Future[Commit], tuple[int, float]] = {}

    @property
    def durable(self) -> bool:
        """Return whether commits outlive the process."""
        return self._store is not None

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
        """Start a commit; returns its end, and the end of the evaluation behind it.

        Args:
          snapshot: snapshot to commit.
          source: address of the role that keeps it.
          ledger: stored with the state.
          run: stored with the state.
          evaluate: whether to measure the state as well.
          after: event that the fetch waits for, at most YIELD_SECS: roles that need the state to train come first.
        """
        fetched: Future[TrainState] = Future()
        started, units = self._clock.monotonic(), snapshot.held.units

        def commit() -> Commit:
            with self._watchdog.work(f"the commit of {units} units", self._commit_secs):
                after.wait(YIELD_SECS)
                buffer, digest = self._committed.buffer(), snapshot.held.fingerprint
                state = fetch(source, snapshot.snapshot_id, digest, self._layout, self._reader_at, buffer=buffer)
                fetched.set_result(state)
                num_bytes = 0
                if self._store is not None:
                    num_bytes = self._store.save(state, units=units, ledger=ledger, run=run).bytes
                self._committed.store(snapshot, buffer)
            return Commit(units, num_bytes, self._clock.monotonic() - started)

        def figures_of() -> dict[str, Any] | None:
            if self._elsewhere is not None:
                request = EvaluationRequest(source, snapshot.snapshot_id, snapshot.held.fingerprint)
                try:
                    return {each.name: each.value for each in self._elsewhere(request).figures} or None
                except HybridSyncError as error:  # the worker is gone, or the snapshot is: it is measured here
                    logging.info("the evaluation of %d units comes to the chief: %s", units, error)
            return self._evaluator.evaluate(fetched.result(), UnitSet(snapshot.applied))

        def measure() -> Measured | None:
            wait([committed])  # which fetches the state; it comes first also where both are waited for
            if not fetched.done():
                return None
            began = self._clock.monotonic()
            with self._watchdog.work(f"the evaluation of {units} units", UNLIMITED):  # who collects it judges lateness
                figures = figures_of()
            return Measured(figures, self._clock.monotonic() - began) if figures is not None else None

        self._commits = {earlier: told for earlier, told in self._commits.items() if not earlier.done()}
        committed = self._queue.submit(commit)
        self._commits[committed] = units, started
        return committed, self._evaluating.submit(measure if evaluate else lambda: None)

    def close(self) -> None:
        """Wait for the pending commits, for each until `commit_secs` after it was asked for.

        The error of a commit stays in its future. A commit that has not ended by then is abandoned and named in the
        log, not raised: what ended the run may be on its way to the caller.
        """
        self._queue.close()
        self._evaluating.close()
        newest = max((started for _, started in self._commits.values()), default=0.0)
        secs = commit_secs(self._layout.nbytes)
        left = newest + secs - self._clock.monotonic()
        with self._watchdog.work("the last commits", secs + SLACK_SECS):
            late_ones = wait(self._commits, timeout=max(0.0, left)).not_done
        for late in late_ones:
            logging.error(
                "The checkpoint of %d units did not end within %.1f s and is left behind; is the disk hanging?",
                self._commits[late][0],
                secs,
            )


RETRY_SECS = 1.0
"""Until a state that could not be made durable is tried again, the first time; then twice as long each time."""
MOST_RETRY_SECS = 60.0
"""The longest such time; shorter where saves are more frequent."""
MOST_AWAITED_SECS = 5.0
"""The longest such time where the end of a phase waits for it, and may keep the workers waiting."""
LEAVING_SECS = 10.0
"""How long a run that was asked to stop waits for an evaluation under way, once its state is saved."""


class SaveSchedule:
    """Keeps the one pending commit, and the evaluations behind it.

    Args:
      run: configuration and data source, which are stored.
      control: ledger and rates.
      committer: commits and evaluates.
      reporter: logs evaluations.
      clock: clock for deadlines.
      submitted: a snapshot that is durable already, None if none is.
      detours: units applied -> the detours from the plan up to there, which are stored.
      watchdog: watchdog of the process.

    Attributes:
      submitted: the snapshot that was handed to the committer last; None if that came to nothing.
      training: clear while a switch's next phase has not applied its first unit: a commit lets it go first.
    """

    def __init__(
        self,
        run: Run,
        control: RunControl,
        committer: Commits,
        reporter: Reporter,
        clock: Clock,
        submitted: Snapshot | None,
        detours: Callable[[int], Iterable[Range]] = lambda units: (),
        watchdog: Watching = UNWATCHED,
    ) -> None:
        self._run, self._control, self._committer = run, control, committer
        self._reporter, self._clock, self.submitted = reporter, clock, submitted
        self._detours, self._watchdog = detours, watchdog
        self.training = threading.Event()
        self.training.set()
        self._commit: Future[Commit] | None = None
        # Units, the run's seconds at which they were, and the place that is evaluated; 0 for none.
        self._evaluations: deque[tuple[int, float, int, Future]] = deque()
        self._next_save = self._save_secs = self._retry_secs = self._awaited_secs = self._age_secs = 0.0
        every = run.config.telemetry.evaluate_units
        with control.turn() as chief:
            applied = chief.ledger.num_applied
        measured = reporter.measured_until(applied) if every else 0
        self._next_evaluation = (measured // every + 1) * every if every else math.inf
        self._of_run = {"config": to_json(run.config), "source": run.describe_source()}

    @property
    def secs_to_retry(self) -> float:
        """Seconds until a state is tried again that could not be made durable; infinite where none is, or it is due."""
        left = self._next_save - self._clock.monotonic()
        return left if self._retry_secs and left > 0 else math.inf

    @property
    def under_way(self) -> bool:
        """Return whether a commit has not been taken note of yet."""
        return self._commit is not None

    @property
    def done(self) -> bool:
        """Return whether the pending commit has ended, one way or the other."""
        return self._commit is not None and self._commit.done()

    def submit(
        self, snapshot: Snapshot, source: str, phase_number: int, *, evaluate: bool, captured: float = 0.0
    ) -> None:
        """Begin to commit `snapshot`, which `source` keeps.

        Args:
          snapshot: state to commit.
          source: address of the role that keeps it.
          phase_number: newest phase.
          evaluate: whether to measure the state as well.
          captured: time of the last update in a state that was captured live; 0 for a state of this moment.
        """
        self.submitted = snapshot
        secs = self._reporter.seconds()
        age_secs = max(0.0, self._clock.monotonic() - captured) if evaluate and captured else 0.0
        # Of a state that was kept at a place: the next save is due by so much earlier. It is no older than the run,
        # though the clock of a role may say so that the chief has not compared with its own.
        self._age_secs = age_secs = min(age_secs, secs)
        record: dict[str, Any] = {
            **self._of_run,
            "phase": phase_number,
            "sequence": snapshot.held.sequence,
            "fingerprint": snapshot.held.fingerprint,
            "seconds": secs,
            "detours": [list(detour) for detour in self._detours(snapshot.held.units)],
        }
        with self._control.turn() as chief:
            ledger = chief.ledger.to_json(snapshot.applied, snapshot.dropped)
        self._commit, evaluation = self._committer.submit(
            snapshot, source, ledger, record, evaluate=evaluate, after=self.training
        )
        place = self._pass_places(snapshot.held.units, is_evaluated=evaluate)
        if evaluate:
            self._evaluations.append((snapshot.held.units, secs - age_secs, place, evaluation))

    def wait(self, tick: Callable[[], None]) -> Commit:
        """Return the pending commit when it has ended; `tick` is called meanwhile and may raise.

        Raises:
          WaitTimeout: the commit did not end in time.
          CheckpointError, RoleLost, StalePhase: the error of the commit, which has ended.
        """
        assert self._commit is not None
        waited_secs = self._await_end(self._commit, tick)
        pending, self._commit = self._commit, None
        submitted, self.submitted = self.submitted, None
        late = f"the checkpoint did not end within {waited_secs:.1f} s; is the disk hanging?"
        commit = result_within(pending, 0.0, late)
        self.submitted = submitted
        self._save_secs, self._retry_secs, self._awaited_secs = commit.secs, 0.0, 0.0
        self._next_save = self._clock.monotonic() + self._run.config.checkpoint.secs - self._age_secs
        return commit

    def put_off(self) -> None:
        """Have the next save be due a while later, and that while be longer each time: the last one came to nothing."""
        most = max(RETRY_SECS, min(self._run.config.checkpoint.secs, MOST_RETRY_SECS))
        self._retry_secs = min(2 * self._retry_secs or RETRY_SECS, most)
        self._next_save = self._clock.monotonic() + self._retry_secs

    def await_retry(self, tick: Callable[[], None]) -> None:
        """Wait until a save that was put off is to be tried for whoever waits for it; `tick` is called meanwhile.

        That is sooner than it would be due, and at once when the run is asked to stop.

        Raises:
          HybridSyncError: the error that `tick` raised.
        """
        self._awaited_secs = min(2 * self._awaited_secs or RETRY_SECS, MOST_AWAITED_SECS)
        with self._control.turn() as chief:
            preempted, until = chief.preempted, self._clock.monotonic() + self._awaited_secs
        while (left := until - self._clock.monotonic()) > 0:
            if self._control.wait_until(lambda chief: chief.preempted != preempted, min(left, TICK_SECS)):
                return
            tick()

    def await_newer(self, units: int, tick: Callable[[], None]) -> bool:
        """Let the pending commit end if its state has more than `units`; returns whether there was such a one.

        Once it is durable it would pass for the newest state, though the run had gone on from less.
        """
        if self._commit is None or self.submitted is None or self.submitted.held.units <= units:
            return False
        self._await_end(self._commit, tick)
        return True

    def is_due(self, phase: Phase) -> bool:
        """Return whether a save or evaluation is due, and the phase does not end before it would be committed.

        A save that failed is due also right before the end, which waits for it in any case.
        """
        retries = self._retry_secs > 0
        save = (self._committer.durable or retries) and self._clock.monotonic() >= self._next_save
        if (not save and not self.evaluation_is_due) or self._commit is not None:
            return False
        with self._control.turn() as chief:
            first_applied, _ = chief.phase_members.first_and_last()
            rate = math.fsum(chief.worker_rates().values())
            left = (phase.end_units - chief.ledger.num_applied) / rate if rate else 0.0
        if save and retries:
            return bool(first_applied) or phase.mode.is_served  # elsewhere its members may not hold its state yet
        return bool(first_applied) and left > 2 * self._save_secs + 0.5

    @property
    def next_place(self) -> int:
        """Return the applied units at which the next evaluation is to be; 0 where none may begin.

        One evaluation at most waits for the one under way: each keeps a whole state in the chief's memory.
        """
        return int(self._next_evaluation) if len(self._evaluations) <= 1 and self._next_evaluation < math.inf else 0

    @property
    def evaluation_is_due(self) -> bool:
        """Return whether a place has come at which to evaluate."""
        with self._control.turn() as chief:
            return 0 < self.next_place <= chief.ledger.num_applied

    def leave(self, units: int) -> None:
        """Tell of the places up to `units` that have no evaluation, and get none: the run stops there."""
        self._pass_places(units, is_evaluated=False, why="the run was asked to stop")

    def _pass_places(
        self,
        units: int,
        *,
        is_evaluated: bool,
        why: str = "a save or an evaluation was under way, or a phase about to end",
    ) -> int:
        """Plan the next evaluation after a state, and report the places that have none of their own.

        Returns the place that the state is evaluated for; 0 for none.

        A place counts as passed when a state was handed over for it, not before: a capture may fail, and the place is
        then evaluated late. A state that is saved only passes it, too: with it the holder drops what it kept there.
        """
        if units < self._next_evaluation:
            return 0
        every = self._run.config.telemetry.evaluate_units
        first, newest = int(self._next_evaluation), units // every * every
        self._next_evaluation = newest + every
        if left_out := range(first, newest if is_evaluated else newest + every, every):
            self._reporter.skipped(left_out, units, why)
        return newest if is_evaluated else 0

    def collect(self, *, all_of_them: bool = False) -> None:
        """Report the evaluations that have ended, or wait for all of them; one that fails, or is late, ends nothing."""
        while self._evaluations and (all_of_them or self._evaluations[0][-1].done()):
            units, captured, place, evaluation = self._evaluations.popleft()
            what, most_secs = f"the evaluation at unit {units}", COMMIT_DEADLINE_SECS + LEAVING_SECS
            with self._watchdog.work(what, most_secs + SLACK_SECS):
                secs = self._await_evaluation(evaluation)
                late = f"it has not ended in {secs:.0f} s"
                self._reporter.evaluated(units, captured, partial(result_within, evaluation, 0.0, late), place)

    def _await_evaluation(self, evaluation: Future) -> float:
        """Wait for an evaluation, and only a moment more once the run is asked to stop; returns for how many seconds.

        What makes a run fail does not end the wait: the state is saved.
        """
        began = self._clock.monotonic()
        until, is_asked = began + COMMIT_DEADLINE_SECS, False
        while not evaluation.done() and (now := self._clock.monotonic()) < until:
            with self._control.turn() as chief:
                is_leaving = chief.is_leaving
            if is_leaving and not is_asked:  # also where a callback has stopped the run before
                until, is_asked = now + LEAVING_SECS, True
            wait((evaluation,), TICK_SECS)
        return self._clock.monotonic() - began

    def _await_end(self, commit: Future[Commit], tick: Callable[[], None]) -> float:
        """Wait for a commit until its deadline, which is returned in seconds."""
        self.training.set()
        secs = commit_secs(self.submitted.num_bytes if self.submitted is not None else 0)
        deadline = self._clock.monotonic() + secs
        while not self._control.wait_until(lambda chief: commit.done(), TICK_SECS):
            if self._clock.monotonic() >= deadline:
                break
            tick()
        return secs


class CommitStage:
    """Submits the newest captured state, and takes note of what came of it.

    Args:
      run: what the stages of a run share.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run

    @property
    def is_over(self) -> bool:
        """Return whether a commit has ended, one way or the other, that nobody has taken note of yet."""
        return self._run.saving.done

    @property
    def is_under_way(self) -> bool:
        """Return whether a commit has been submitted that nobody has taken note of yet."""
        return self._run.saving.under_way

    @property
    def covers_newest(self) -> bool:
        """Return whether the newest captured state is the one that was submitted last, and has not failed."""
        return self._run.saving.submitted is self._run.state.snapshot

    def submit(self) -> None:
        """Begin to commit the newest captured state."""
        state = self._run.state
        phase_number = state.phase_id.number if state.phase_id else self._run.state.start_phase
        captured, state.captured = state.captured, 0.0
        self._run.saving.submit(state.snapshot, state.source, phase_number, evaluate=state.evaluates, captured=captured)

    def await_commit(self) -> state_machine.Event:
        """Wait for the pending commit; training goes on when it failed, unless it was the run's last.

        Raises:
          PhaseBroken: the current phase was broken meanwhile.
          WaitTimeout: the phase stands still, and its workers are threads, which cannot be given up.
          CheckpointError: the run's last state could not be written.
        """
        try:
            commit = self._wait()
        except (CheckpointError, *UNREACHED) as error:
            if self._run.saving.under_way:  # it was the phase that met this, or the run
                raise
            return self._failed(error)
        self._run.reporter.committed(commit)
        return state_machine.Committed()

    def await_retry(self) -> None:
        """Let a while pass until the state is captured and committed anew for whose commit the phase's end waits.

        Raises:
          PhaseBroken, WaitTimeout: see `await_commit`.
        """
        self._run.saving.await_retry(self._look_around)

    def commit(self) -> None:
        """Commit the newest captured state, and return when it is durable.

        Raises:
          PhaseBroken, WaitTimeout, CheckpointError, RoleLost, StalePhase: the state did not become durable.
        """
        self.submit()
        self._run.reporter.committed(self._wait())

    def _failed(self, error: Exception) -> state_machine.Event:
        state = self._run.state
        if state.is_ending and isinstance(error, CheckpointError):  # no training follows that could be saved later
            raise error
        if state.is_ending:
            state.broken_by = f"the last state could not be fetched: {error}"
            with self._run.control.turn() as chief:
                chief.break_phase(state.broken_by)
            return state_machine.CommitFailed()
        self._run.reporter.not_durable(state.snapshot.held.units, str(error))
        self._run.saving.put_off()
        return state_machine.CommitFailed()

    def _wait(self) -> Commit:
        return self._run.saving.wait(self._look_around)

    def _look_around(self) -> None:
        """Do what is due while a commit is waited for; where a phase goes on meanwhile, see that it does."""
        self._run.tick()
        phase = self._run.state.phase
        with self._run.control.turn() as chief:
            if self._run.state.is_ending or chief.phase_members.gathering:
                return
            chief.raise_broken()
            is_over = phase is None or chief.is_over(phase)
        if phase is not None and not is_over:
            self._run.pace.check(phase)
