"""Waits for futures, with a deadline that is told from the errors of what is waited for."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

from hybridsync.core.errors import WaitTimeout

T = TypeVar("T")


def result_within(future: Future[T], secs: float, late: str) -> T:
    """Return a future's result, waiting for it up to `secs`.

    A `TimeoutError` of the work itself, as a `WaitTimeout` is one, is passed on as it is.

    Raises:
      WaitTimeout: with the text `late`; it has not ended in time.
      Exception: the error of the future.
    """
    try:
        return future.result(secs)
    except TimeoutError:
        if future.done():
            return future.result()
        raise WaitTimeout(late) from None
