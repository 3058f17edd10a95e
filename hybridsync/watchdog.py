"""Says where a training loop stands that makes no progress; needs no other package.

    >>> from hybridsync.watchdog import Watchdog
    >>> with Watchdog(limit_secs=300.0) as watchdog:
    ...     for step in range(3):
    ...         loss = step / 2  # train_step(...), and a wait for its result: jax.block_until_ready
    ...         watchdog.beat(step)

After 300 s without a `beat` it writes the last step and the stacks of all threads, once for each standstill. It ends
the process only where that is asked for (`ends=True`): all ranks of a job that hang in one collective then end with
exit code 70, and what started them can start them again.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import TextIO

from hybridsync.core.clock import SYSTEM_CLOCK, Clock
from hybridsync.core.work_deadlines import COMPILE_SECS, Overdue, Piece
from hybridsync.runtime.role import watchdog

__all__ = ["Watchdog"]

_STDERR = 2  # as in notebooks, `sys.stderr` may have no descriptor
_BEFORE_ANY = "before its first step"


class Watchdog:
    """Watches one training loop, as a context manager. A process that is stopped, as by SIGSTOP, is not counted.

    A thread of its own looks at the loop. It needs Python's interpreter lock, which JAX releases while it computes,
    waits for a device or is in a collective; code that hangs with that lock held is not reported.

    Args:
      limit_secs: longest time from one `beat` to the next, in seconds.
      first_secs: longest time to the first `beat`, whose step may be compiled; at least `limit_secs`.
      file: open file to write to; None for the process's standard error.
      ends: whether to end the process with exit code 70 after that.
      clock: clock for the limits.

    Raises:
      ValueError: `limit_secs` is not above 0.
    """

    def __init__(
        self,
        limit_secs: float,
        *,
        first_secs: float = COMPILE_SECS,
        file: TextIO | None = None,
        ends: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not limit_secs > 0:
            raise ValueError(f"limit_secs is {limit_secs}; give seconds above 0")
        self._limit_secs, self._clock = limit_secs, clock
        self._descriptor = _STDERR if file is None else file.fileno()
        self._loop = Piece(_BEFORE_ANY, max(limit_secs, first_secs), clock.monotonic())
        self._reported = False
        act = self._end if ends else self._report
        self._dog = watchdog.Watchdog("this process", floor_secs=limit_secs, clock=clock, act=act)

    def __enter__(self) -> Watchdog:
        self._loop.started = self._clock.monotonic()
        self._dog.push(self._loop)
        self._dog.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._dog.stop()

    def beat(self, step: object = None) -> None:
        """Note that a step has ended. From any thread; it costs less than a microsecond."""
        loop, now = self._loop, self._clock.monotonic()
        if self._reported:
            self._reported = False
            os.write(self._descriptor, f"a step has ended again, after {now - loop.started:.1f} s\n".encode())
        loop.name = "after a step" if step is None else f"after step {step}"
        loop.limit_secs, loop.started = self._limit_secs, now

    def _report(self, overdue: list[Overdue]) -> None:
        (late,) = overdue
        said = f"no progress for {late.secs:.1f} s {late.name}, and the limit is {late.limit_secs:g} s"
        watchdog.write_stacks(self._descriptor, said, overdue)
        self._reported = True

    def _end(self, overdue: list[Overdue]) -> None:
        try:
            self._report(overdue)
        finally:
            self._dog.leave()
