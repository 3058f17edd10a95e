"""Lets callers into what a server holds: one at a time, and into one phase after another.

A server that no longer knows what it holds is ended. The state of a phase is fetched while the server's lock is free,
and swapped in under it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from hybridsync.core.errors import HybridSyncError, RoleLost, StalePhase, described
from hybridsync.core.futures import result_within
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import StateVersion
from hybridsync.interfaces.reports import ENTERING

T = TypeVar("T")


class Turn:
    """One caller's turn under a server's condition, as a context manager.

    A `HybridSyncError` refuses a call and changes nothing. Anything else, as of memory that ran out, may come out of
    the middle of an update: the state is used no more, and the server's process is to end, so that a new process takes
    its place. The caller gets a `RoleLost` in place of an `Exception`. A user's interrupt passes as it is, since in one
    process the caller is the user's own thread; so does everything else that is not an `Exception`.

    Args:
      condition: condition of the server.
      abandon: serves no phase any more; called under the condition.
      failed: called with the reason why the server cannot go on.
    """

    def __init__(
        self, condition: threading.Condition, abandon: Callable[[], None], failed: Callable[[HybridSyncError], None]
    ) -> None:
        self._condition, self._abandon, self._failed = condition, abandon, failed

    def __enter__(self) -> None:
        self._condition.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None or isinstance(error, HybridSyncError):
                return
            lost = RoleLost(f"a server failed: {described(error)}; what it held is used no more")
            lost.__cause__ = error
            try:
                self._abandon()
                self._condition.notify_all()
            finally:
                self._failed(lost)
            if isinstance(error, Exception):
                raise lost
        finally:
            self._condition.release()


@dataclass(eq=False)
class _Entry:
    phase_id: PhaseId
    outcome: Future[StateVersion] = field(default_factory=Future)


class Entrance:
    """Lets one phase at a time be entered; a newer one takes the place of an older one.

    A repeated Enter waits for the first and shares its outcome. The owner's condition guards the entry in progress.

    Args:
      condition: condition of the server.
      secs: seconds that a repeated call waits for the first one.
    """

    def __init__(self, condition: threading.Condition, secs: float) -> None:
        self._condition, self._secs = condition, secs
        self._entry: _Entry | None = None

    @property
    def doing(self) -> str:
        """State in the heartbeat: `ENTERING` while a state is being fetched, else ""."""
        return ENTERING if self._entry is not None else ""

    def enter(
        self,
        phase_id: PhaseId,
        *,
        held: Callable[[], StateVersion | None],
        leave: Callable[[], None],
        fetch: Callable[[], T],
        swap: Callable[[T], StateVersion],
    ) -> StateVersion:
        """Enter `phase_id`, or share the outcome of the call that does.

        Args:
          phase_id: id of the phase to enter.
          held: returns what is held where the phase is served already, else None; called under the lock.
          leave: refuses the calls of the phase before; called under the lock.
          fetch: returns the new state; called while the lock is free, so that heartbeats and readers go on.
          swap: begins to serve what was fetched; called under the lock.

        Raises:
          StalePhase: a newer phase, or a different one of that number, is served or being entered.
          WaitTimeout: the call that this one repeats has not ended in time.
          HybridSyncError: the error that `fetch` or `swap` raised; the server can enter the same phase again then.
        """
        with self._condition:
            if (served := held()) is not None:
                return served
            entry, is_repeat = self._admit(phase_id)
            if not is_repeat:
                leave()
        if is_repeat:
            return self._share(entry)
        try:
            fetched = fetch()
            with self._condition:
                if self._entry is entry:  # else a newer phase has taken its place meanwhile
                    entry.outcome.set_result(swap(fetched))
                    self._entry = None
        except BaseException as error:
            if self._give_up(entry, error):
                raise
        return entry.outcome.result()

    def _admit(self, phase_id: PhaseId) -> tuple[_Entry, bool]:
        """Return the entry of `phase_id`, and whether another call carries it out."""
        before = self._entry
        if before is not None:
            if before.phase_id == phase_id:
                return before, True
            offered, entering = phase_id.beside(before.phase_id)
            if phase_id.number <= before.phase_id.number:
                raise StalePhase(f"phase {offered} is not newer than phase {entering}, which is being entered")
            before.outcome.set_exception(
                StalePhase(f"phase {entering} is not entered any more: phase {offered} takes its place")
            )
        self._entry = _Entry(phase_id)
        return self._entry, False

    def _share(self, entry: _Entry) -> StateVersion:
        late = f"phase {entry.phase_id} is being entered for more than {self._secs:g} s: its state has not arrived"
        return result_within(entry.outcome, self._secs, late)

    def _give_up(self, entry: _Entry, error: BaseException) -> bool:
        """End an entry that failed; returns whether it was still wanted."""
        with self._condition:
            if self._entry is not entry:
                return False
            self._entry = None
            entry.outcome.set_exception(error)
            return True
