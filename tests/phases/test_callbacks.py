"""The user's code in the chief is a guest: what it raises is reported by name and place, and ends nothing."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest

from hybridsync.phases.callbacks import Guests, name_of, place_of
from tests.telemetry.clocks import ManualClock

HERE = __file__


class Unprintable(Exception):
    """An error whose own text raises."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Chief:
    """What guests report to."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self.stopped = 0
        self.clock = ManualClock()
        self.guests = Guests(self._event, self.lines.append, self._stop, self.clock)

    def _event(self, kind: str, **fields: Any) -> None:
        self.events.append({"kind": kind, **fields})

    def _stop(self) -> None:
        self.stopped += 1


def raises(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    "error",
    [RuntimeError("the judge is out"), SystemExit(3), GeneratorExit(), MemoryError(), RecursionError("deep")],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_guest_raises_is_one_event_and_one_line_with_its_place(error: BaseException) -> None:
    chief = Chief()
    assert chief.guests.call("the hook judge", lambda: raises(error), "default") == "default"
    (event,), (line,) = chief.events, chief.lines
    assert (event["kind"], event["code"], event["times"]) == ("user_code_failed", "the hook judge", 1)
    line_of_raise = inspect.getsourcelines(raises)[1] + 1
    assert event["error"].startswith(f"{HERE}, line {line_of_raise}: {type(error).__name__}")
    assert line == f"the hook judge failed, training goes on: {event['error']}"
    assert not chief.stopped


def test_an_error_whose_text_raises_is_reported_by_its_type() -> None:
    chief = Chief()
    chief.guests.call("the hook judge", lambda: raises(Unprintable()), None)
    assert "Unprintable" in chief.events[0]["error"]


def test_an_interrupt_asks_the_run_to_save_and_stop() -> None:
    chief = Chief()
    chief.guests.call("the hook judge", lambda: raises(KeyboardInterrupt()), None)
    assert chief.stopped == 1
    assert "the run saves and stops" in chief.lines[0] and "KeyboardInterrupt" in chief.lines[0]


def test_a_guest_that_fails_again_and_again_is_reported_once_and_counted() -> None:
    chief = Chief()
    for _ in range(1000):
        chief.guests.call("the hook judge", lambda: raises(RuntimeError("out")), None)
    chief.guests.call("the hook judge", lambda: raises(RuntimeError("at lunch")), None)
    assert [event["times"] for event in chief.events] == [1, 1]
    chief.guests.close()
    assert [event["times"] for event in chief.events] == [1, 1, 1000]
    assert len(chief.lines) == 3 and "1,000 times" in chief.lines[-1]


def test_a_long_error_of_many_lines_and_control_characters_is_one_short_line() -> None:
    chief = Chief()
    chief.guests.call("the hook judge", lambda: raises(RuntimeError("\x1b[31mred" + 9999 * "x" + "\nsecond")), None)
    (line,) = chief.lines
    assert line.isprintable() and len(line) < 700 and "second" not in line


def test_the_seconds_of_each_guest_are_measured_also_where_it_fails() -> None:
    chief = Chief()

    def slow(secs: float) -> None:
        chief.clock.advance(secs)
        raise RuntimeError("out")

    for secs in (2.0, 3.0):
        chief.guests.call("the hook slow", functools.partial(slow, secs), None)
    chief.guests.call("the hook quick", lambda: None, None)
    assert dict(chief.guests.seconds) == {"the hook slow": 5.0, "the hook quick": 0.0}


def test_functions_are_named_as_their_user_knows_them() -> None:
    class Odd:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError("odd")

        def __call__(self) -> None: ...

    assert name_of(raises) == "raises" and name_of(functools.partial(raises, ValueError())) == "raises"
    assert name_of([].append) == "list.append" and place_of([].append) == ""
    assert place_of(functools.partial(raises, ValueError())) == f"{HERE}, line {inspect.getsourcelines(raises)[1]}"
    assert (name_of(Odd()), place_of(Odd())) == ("function", "")
