"""Calls the user's callbacks in a thread of their own: whatever they do, or do not do, training does not wait."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hybridsync.chief.run_control import RunControl
from hybridsync.core.clock import Clock
from hybridsync.core.errors import printable
from hybridsync.interfaces.callbacks import Callback, CallbackRun
from hybridsync.phases.guests import MOST_TEXT, Guests
from hybridsync.training.run import Run

MOST_WAITING = 1024
"""Calls that may wait for the one under way; what comes while so many do is left out, and reported."""
LATE_SECS = 4.0
"""From when on a call is named that has not returned."""
END_SECS = 30.0
"""The longest that the end of a run waits for its callbacks."""

FOLLOWED = {"phase_entered": "on_phase", "evaluation": "on_evaluation", "checkpoint": "on_checkpoint"}
"""Kind of an event -> the method that it is handed to."""


class CallbackThread:
    """Calls callbacks one after another, in the order of what they follow.

    The controller's thread calls every public method. The callbacks' own thread never writes the record: it leaves
    notes for `look`.

    Args:
      run: the run, with its callbacks; where there are none, there is no thread.
      control: takes their wish to stop the run.
      reports: writes what they raise, from the controller's thread.
      show_line: shows one line, from the controller's thread.
      clock: measures how long each callback takes.
    """

    def __init__(
        self,
        run: Run,
        control: RunControl,
        reports: Guests,
        show_line: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._callbacks, self._reports, self._clock = run.callbacks, reports, clock
        self._notes: deque[Callable[[], None]] = deque()
        self._run = CallbackRun(
            run.config,
            run.workdir,
            stop=control.stop,
            say=lambda text: self._notes.append(partial(show_line, printable(str(text))[:MOST_TEXT])),
        )
        self._guests = _Noting(lambda *told: self._notes.append(partial(reports.failed, *told)), control.preempt, clock)
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(MOST_WAITING)
        self._current: tuple[str, float] | None = None  # what is called, and since when
        self._named: tuple[str, float] | None = None  # the last call that was reported as late
        self._left_out, self._is_closed = 0, False
        self._thread = threading.Thread(target=self._work, name="callbacks", daemon=True)
        if self._callbacks:
            self._thread.start()

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds that each callback has taken so far, by the name of its class."""
        taken: dict[str, float] = {}
        for name, secs in dict(self._guests.seconds).items():
            who = name.removeprefix("the callback ").partition(".")[0]
            taken[who] = taken.get(who, 0.0) + secs
        return {who: round(secs, 6) for who, secs in taken.items()}

    def call(self, method: str, *values: Any) -> None:
        """Have `method` of each callback called that overrides it, with copies of `values`."""
        for callback in self._callbacks:
            if getattr(type(callback), method) is getattr(Callback, method):
                continue
            try:
                self._calls.put_nowait(partial(self._call, callback, method, tuple(map(_copied, values))))
            except queue.Full:
                self._left_out += 1

    def look(self) -> None:
        """Report what callbacks have raised and said, and the one that is late."""
        while self._notes:
            self._notes.popleft()()
        current = self._current  # read once: the other thread changes it
        if current is None or current is self._named or self._clock.monotonic() - current[1] < LATE_SECS:
            return
        self._named = current
        self._reports.failed(
            current[0], f"it has not returned for {LATE_SECS:g} s; the calls after it wait", "training does not wait"
        )

    def close(self, summary: Mapping[str, Any]) -> None:
        """Call `on_end`, and wait for all calls until `END_SECS`; what is not done by then is abandoned, and named.

        A run's end that is broken off comes a second time: it waits no more.
        """
        if not self._callbacks or self._is_closed:
            return
        self._is_closed = True
        until = self._clock.monotonic() + END_SECS
        self._await(lambda: not self._calls.full(), until)
        self.call("on_end", summary)
        self._await(lambda: not self._calls.full(), until)
        with contextlib.suppress(queue.Full):
            self._calls.put_nowait(None)
        self._await(lambda: not self._thread.is_alive(), until)
        self.look()
        if self._left_out:
            self._reports.failed("the callbacks", f"{self._left_out:,} calls were left out: {MOST_WAITING:,} waited")
        if self._thread.is_alive():
            name = self._current[0] if self._current else "the callbacks"
            self._reports.failed(name, f"it has not returned {END_SECS:g} s after the run's end", "it is abandoned")

    def _await(self, done: Callable[[], bool], until: float) -> None:
        while not done() and self._clock.monotonic() < until:
            self.look()
            self._thread.join(0.01)

    # --- in the callbacks' thread ---

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def _call(self, callback: Callback, method: str, values: tuple[Any, ...]) -> None:
        function = getattr(callback, method)
        name = f"the callback {type(callback).__name__}.{method}"
        self._current = name, self._clock.monotonic()
        try:
            self._guests.call(name, partial(function, self._run, *values), None, function=function)
        finally:
            self._current = None


class _Noting(Guests):
    """Leaves what guests raise to another thread, which counts and reports it."""

    def __init__(self, note: Callable[[str, str, str], object], stop: Callable[[], object], clock: Clock) -> None:
        super().__init__(lambda *told, **fields: None, lambda line: None, stop, clock)
        self._note = note

    def failed(self, name: str, why: str, then: str = "training goes on") -> None:
        self._note(name, why, then)


def _copied(value: Any) -> Any:
    """Return a value that a callback may change: others are handed the same."""
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list | tuple) else value
