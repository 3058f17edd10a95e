"""A server's entrance into a phase: the state is fetched while the server's lock is free, then swapped in under it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from hybridsync.core.errors import HybridSyncError, StaleEpoch, WaitTimeout
from hybridsync.core.plan import Epoch
from hybridsync.interfaces.messages import Held
from hybridsync.interfaces.reports import ENTERING

T = TypeVar("T")


@dataclass(eq=False)
class _Entry:
    epoch: Epoch
    outcome: Future[Held] = field(default_factory=Future)


class Entrance:
    """Lets one phase at a time be entered; a newer one takes the place of an older one.

    A repeated Enter waits for the first and shares its outcome. The owner's condition guards the entry under way.

    Args:
      condition: the server's.
      secs: how long a repeated call waits for the first one.
    """

    def __init__(self, condition: threading.Condition, secs: float) -> None:
        self._condition, self._secs = condition, secs
        self._entry: _Entry | None = None

    @property
    def doing(self) -> str:
        """What the heartbeat says: `ENTERING` while a state is being fetched, else ""."""
        return ENTERING if self._entry is not None else ""

    def enter(
        self,
        epoch: Epoch,
        *,
        held: Callable[[], Held | None],
        leave: Callable[[], None],
        fetch: Callable[[], T],
        swap: Callable[[T], Held],
    ) -> Held:
        """Enter `epoch`, or share the outcome of the call that does.

        Args:
          epoch: to enter.
          held: returns what is held where the epoch is served already, else None; called under the lock.
          leave: refuses the calls of the phase before; called under the lock.
          fetch: returns the new state; called while the lock is free, so that heartbeats and readers go on.
          swap: begins to serve what was fetched; called under the lock.

        Raises:
          StaleEpoch: a newer epoch is served or being entered, or another one of that number.
          WaitTimeout: the call that this one repeats has not ended in time.
          HybridSyncError: what `fetch` or `swap` raised; the server can enter the same epoch again then.
        """
        with self._condition:
            if (served := held()) is not None:
                return served
            entry, is_repeat = self._admit(epoch)
            if not is_repeat:
                leave()
        if is_repeat:
            return self._share(entry)
        try:
            fetched = fetch()
            with self._condition:
                if self._entry is entry:  # else a newer epoch has taken its place meanwhile
                    entry.outcome.set_result(swap(fetched))
                    self._entry = None
        except BaseException as error:
            if self._give_up(entry, error):
                raise
        return entry.outcome.result()

    def _admit(self, epoch: Epoch) -> tuple[_Entry, bool]:
        """Return the entry of `epoch`, and whether another call carries it out."""
        before = self._entry
        if before is not None:
            if before.epoch == epoch:
                return before, True
            offered, entering = epoch.beside(before.epoch)
            if epoch.number <= before.epoch.number:
                raise StaleEpoch(f"epoch {offered} is not newer than epoch {entering}, which is being entered")
            before.outcome.set_exception(
                StaleEpoch(f"epoch {entering} is not entered any more: epoch {offered} takes its place")
            )
        self._entry = _Entry(epoch)
        return self._entry, False

    def _share(self, entry: _Entry) -> Held:
        try:
            return entry.outcome.result(self._secs)
        except TimeoutError as error:
            if isinstance(error, HybridSyncError):
                raise
            raise WaitTimeout(
                f"epoch {entry.epoch} is being entered for more than {self._secs:g} s: its state has not arrived"
            ) from None

    def _give_up(self, entry: _Entry, error: BaseException) -> bool:
        """End an entry that failed; returns whether it was still wanted."""
        with self._condition:
            if self._entry is not entry:
                return False
            self._entry = None
            entry.outcome.set_exception(error)
            return True
