"""Kinds of values in the lines of a run's record: a writer declares one for each field, and readers check by it.

>>> wrong({"units": 40, "why": 3, "more": []}, {"units": "a count", "why": "a text or null"})
['why is 3, not a text or null']
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

NUMBER = "a number or null"
"""Kind of every computed number: one that is not finite is null in JSON."""


def wrong(values: Mapping[str, Any], fields: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the fields of a line; one that is not there, or not declared, is not looked at.

    Args:
        values: the line, as JSON holds it.
        fields: name to a key of KINDS.
    """
    return [
        f"{name} is {shown(values[name])}, not {kind}"
        for name, kind in fields.items()
        if name in values and not KINDS[kind](values[name])
    ]


def shown(value: Any) -> str:
    """Return a value as JSON, cut off where it is long."""
    return json.dumps(value)[:80]


def is_text(value: Any) -> bool:
    """Return whether a value is a text."""
    return isinstance(value, str)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number from 0."""
    return type(value) is int and value >= 0


def _or_null(is_kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_kind(value)


def _list_of(is_kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_kind, value))


def _by_name(is_kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(is_kind, value.values()))


def _by_count(is_kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: _by_name(is_kind)(value) and all(map(str.isdecimal, value))


_is_number_or_null = _or_null(is_number)

KINDS: dict[str, Callable[[Any], bool]] = {
    "a text": is_text,
    "a text or null": _or_null(is_text),
    "texts": _list_of(is_text),
    "a count": is_count,
    "a number": is_number,
    "a number above 0": lambda value: is_number(value) and value > 0,
    "a number or null": _is_number_or_null,
    "numbers or nulls": _list_of(_is_number_or_null),
    "true or false": lambda value: isinstance(value, bool),
    "true, false or null": _or_null(lambda value: isinstance(value, bool)),
    "a list": lambda value: isinstance(value, list),
    "counts": _list_of(is_count),
    "numbers by name": _by_name(_is_number_or_null),
    "numbers by count": _by_count(_is_number_or_null),
    "counts by host and worker": _by_name(_by_count(is_count)),
}
"""Name of each kind of value to its check."""
