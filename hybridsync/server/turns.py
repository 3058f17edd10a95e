"""Lets one caller at a time into what a server holds, and ends a server that no longer knows what that is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from hybridsync.core.errors import HybridSyncError, RoleLost


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
            lost = RoleLost(f"a server failed: {type(error).__name__}: {error}; what it held is used no more")
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
