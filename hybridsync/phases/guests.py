"""The boundary through which the chief calls the user's code: whatever that raises, or returns, ends no run.

Evaluations, their figures, hooks and schedules are guests of the chief. What a guest raises becomes one event and one
line that names the user's own place in it; training goes on. A `KeyboardInterrupt` asks the run to save and stop, as
the user's own does. Everything else that is raised, `SystemExit` as well, is an error of the guest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from inspect import unwrap
from typing import Any, TypeVar

from hybridsync.core.clock import Clock
from hybridsync.core.errors import printable
from hybridsync.core.user_code import explain

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
        self._failures: Counter[tuple[str, str]] = Counter()
        self.seconds: Counter[str] = Counter()

    def call(self, name: str, work: Callable[[], T], default: T, *, function: Any = None) -> T:
        """Return what `work` returns; `default` where it raises.

        Args:
          name: the guest, for the report: "the hook print".
          work: calls the guest.
          default: value to go on with.
          function: the user's function, whose place is named where the error has no line of the user's.
        """
        started = self._clock.monotonic()
        try:
            return work()
        except KeyboardInterrupt as error:
            self._stop()
            self.failed(name, explain(error, place_of(function)), "the run saves and stops")
        except BaseException as error:  # noqa: BLE001 a guest ends nothing, whatever it raises
            self.failed(name, explain(error, place_of(function)))
        finally:
            self.seconds[name] += self._clock.monotonic() - started
        return default

    def failed(self, name: str, why: str, then: str = "training goes on") -> None:
        """Report that a guest failed, and why."""
        why = printable(why)[:MOST_TEXT]
        self._failures[name, why] += 1
        if self._failures[name, why] == 1:
            self._event("user_code_failed", code=name, error=why, times=1)
            self._show_line(f"{name} failed, {then}: {why}")

    def close(self) -> None:
        """Report how often guests failed that did so more than once."""
        for (name, why), times in self._failures.items():
            if times > 1:
                self._event("user_code_failed", code=name, error=why, times=times)
                self._show_line(f"{name} failed {times:,} times: {why}")
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
