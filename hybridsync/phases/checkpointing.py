"""Fetches, commits and evaluates captured states behind the training, one at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from absl import logging

from hybridsync.core.clock import Clock
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.errors import HybridSyncError
from hybridsync.core.units import UnitSet
from hybridsync.core.work_deadlines import SLACK_SECS, UNLIMITED, UNWATCHED, Watching
from hybridsync.interfaces.commands import Evaluation
from hybridsync.interfaces.messages import EvaluationRequest, Snapshot
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.evaluation import Evaluator
from hybridsync.training.snapshot import CommittedState, ReaderAt, fetch
from hybridsync.training.state import TrainState

COMMIT_DEADLINE_SECS = 600.0
"""For everything in a commit but its bytes: the wait for others to go first, and a slow disk."""
YIELD_SECS = 30.0


def commit_secs(num_bytes: int) -> float:
    """Return the deadline of the commit of a state: it is fetched, then written, either as slowly as a transfer."""
    return COMMIT_DEADLINE_SECS + 2 * (transfer_secs(num_bytes) - transfer_secs(0))


class Store(Protocol):
    """Commits states (`CheckpointStore`, or nowhere)."""

    def save(self, state: Any, *, units: int, ledger: dict[str, Any], run: dict[str, Any]) -> Any: ...


@dataclass(frozen=True)
class Commit:
    """A finished commit.

    Args:
      units: units applied in the state.
      bytes: bytes on disk; 0 for a run without a workdir.
      secs: seconds from the request to the durable end.
    """

    units: int
    bytes: int
    secs: float


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
    ) -> tuple[Future[Commit], Future[dict[str, Any] | None]]:
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
      clock: clock for `Commit.secs`.
      committed: has the memory of states, and keeps each that is durable.
      watchdog: watchdog of the process.
      elsewhere: has a worker measure a snapshot that the role at an address keeps; None where this process does it.
    """

    def __init__(
        self,
        store: Store | None,
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
    ) -> tuple[Future[Commit], Future[dict[str, Any] | None]]:
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

        def measure() -> Any:
            wait([committed])  # which fetches the state; it comes first also where both are waited for
            if not fetched.done():
                return None
            with self._watchdog.work(f"the evaluation of {units} units", UNLIMITED):  # who collects it judges lateness
                if self._elsewhere is not None:
                    request = EvaluationRequest(source, snapshot.snapshot_id, snapshot.held.fingerprint)
                    try:
                        return {each.name: each.value for each in self._elsewhere(request).figures} or None
                    except HybridSyncError as error:  # the worker is gone, or the snapshot is: it is measured here
                        logging.info("the evaluation of %d units comes to the chief: %s", units, error)
                return self._evaluator.evaluate(fetched.result(), UnitSet(snapshot.applied))

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
