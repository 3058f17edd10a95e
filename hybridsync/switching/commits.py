"""What happens to a captured state behind the training: it is fetched, committed, and evaluated, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from hybridsync.clock import Clock
from hybridsync.errors import WaitTimeout
from hybridsync.evaluation import Evaluator
from hybridsync.holding import ReaderAt, fetch
from hybridsync.layout import Layout
from hybridsync.messages import Capture
from hybridsync.state import TrainState
from hybridsync.units import UnitSet

COMMIT_DEADLINE_SECS = 600.0
YIELD_SECS = 30.0


class Store(Protocol):
    """Where states are committed (`CheckpointStore`, or nowhere)."""

    def save(self, state: Any, *, units: int, ledger: dict[str, Any], run: dict[str, Any]) -> Any: ...


@dataclass(frozen=True)
class Commit:
    """A finished commit.

    Args:
      units: units applied in the state.
      bytes: on disk; 0 for a run without a workdir.
      secs: from the request to the durable end.
    """

    units: int
    bytes: int
    secs: float


class Committer:
    """One background thread that commits and evaluates captures in the order in which they come.

    Args:
      store: where to; None for a run without a workdir.
      layout: of the training state.
      reader_at: how to reach the holder of a capture.
      evaluator: evaluates a state.
      clock: for `Commit.secs`.
      keep: called with each state that is durable.
    """

    def __init__(
        self,
        store: Store | None,
        layout: Layout,
        reader_at: ReaderAt,
        evaluator: Evaluator,
        clock: Clock,
        keep: Callable[[Capture, TrainState], None],
    ) -> None:
        self._store, self._layout, self._reader_at = store, layout, reader_at
        self._evaluator, self._clock, self._keep = evaluator, clock, keep
        self._executor = ThreadPoolExecutor(1, "commit")
        self.state: TrainState | None = None

    @property
    def durable(self) -> bool:
        """Whether commits outlive the process."""
        return self._store is not None

    def submit(
        self,
        capture: Capture,
        source: str,
        ledger: dict[str, Any],
        run: dict[str, Any],
        *,
        evaluate: bool,
        after: threading.Event,
    ) -> tuple[Future[Commit], Future[dict[str, float] | None]]:
        """Start a commit; returns its end, and the end of the evaluation behind it.

        Args:
          capture: what to commit.
          source: address of the role that keeps it.
          ledger: stored beside the state.
          run: stored beside the state.
          evaluate: whether to measure the state as well.
          after: the fetch waits for it, at most YIELD_SECS: those who need the state to train come first.
        """
        fetched: Future[TrainState] = Future()
        started = self._clock.monotonic()

        def commit() -> Commit:
            after.wait(YIELD_SECS)
            state = fetch(source, capture.capture_id, capture.held.fingerprint, self._layout, self._reader_at)
            self.state = state
            fetched.set_result(state)
            num_bytes = 0
            if self._store is not None:
                num_bytes = self._store.save(state, units=capture.held.units, ledger=ledger, run=run).bytes
            self._keep(capture, state)
            return Commit(capture.held.units, num_bytes, self._clock.monotonic() - started)

        def measure() -> dict[str, float] | None:
            if not evaluate or not fetched.done():
                return None
            return self._evaluator.evaluate(fetched.result(), UnitSet(capture.applied))

        return self._executor.submit(commit), self._executor.submit(measure)

    def close(self) -> None:
        """Wait for the commits under way; an error of one stays in its future."""
        self._executor.shutdown(wait=True)


def result_of(commit: Future, what: str, secs: float = COMMIT_DEADLINE_SECS) -> Any:
    """Return a future's result, waiting for it up to `secs`.

    Raises:
      WaitTimeout: it did not end in time.
      HybridSyncError: what it raised.
    """
    try:
        return commit.result(timeout=secs)
    except TimeoutError:
        raise WaitTimeout(f"{what} did not end within {COMMIT_DEADLINE_SECS:g} s; is the disk hanging?") from None
