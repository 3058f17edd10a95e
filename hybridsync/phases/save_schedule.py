"""Times saves and evaluations, and follows those under way; `checkpointing.py` does them behind the training."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from hybridsync.chief.run_control import RunControl
from hybridsync.config import to_json
from hybridsync.core.clock import Clock
from hybridsync.core.futures import result_within
from hybridsync.core.units import Range
from hybridsync.core.work_deadlines import SLACK_SECS, UNWATCHED, Watching
from hybridsync.interfaces.messages import Snapshot
from hybridsync.interfaces.phase import Phase
from hybridsync.phases.checkpointing import COMMIT_DEADLINE_SECS, Commit, Commits, commit_secs
from hybridsync.phases.member_waits import TICK_SECS
from hybridsync.phases.reporter import Reporter
from hybridsync.training.run import Run

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
        self._evaluations: deque[tuple[int, float, Future]] = deque()  # units, the run's seconds at which they were
        self._next_save = self._save_secs = self._retry_secs = self._awaited_secs = self._age_secs = 0.0
        every = run.config.telemetry.evaluate_units
        self._next_evaluation = (control.num_applied // every + 1) * every if every else math.inf
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
        ledger = self._control.ledger.to_json(snapshot.applied, snapshot.dropped)
        self._commit, evaluation = self._committer.submit(
            snapshot, source, ledger, record, evaluate=evaluate, after=self.training
        )
        self._pass_places(snapshot.held.units, is_evaluated=evaluate)
        if evaluate:
            self._evaluations.append((snapshot.held.units, secs - age_secs, evaluation))

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
        preempted, until = self._control.preempted, self._clock.monotonic() + self._awaited_secs
        while (left := until - self._clock.monotonic()) > 0:
            if self._control.wait_until(lambda: self._control.preempted != preempted, min(left, TICK_SECS)):
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
        under_way = bool(self._control.stamps()[0])
        if save and retries:
            return under_way or phase.mode.is_served  # elsewhere its members may not hold its state yet
        if not under_way:
            return False
        rate = math.fsum(self._control.worker_rates().values())
        left = (phase.end_units - self._control.num_applied) / rate if rate else 0.0
        return left > 2 * self._save_secs + 0.5

    @property
    def next_place(self) -> int:
        """Return the applied units at which the next evaluation is to be; 0 where none may begin.

        One evaluation at most waits for the one under way: each keeps a whole state in the chief's memory.
        """
        return int(self._next_evaluation) if len(self._evaluations) <= 1 and self._next_evaluation < math.inf else 0

    @property
    def evaluation_is_due(self) -> bool:
        """Return whether a place has come at which to evaluate."""
        return 0 < self.next_place <= self._control.num_applied

    def leave(self, units: int) -> None:
        """Tell of the places up to `units` that have no evaluation, and get none: the run stops there."""
        self._pass_places(units, is_evaluated=False, stops=True)

    def _pass_places(self, units: int, *, is_evaluated: bool, stops: bool = False) -> None:
        """Plan the next evaluation after a state, and tell of the places that have none of their own.

        A place counts as passed when a state was handed over for it, not before: a capture may fail, and the place is
        then evaluated late. A state that is saved only passes it, too: with it the holder drops what it kept there.
        """
        if units < self._next_evaluation:
            return
        every = self._run.config.telemetry.evaluate_units
        first, newest = int(self._next_evaluation), units // every * every
        self._next_evaluation = newest + every
        last = newest - every if is_evaluated else newest
        if first <= last:
            self._reporter.skipped(first, last, (last - first) // every + 1, units, stops=stops)

    def collect(self, *, all_of_them: bool = False) -> None:
        """Report the evaluations that have ended, or wait for all of them; one that fails, or is late, ends nothing."""
        while self._evaluations and (all_of_them or self._evaluations[0][2].done()):
            units, captured, evaluation = self._evaluations.popleft()
            what, most_secs = f"the evaluation at unit {units}", COMMIT_DEADLINE_SECS + LEAVING_SECS
            with self._watchdog.work(what, most_secs + SLACK_SECS):
                secs = self._await_evaluation(evaluation)
                late = f"it has not ended in {secs:.0f} s"
                self._reporter.evaluated(units, captured, partial(result_within, evaluation, 0.0, late))

    def _await_evaluation(self, evaluation: Future) -> float:
        """Wait for an evaluation, and only a moment more once the run is asked to stop; returns for how many seconds.

        What makes a run fail does not end the wait: the state is saved.
        """
        began = self._clock.monotonic()
        until, is_asked = began + COMMIT_DEADLINE_SECS, False
        while not evaluation.done() and (now := self._clock.monotonic()) < until:
            if self._control.is_leaving and not is_asked:  # also where a callback has stopped the run before
                until, is_asked = now + LEAVING_SECS, True
            wait((evaluation,), TICK_SECS)
        return self._clock.monotonic() - began

    def _await_end(self, commit: Future[Commit], tick: Callable[[], None]) -> float:
        """Wait for a commit until its deadline, which is returned in seconds."""
        self.training.set()
        secs = commit_secs(self.submitted.num_bytes if self.submitted is not None else 0)
        deadline = self._clock.monotonic() + secs
        while not self._control.wait_until(commit.done, TICK_SECS) and self._clock.monotonic() < deadline:
            tick()
        return secs
