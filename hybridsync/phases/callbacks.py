"""Calls the user's code in the chief: whatever that raises, or returns, or does not do, ends no run and delays none.

Evaluations, their figures, hooks and schedules are guests of the chief, called where it needs them. What a guest raises
becomes one event and one line that names the user's own place in it; training goes on. A `KeyboardInterrupt` asks the
run to save and stop, as the user's own does. Everything else that is raised, `SystemExit` as well, is an error of the
guest. Callbacks are guests in threads of their own.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from inspect import unwrap
from typing import Any, TypeVar

from hybridsync.chief.run_state import RunControl
from hybridsync.core.clock import Clock
from hybridsync.core.errors import printable
from hybridsync.core.user_code import ends_forks, explain
from hybridsync.interfaces.callbacks import Callback, CallbackRun
from hybridsync.interfaces.messages import MOST_REASON_CHARS
from hybridsync.training.run import Run

T = TypeVar("T")

MOST_TEXT = 500
"""Characters of what is said of one error."""


class Guests:
    """Calls the user's functions for the chief; used by the controller's thread alone.

    A guest that fails in the same way again and again is reported once, and counted until `close`.

    Args:
      event: writes an event.
      show_line: shows one line.
      stop: asks the run to save and stop.
      clock: measures how long each guest takes.

    Attributes:
      seconds: name of a guest -> seconds that it has taken.
    """

    def __init__(
        self, event: Callable[..., object], show_line: Callable[[str], None], stop: Callable[[], object], clock: Clock
    ) -> None:
        self._event, self._show_line, self._stop, self._clock = event, show_line, stop, clock
        self._failures: Counter[tuple[str, str, str]] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def call(
        self, name: str, work: Callable[[], T], default: T, *, function: Any = None, keys: Collection[str] = ()
    ) -> T:
        """Return what `work` returns; `default` where it raises.

        Args:
          name: the guest, for the report: "the hook print".
          work: calls the guest.
          default: value to go on with.
          function: the user's function, whose place is named where the error has no line of the user's.
          keys: keys of the values that the guest is called with, named where it asks for another.
        """
        started = self._clock.monotonic()
        try:
            return ends_forks(work)()
        except KeyboardInterrupt as error:
            self._stop()
            self.failed(name, explain(error, place_of(function)), "the run saves and stops")
        except BaseException as error:  # noqa: BLE001 a guest ends nothing, whatever it raises
            other_key = isinstance(error, KeyError) and keys and not any(key in keys for key in error.args)
            have = f"; the values have the keys {', '.join(sorted(keys))}" if other_key else ""
            self.failed(name, explain(error, place_of(function)) + have)
        finally:
            self.seconds[name] += self._clock.monotonic() - started
        return default

    def failed(self, name: str, why: str, then: str = "training goes on", did: str = "failed") -> None:
        """Report that a guest failed, or what else it `did`, and why."""
        why = printable(why)[:MOST_TEXT]
        self._failures[name, did, why] += 1
        if self._failures[name, did, why] == 1:
            self._event("user_code_failed", code=name, error=why, times=1)
            self._show_line(f"{name} {did}, {then}: {why}")

    def close(self) -> None:
        """Report how often guests failed that did so more than once."""
        for (name, did, why), times in self._failures.items():
            if times > 1:
                self._event("user_code_failed", code=name, error=why, times=times)
                self._show_line(f"{name} {did} {times:,} times: {why}")
        self._failures.clear()


def place_of(function: Any) -> str:
    """Return "FILE, line N" where a function is defined; "" for what has no Python code."""
    try:
        code = unwrap(getattr(function, "func", function)).__code__
        return f"{code.co_filename}, line {code.co_firstlineno}"
    except Exception:  # noqa: BLE001 an object of the user's, whose attributes may raise as well
        return ""


def name_of(function: Any) -> str:
    """Return the name by which a user knows a function."""
    try:
        function = getattr(function, "func", function)
        return str(getattr(function, "__qualname__", type(function).__qualname__))
    except Exception:  # noqa: BLE001 see `place_of`
        return "function"


MOST_WAITING = 1024
"""Calls of a callback that may wait for the one under way; what comes while so many do is left out, and reported."""
LATE_SECS = 4.0
"""From when on a call is named that has not returned."""
END_SECS = 30.0
"""The longest that the end of a run waits for its callbacks."""

FOLLOWED = {"phase_entered": "on_phase", "evaluation": "on_evaluation", "checkpoint": "on_checkpoint"}
"""Kind of an event -> the method that it is handed to."""


class Callbacks:
    """Calls each callback in a thread of its own, in the order of the events: a slow one delays no other.

    The controller's thread calls every public method. The callbacks' own threads never write the record: they leave
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
        self._reports, self._show_line, self._clock = reports, show_line, clock
        self._notes: deque[Callable[[], None]] = deque()

        def stop(reason: str) -> None:
            text = printable(str(reason))[:MOST_REASON_CHARS]  # any object of the user's; before the turn: it may wait
            with control.turn() as chief:
                chief.stop(text)

        def preempt() -> None:
            with control.turn() as chief:
                chief.preempt()

        shown = CallbackRun(
            run.config,
            run.workdir,
            stop=stop,
            say=lambda text: self._notes.append(partial(show_line, printable(str(text))[:MOST_TEXT])),
            optimizer=run.optimizer.shown_values(run.config.unit_size, run.config.workload),
        )

        def note(*failure: str) -> None:
            self._notes.append(partial(reports.failed, *failure))

        self._threads = [_Thread(each, shown, _Noting(note, preempt, clock), clock) for each in run.callbacks]
        self._is_closed = False

    def __bool__(self) -> bool:
        return bool(self._threads)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds that each callback has taken so far, by the name of its class."""
        taken: dict[str, float] = {}
        for thread in self._threads:
            taken[thread.name] = round(taken.get(thread.name, 0.0) + thread.seconds, 6)
        return taken

    def call(self, method: str, *values: Any) -> None:
        """Have `method` of each callback called that overrides it, with copies of `values`."""
        for thread in self._threads:
            thread.put(method, tuple(map(_copied, values)))

    def look(self) -> None:
        """Report what callbacks have raised and said, and those that are late."""
        while self._notes:
            self._notes.popleft()()
        for thread in self._threads:
            if returned := thread.take_returned():
                self._show_line(returned)
            if late := thread.take_late():
                why = f"it has not returned for {LATE_SECS:g} s; its later calls wait"
                self._reports.failed(late, why, "training does not wait", did="is slow")

    def close(self, summary: Mapping[str, Any]) -> None:
        """Call `on_end`, and wait for all calls until `END_SECS`; what is not done by then is abandoned, and named.

        A run's end that is broken off comes a second time: it waits no more.
        """
        if self._is_closed:
            return
        self._is_closed = True
        until = self._clock.monotonic() + END_SECS
        for thread in self._threads:
            self._await(thread, thread.has_room, until)
            thread.put("on_end", (_copied(summary),))
            self._await(thread, thread.has_room, until)
        self.end()
        for thread in self._threads:
            self._await(thread, lambda thread=thread: not thread.is_alive, until)
        self.look()
        for thread in self._threads:
            if thread.left_out:
                why = f"{thread.left_out:,} calls were left out: {MOST_WAITING:,} waited"
                self._reports.failed(f"the callback {thread.name}", why)
            if thread.is_alive:
                why = f"it has not returned {END_SECS:g} s after the run's end"
                self._reports.failed(thread.current or f"the callback {thread.name}", why, "it is abandoned")

    def end(self) -> None:
        """End the threads once their calls are done, without a wait."""
        for thread in self._threads:
            thread.end()

    def _await(self, thread: _Thread, done: Callable[[], bool], until: float) -> None:
        while not done() and self._clock.monotonic() < until:
            self.look()
            thread.join(0.01)


class _Thread:
    """Calls one callback, one call after another."""

    def __init__(self, callback: Callback, run: CallbackRun, guests: Guests, clock: Clock) -> None:
        self.name, self.left_out = type(callback).__name__, 0
        self._callback, self._run, self._guests, self._clock = callback, run, guests, clock
        self._calls: queue.Queue[tuple[str, tuple[Any, ...]] | None] = queue.Queue(MOST_WAITING)
        self._current: tuple[str, float] | None = None  # what is called, and since when
        self._named: tuple[str, float] | None = None  # the last call that was reported as late
        self._thread = threading.Thread(target=self._work, name=f"callback {self.name}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def current(self) -> str:
        """The call under way; "" where there is none."""
        current = self._current  # read once: the other thread changes it
        return current[0] if current else ""

    @property
    def seconds(self) -> float:
        return math.fsum(dict(self._guests.seconds).values())

    def has_room(self) -> bool:
        return not self._calls.full()

    def put(self, method: str, values: tuple[Any, ...]) -> None:
        """Have a method called that the callback overrides; it is left out, and counted, while too many calls wait."""
        if getattr(type(self._callback), method) is getattr(Callback, method):
            return
        try:
            self._calls.put_nowait((method, values))
        except queue.Full:
            self.left_out += 1

    def end(self) -> None:
        """End the thread once all calls are done."""
        with contextlib.suppress(queue.Full):
            self._calls.put_nowait(None)

    def join(self, secs: float) -> None:
        self._thread.join(secs)

    def take_late(self) -> str:
        """Return the call that has not returned for `LATE_SECS`, once; "" otherwise."""
        current = self._current
        if current is None or current is self._named or self._clock.monotonic() - current[1] < LATE_SECS:
            return ""
        self._named = current
        return current[0]

    def take_returned(self) -> str:
        """Return a line once the call that was late has returned; "" otherwise."""
        late = self._named
        if late is None or late is self._current:
            return ""
        self._named = None
        return f"{late[0]} has returned after {self._clock.monotonic() - late[1]:.0f} s"

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            method, values = call
            function = getattr(self._callback, method)
            name = f"the callback {self.name}.{method}"
            self._current = name, self._clock.monotonic()
            try:
                keys = [key for each in values for key in each]
                self._guests.call(name, partial(function, self._run, *values), None, function=function, keys=keys)
            finally:
                self._current = None


class _Noting(Guests):
    """Leaves what guests raise to another thread, which counts and reports it."""

    def __init__(self, note: Callable[[str, str, str, str], object], stop: Callable[[], object], clock: Clock) -> None:
        super().__init__(lambda *values, **fields: None, lambda line: None, stop, clock)
        self._note = note

    def failed(self, name: str, why: str, then: str = "training goes on", did: str = "failed") -> None:
        self._note(name, why, then, did)


def _copied(value: Any) -> Any:
    """Return a value that a callback may change: others are handed the same."""
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list | tuple) else value
