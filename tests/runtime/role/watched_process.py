"""A process that works under a watchdog: `python tests/runtime/role/watched_process.py STORY FLOOR_SECS [BUG]`.

It ends with 0 where the watchdog lets it.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from hybridsync.core import work_deadlines
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.runtime.role.watchdog import Watchdog

hang_secs = 60.0
"""When a piece that nobody ends goes on: then the test fails, and nothing is left running.

On a busy machine a watchdog may look so late several times that it counts anew, as after a stop.
"""
UNIT_SECS = 0.4
first_secs = long_secs = 5 * UNIT_SECS
"""How long a first unit and other pieces take that are to go on; with a bug planted, until the watchdog ends them."""


def wait(secs: float) -> None:
    threading.Event().wait(secs)


def the_users_own_code_hangs() -> None:
    print("hangs", flush=True)
    wait(hang_secs)


limits: Any = SimpleNamespace(compute_secs=0.0, read_secs=0.0, compile_secs=work_deadlines.COMPILE_SECS)
"""Shorter than a configuration may have them: the watchdog's own floor counts."""


class Worker:
    """Computes units as an engine does.

    Args:
      watchdog: of this process.
    """

    def __init__(self, watchdog: Watchdog) -> None:
        from hybridsync.core.plan import PhaseId
        from hybridsync.worker.stats import WorkerRecorder

        self._recorder = WorkerRecorder(3, SYSTEM_CLOCK, keep_spans=False, limits=limits)
        self._recorder.watchdog = watchdog
        self._recorder.enter(PhaseId(1, 0))

    def compute(self, unit: int, code: Callable[[], None]) -> None:
        started = SYSTEM_CLOCK.monotonic()
        self._recorder.computing(unit)
        code()
        self._recorder.compute("server", started, SYSTEM_CLOCK.monotonic(), None)


def unit(watchdog: Watchdog) -> None:
    """Unit 17 hangs in the user's code."""
    worker = Worker(watchdog)
    with watchdog.work("the loop over phases", 1000.0):
        for number in (15, 16):
            worker.compute(number, lambda: wait(0.01))
        worker.compute(17, the_users_own_code_hangs)


def compiling(watchdog: Watchdog) -> None:
    """The user's code hangs while it is compiled."""
    import jax

    from hybridsync.runtime.role.compilations import Compilations

    Compilations(watchdog=watchdog)
    jax.jit(lambda value: value + 1.0)(1.0)  # whose backend begins here, not within the limit below

    def loss(value: jax.Array) -> jax.Array:
        the_users_own_code_hangs()
        return value

    with watchdog.work("compiling the programs", 0.1):
        jax.jit(loss)(1.0)


def slow(watchdog: Watchdog) -> None:
    """The first unit takes long, and a later one takes five times as long as the others."""
    work_deadlines.RECENT = 2
    worker = Worker(watchdog)
    worker.compute(0, lambda: wait(first_secs))
    for number in range(1, work_deadlines.RECENT + 1):
        worker.compute(number, lambda: wait(UNIT_SECS))
    worker.compute(99, lambda: wait(long_secs))


def waits(watchdog: Watchdog) -> None:
    """Others are waited for, inside a piece whose own limit is short, and progress is made inside another."""
    with watchdog.work("a step", 0.0), watchdog.work("the others", work_deadlines.UNLIMITED):
        wait(long_secs)
    with watchdog.work("a long call", 0.0):
        for _ in range(5):
            wait(UNIT_SECS)
            watchdog.progress()


def stopped(watchdog: Watchdog) -> None:
    """A piece is stopped, and takes a while when it goes on."""
    with watchdog.work("a piece", 0.0):
        os.kill(os.getpid(), signal.SIGSTOP)
        wait(long_secs / 2)


STORIES: dict[str, Callable[[Watchdog], None]] = {
    story.__name__: story for story in (unit, compiling, slow, waits, stopped)
}


def plant(bug: str) -> None:
    global first_secs, hang_secs, long_secs
    if bug == "the_first_unit_is_like_any_other":
        first_secs = hang_secs
    if bug:
        long_secs = hang_secs
    if bug == "nobody_looks":
        hang_secs = 3.0  # nothing else ends it
        work_deadlines.Judge.overdue = lambda self, now, pieces: []
    elif bug == "a_unit_may_take_as_long_as_the_last":
        work_deadlines.TIMES = 1.5
    elif bug == "a_stop_counts":
        work_deadlines.LATE_TICKS = math.inf
    elif bug == "the_first_unit_is_like_any_other":
        limits.compile_secs = 0.1
    elif bug == "an_outer_piece_goes_on":
        work_deadlines.UNLIMITED = 0.0
    else:
        assert not bug, bug


def main(story: str, floor_secs: str, bug: str = "") -> int:
    plant(bug)
    watchdog = Watchdog("worker 3", lambda text: print(text, flush=True), floor_secs=float(floor_secs))
    watchdog.start()
    STORIES[story](watchdog)
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
